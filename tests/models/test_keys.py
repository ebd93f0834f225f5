"""Every key of a config.json is looked up by its family or listed here with the reason why it changes nothing.

A key that is read and not used, or not read at all, is how models go subtly wrong (a scaling factor, a norm's switch),
so a new family's keys have to be looked at one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hetero.models.families import FAMILIES as MODULES
from hetero.models.families import family_for_hf
from hetero.models.families.common import recorded_keys
from hetero.models.families.unsupported import NEEDS_GGUF, NEEDS_HF
from tests.tiny import FAMILIES, _config_class

ANY = {
    r"architectures|model_type|transformers_version|_name_or_path|dtype|torch_dtype|auto_map": "which code, not what",
    r"(bos|eos|pad|eod|sep|mask|image|video|vision_start|vision_end)_token_id": "read by the text side",
    r"attention_dropout|initializer_range|router_aux_loss_coef|router_jitter_noise|pretraining_tp": "training only",
    r"use_cache|output_\w+|return_dict|chunk_size_feed_forward|is_encoder_decoder|problem_type": "its switches",
    r"(id2label|label2id)\..*": "names of classes",
    r"vision_config\..*": "images are not read",
}
OWN = {
    "deepseek_v2_lite": {r"n_group|topk_group": "greedy routing has no groups"},
    "bailing_moe": {r"num_local_experts": "another name that transformers adds"},
    "bailing_moe_v2": {r"num_local_experts": "another name that transformers adds"},
    "hunyuan_moe": {r"rope_parameters\.(alpha|factor)": "read from the raw object, as the rule is this family's own"},
    "deepseek_v4": {r"compress_rope_theta": "rope_parameters.compress says it"},
    "llama4": {r"no_rope_layer_interval": "no_rope_layers says it layer by layer"},
    "qwen2": {r"layer_types|max_window_layers": "no window without use_sliding_window, which is refused"},
    "qwen3_5_moe": {r"rope_parameters\.mrope_\w+": "all axes are equal for text"},
}
OWN |= {"llama4_maverick": OWN["llama4"], "qwen3": OWN["qwen2"], "qwen2_moe": OWN["qwen2"]}
WINDOW = {r"sliding_window": "no window without use_sliding_window, which is refused"}
SPARSE = {r"layer_types": "every layer attends to what an indexer chooses"}
WIDTHS = {r"head_dim|num_key_value_heads|qk_head_dim": "latent attention has widths of its own"}


def config_of(name: str) -> dict[str, Any]:
    """A tiny family's configuration with every key that transformers' class of it knows."""
    import transformers

    prefix, config = FAMILIES[name]
    if prefix.startswith("Bailing"):
        raw, head = dict(config), "ForCausalLM"
    else:
        raw = getattr(transformers, _config_class(prefix))(**config).to_dict()
        head = "ForConditionalGeneration" if "text_config" in raw else "ForCausalLM"
    found: dict[str, Any] = json.loads(json.dumps(raw | {"architectures": [prefix + head]}))
    return found


def names_of(raw: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in raw.items():
        if isinstance(value, dict):
            yield from names_of(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def ignored(name: str) -> dict[str, str]:
    module = family_for_hf(config_of(name), "config.json").NAME
    out = ANY | OWN.get(name, {})
    if module in ("deepseek", "deepseek_v32", "glm_moe_dsa"):
        out |= WIDTHS
    if module in ("deepseek_v32", "glm_moe_dsa"):
        out |= SPARSE
    return out | (WINDOW if name.startswith(("qwen", "llama4")) or module == "qwen3_moe" else {})


@pytest.mark.parametrize("name", FAMILIES)
def test_every_key_is_looked_up_or_listed(name: str) -> None:
    raw = config_of(name)
    with recorded_keys() as looked_up:
        family_for_hf(raw, "config.json").config_from_hf(raw)
    known = {key.removeprefix("text_config.") for key in looked_up}
    listed = re.compile("|".join(ignored(name)))
    left = [key.removeprefix("text_config.") for key in names_of(raw)]
    left = [key for key in left if key not in known and not listed.fullmatch(key)]
    assert not left, f"{name}: read these keys, refuse what they may say, or list why they change nothing: {left}"


def test_nothing_is_listed_that_is_looked_up_everywhere() -> None:
    """An entry that no family needs any more has to go."""
    unused: set[str] = set()
    for name in FAMILIES:
        raw = config_of(name)
        with recorded_keys() as looked_up:
            family_for_hf(raw, "config.json").config_from_hf(raw)
        unused |= {key for key in names_of(raw) if key not in looked_up}
    for table in (ANY, WINDOW, SPARSE, WIDTHS, *OWN.values()):
        for pattern in table:
            assert any(re.fullmatch(pattern, key.removeprefix("text_config.")) for key in unused), pattern


@pytest.mark.parametrize("name", FAMILIES)
def test_no_tensor_that_a_family_needs_is_on_its_skip_list(name: str) -> None:
    raw = config_of(name)
    family = family_for_hf(raw, "config.json")
    config = family.config_from_hf(raw)
    skip = re.compile("|".join(family.SKIP_HF) or r"(?!)")
    assert not [tensor for tensor in family.expected_tensors(config) if skip.fullmatch(tensor)]
    assert not set(family.expected_tensors(config)) & set(family.SKIP_GGUF)


def test_the_readme_names_every_architecture_and_no_supported_one_counts_as_unsupported() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    names = {name for f in MODULES.values() for name in (*f.GGUF_ARCHS, *f.HF_ARCHITECTURES)}
    assert not {name for name in names if f"`{name}`" not in text}
    assert not names & (NEEDS_GGUF.keys() | NEEDS_HF.keys())


def test_every_family_of_experts_or_not_has_a_tiny_model() -> None:
    covered = {family_for_hf(config_of(name), "config.json").NAME for name in FAMILIES}
    assert covered == set(MODULES)
