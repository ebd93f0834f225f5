"""Qwen configurations: defaults, nested text parts, kinds of layers, GGUF metadata, and files as on the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hetero.engine import Engine
from hetero.machine.types import ModelError
from hetero.models.card import cards
from hetero.models.checkpoint import open_checkpoint
from hetero.models.convert import convert
from hetero.models.families import FAMILIES
from hetero.native import Kernels, choose_tier
from tests.tiny import tiny_hf
from tests.tiny_gguf_qwen import qwen_gguf


def read(family: str, raw: dict[str, Any]) -> Any:
    return FAMILIES[family].config_from_hf(raw)


def test_three_of_four_layers_are_delta_nets_by_default() -> None:
    config = read("qwen3_5_moe", cards()["qwen3.5-35b-a3b"].config)
    assert config.delta.layers == tuple(layer for layer in range(40) if layer % 4 != 3)
    assert config.rope.dim == 64
    assert config.moe.norm_topk
    assert config.moe.shared_gate
    assert config.zero_centred
    assert read("qwen3_next", cards()["qwen3-next-80b-a3b"].config).delta.fused_qkvz


def test_layers_may_be_listed() -> None:
    raw = cards()["qwen3-next-80b-a3b"].config | {"num_hidden_layers": 3}
    kinds = ["full_attention", "linear_attention", "full_attention"]
    assert read("qwen3_next", raw | {"layer_types": kinds}).delta.layers == (1,)
    for wrong in (kinds[:2], [*kinds[:2], "sliding_attention"], ["linear_attention", 7, None]):
        with pytest.raises(ModelError, match="layer_types"):
            read("qwen3_next", raw | {"layer_types": wrong})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("linear_num_value_heads", 24),
        ("linear_conv_kernel_dim", 1),
        ("num_experts", 0),
        ("partial_rotary_factor", 2.0),
        ("attention_bias", True),
        ("hidden_act", "gelu"),
    ],
)
def test_impossible_values_are_named(key: str, value: object) -> None:
    with pytest.raises(ModelError, match=key):
        read("qwen3_next", cards()["qwen3-next-80b-a3b"].config | {key: value})


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen2_moe", "qwen3_next", "qwen3_5_moe"])
def test_gguf_and_hugging_face_agree(family: str, tmp_path: Path) -> None:
    changes = {"linear_key_head_dim": 32} if family in ("qwen3_next", "qwen3_5_moe") else {}
    directory = tiny_hf(family, tmp_path, **changes)
    with open_checkpoint(directory) as hf, open_checkpoint(qwen_gguf(directory, tmp_path / "m.gguf")) as gguf:
        for name in ("n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_size", "qk_norm", "moe"):
            assert getattr(hf.config, name) == getattr(gguf.config, name), name
        assert hf.config.rope.dim == gguf.config.rope.dim
        assert hf.index.kv_elements_per_token == gguf.index.kv_elements_per_token
        assert hf.index.recurrent_bytes == gguf.index.recurrent_bytes


def test_the_hubs_files_of_qwen3_5_have_fused_experts_and_a_part_that_predicts_ahead(tmp_path: Path) -> None:
    directory = tiny_hf("qwen3_5_moe", tmp_path)
    tensors = load_file(directory / "model.safetensors")
    ids = np.random.default_rng(0).integers(0, 400, 50).tolist()
    before = logits(directory, ids)
    for layer in range(4):
        p = f"model.language_model.layers.{layer}.mlp.experts."
        each = [{n: tensors.pop(f"{p}{e}.{n}_proj.weight") for n in ("gate", "up", "down")} for e in range(16)]
        tensors[p + "gate_up_proj"] = np.stack([np.concatenate([e["gate"], e["up"]]) for e in each])
        tensors[p + "down_proj"] = np.stack([e["down"] for e in each])
    tensors["mtp.fc.weight"] = np.ones((64, 128), np.float32)
    save_file(tensors, directory / "model.safetensors")
    assert np.array_equal(logits(directory, ids), before)
    tensors["model.language_model.layers.0.linear_attn.surprise"] = np.ones(3, np.float32)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelError, match="surprise"):
        open_checkpoint(directory)


def test_a_store_answers_as_its_checkpoint(tmp_path: Path) -> None:
    directory = tiny_hf("qwen3_next", tmp_path)
    ids = np.random.default_rng(0).integers(0, 400, 50).tolist()
    report = convert(directory, tmp_path / "m.hetero", experts="keep", kernels=Kernels(choose_tier(None)))
    assert np.array_equal(logits(report.path, ids), logits(directory, ids))
    assert json.loads((report.path / "manifest.json").read_text())["config"]["zero_centred"] is True


def logits(path: Path, ids: list[int]) -> Any:
    engine = Engine.load(path, device="cpu", threads=2, context=128, kv_dtype="f32")
    try:
        return engine.logits(ids)
    finally:
        engine.close()
