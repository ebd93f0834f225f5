"""What a benchmark holds is what the plan's ledger says, line by line, for models of every family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.cli.harness import hetero
from tests.tiny import FAMILIES, tiny_hf
from tests.tiny_gguf import tiny_gguf

MB = 10**6
_WIDER = {
    "intermediate_size": 8,
    "intermediate_size_mlp": 8,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 8,
    "shared_intermediate_size": 8,
    "moe_shared_expert_intermediate_size": 8,
    "num_attention_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "head_dim": 2,
}
"""By which a wide model's dimensions are larger than a tiny one's."""


def wide(family: str) -> dict[str, Any]:
    """A model whose working memory is tens of megabytes, with the layers of `family`."""
    config = FAMILIES[family][1]
    config = config.get("text_config", config)
    larger = {key: config[key] * by for key, by in _WIDER.items() if config.get(key)}
    if "kv_lora_rank" in larger or family == "olmoe":
        larger["num_key_value_heads"] = larger["num_attention_heads"]
    return larger | {"hidden_size": 512, "max_position_embeddings": 1024}


def assert_as_planned(env: Mapping[str, str], path: Path) -> None:
    done = hetero("bench", str(path), "--prefill", "512", "--decode", "4", "--repeat", "1", "--json", env=env)
    assert done.returncode == 0, done.stderr
    for line in json.loads(done.stdout)["memory"]:
        planned, held = line["predicted_bytes"], line["measured_bytes"]
        assert abs(planned - held) <= max(8 * MB, 0.05 * held), line


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "qwen3_next"])
def test_tiny_models_take_the_memory_of_their_plan(family: str, env: dict[str, str], tmp_path: Path) -> None:
    assert_as_planned(env, tiny_hf(family, tmp_path, max_position_embeddings=1024))


@pytest.mark.soak
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("is_wide", [False, True], ids=["tiny", "wide"])
def test_models_of_every_family_take_the_memory_of_their_plan(
    family: str, is_wide: bool, env: dict[str, str], tmp_path: Path
) -> None:
    changes = wide(family) if is_wide else {"max_position_embeddings": 1024}
    assert_as_planned(env, tiny_hf(family, tmp_path, **changes))


@pytest.mark.soak
@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "deepseek2"])
def test_gguf_models_take_the_memory_of_their_plan(arch: str, env: dict[str, str], tmp_path: Path) -> None:
    path = tiny_gguf(arch, tmp_path / "m.gguf", type="Q8_0", max_position_embeddings=1024)
    assert_as_planned(env, path)
