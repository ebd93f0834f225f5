"""Configurations of Mixtral and the families after it: as the hub spells them, as GGUF does, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hetero.machine.types import ModelError
from hetero.models.card import cards
from hetero.models.checkpoint import open_checkpoint
from hetero.models.config import ModelConfig, Multipliers, RopeConfig
from hetero.models.families import family_for_hf
from hetero.models.families.common import recorded_keys
from tests.moe_gguf import gguf_of
from tests.tiny import tiny_hf
from tests.tiny_moe import MOE_FAMILIES

MINIMAX = cards()["minimax-m2"].config
GPT_OSS = cards()["gpt-oss-20b"].config
GRANITE = cards()["granite-3.1-3b-a800m"].config
HUNYUAN = cards()["hunyuan-a13b"].config
LING = cards()["ling-mini-2.0"].config
SCOUT, MAVERICK = cards()["llama-4-scout"].config, cards()["llama-4-maverick"].config
OLMOE, MIXTRAL = cards()["olmoe-1b-7b"].config, cards()["mixtral-8x7b"].config
LING_LITE = {
    "architectures": ["BailingMoeForCausalLM"],
    "vocab_size": 126464,
    "hidden_size": 2048,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
    "rope_theta": 600000,
}


def read(raw: dict[str, Any]) -> ModelConfig:
    return family_for_hf(raw, "config.json").config_from_hf(raw)


def nested(raw: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return raw | {"text_config": raw["text_config"] | changes}


def test_minimax_turns_as_much_of_a_head_as_rotary_dim_says() -> None:
    c = read({k: v for k, v in MINIMAX.items() if k != "rope_parameters"} | {"head_dim": 128, "rotary_dim": 64})
    assert (c.head_dim, c.rope) == (128, RopeConfig(5e6, 64))
    assert c.moe is not None
    assert (c.moe.scoring, c.moe.correction_bias, c.moe.norm_topk) == ("sigmoid", True, True)


@pytest.mark.parametrize("base", ["qwen3-30b-a3b", "minimax-m2", "mixtral-8x7b", "gpt-oss-20b"])
def test_key_heads_may_be_more_than_the_architectures_default(base: str) -> None:
    assert read(cards()[base].config | {"num_attention_heads": 96, "num_key_value_heads": 32}).n_kv_heads == 32


def test_gpt_oss_has_windows_in_even_layers_and_yarn_by_default() -> None:
    c = read(GPT_OSS)
    assert c.windows == (128, 0) * 12
    assert [c.window(layer) for layer in (0, 1)] == [128, None]
    assert (c.rope.kind, c.rope.theta, c.rope.factor, c.rope.original_context) == ("yarn", 150000.0, 32.0, 4096)
    assert not c.rope.truncate
    types = ["full_attention", "sliding_attention"] * 12
    assert read(GPT_OSS | {"layer_types": types, "sliding_window": 64}).windows == (0, 64) * 12


def test_gpt_oss_files_may_name_the_layers_with_windows(tmp_path: Path) -> None:
    directory = tiny_hf("gpt_oss", tmp_path)
    for given, wanted in (([True, True, False], (24, 24, 0)), (3, (24, 24, 0)), (1, (0, 0, 0))):
        path = gguf_of(directory, tmp_path / "m.gguf", **{"attention.sliding_window_pattern": given})
        with open_checkpoint(path) as c:
            assert c.config.windows == wanted
    path = gguf_of(directory, tmp_path / "m.gguf", **{"attention.sliding_window_pattern": [True]})
    with pytest.raises(ModelError, match="sliding_window_pattern is of 1 layers"):
        open_checkpoint(path)


def test_granite_divides_its_logits_and_scales_its_attention() -> None:
    c = read(GRANITE)
    assert c.multipliers == Multipliers(12.0, 0.22, 1 / 6, 0.015625)
    assert c.attention_scale == 0.015625
    assert read(MIXTRAL).attention_scale == 128**-0.5


def test_hunyuans_alpha_is_a_larger_base() -> None:
    c = read(HUNYUAN)
    assert c.rope == RopeConfig(pytest.approx(11158839.9251), 128)
    assert c.moe is not None
    assert (c.moe.n_experts, c.moe.top_k, c.moe.shared_intermediate_size) == (64, 8, 3072)


def test_ling_and_ring_of_both_generations() -> None:
    old, new = read(LING_LITE), read(LING)
    assert old.moe is not None
    assert new.moe is not None
    assert (old.moe.scoring, old.moe.shared_intermediate_size, old.rope.dim) == ("softmax", 2816, 128)
    assert (new.moe.scoring, new.moe.n_group, new.moe.topk_group, new.moe.scaling) == ("sigmoid", 8, 4, 2.5)
    assert (new.rope.dim, new.qk_norm, new.is_moe_layer(0), new.is_moe_layer(1)) == (64, True, False, True)


def test_llama_4_scout_and_maverick() -> None:
    scout, maverick = read(SCOUT), read(MAVERICK)
    assert scout.chunked is not None
    assert scout.chunked.global_layers == tuple(range(3, 48, 4))
    assert (scout.chunked.chunk, scout.chunked.floor, scout.chunked.temperature) == (8192, 8192, 0.1)
    assert (scout.qk_norm, scout.rope.kind, scout.rope.interleaved) == (True, "llama3", True)
    assert all(scout.is_moe_layer(layer) for layer in range(48))
    assert [maverick.is_moe_layer(layer) for layer in range(4)] == [False, True, False, True]
    assert (maverick.qk_norm, maverick.intermediate_size) == (False, 16384)
    early = nested(SCOUT, no_rope_layers=[], attn_temperature_tuning=4, layer_types=None)
    assert read(early) == scout
    assert read(nested(SCOUT, attn_temperature_tuning=False)).chunked == replace(scout.chunked, floor=0)
    assert read(nested(SCOUT, no_rope_layers=[1, 0] * 24)).chunked == replace(
        scout.chunked, global_layers=tuple(range(1, 48, 2))
    )


def test_llama_4_as_the_hub_has_it_within_a_vision_model(tmp_path: Path) -> None:
    text = tiny_hf("llama4", tmp_path)
    whole = tmp_path / "whole"
    whole.mkdir()
    config = json.loads((text / "config.json").read_text())
    outer = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "text_config": config}
    (whole / "config.json").write_text(json.dumps(outer))
    tensors = {f"language_model.{name}": w for name, w in load_file(text / "model.safetensors").items()}
    tensors |= {"vision_model.class_embedding": np.zeros(4), "multi_modal_projector.linear_1.weight": np.zeros((4, 4))}
    save_file(tensors, whole / "model.safetensors")
    with open_checkpoint(text) as a, open_checkpoint(whole) as b:
        assert a.config == b.config
        assert a.index.tensors == b.index.tensors
        name = "model.layers.1.mlp.experts.up.weight"
        np.testing.assert_array_equal(a.read_rows(name, expert=5), b.read_rows(name, expert=5))
        assert any("vision" in note for note in b.notes)


def test_llama_4_files_say_none_of_their_constants_but_no_window(tmp_path: Path) -> None:
    directory = tiny_hf("llama4", tmp_path)
    with open_checkpoint(gguf_of(directory, tmp_path / "m.gguf")) as c:
        assert c.config.chunked is not None
        assert (c.config.chunked.chunk, c.config.chunked.global_layers) == (8192, (3,))
    path = gguf_of(directory, tmp_path / "whole.gguf", **{"attention.sliding_window": 0})
    with open_checkpoint(path) as c:
        assert c.config.chunked is not None
        assert (c.config.chunked.chunk, c.config.chunked.global_layers) == (0, ())


@pytest.mark.parametrize("family", sorted(set(MOE_FAMILIES) - {"llama4", "llama4_maverick"}))
def test_gguf_and_hugging_face_agree(family: str, tmp_path: Path) -> None:
    directory = tiny_hf(family, tmp_path)
    with open_checkpoint(directory) as a, open_checkpoint(gguf_of(directory, tmp_path / "m.gguf")) as b:
        assert {(t.name, t.shape, t.role) for t in a.index.tensors} == {
            (t.name, t.shape, t.role) for t in b.index.tensors
        }
        near = replace(b.config, model_type=a.config.model_type, rms_norm_eps=a.config.rms_norm_eps)
        near = replace(near, multipliers=a.config.multipliers, clip_qkv=a.config.clip_qkv, moe=a.config.moe)
        near = replace(near, norm_head=a.config.norm_head)  # which GGUF's heads already are
        dense = family.startswith(("llama4", "bailing"))  # elsewhere the one intermediate size is the experts'
        near = replace(near, intermediate_size=near.intermediate_size if dense else a.config.intermediate_size)
        assert replace(near, rope=replace(near.rope, theta=a.config.rope.theta)) == a.config
        assert b.config.rope.theta == pytest.approx(a.config.rope.theta, rel=1e-6)
        assert b.config.rms_norm_eps == pytest.approx(a.config.rms_norm_eps, rel=1e-6)
        assert a.config.moe is not None
        assert b.config.moe is not None
        assert replace(b.config.moe, scaling=a.config.moe.scaling) == a.config.moe


FOR_TRAINING = {"attention_dropout", "initializer_range", "output_router_logits", "router_aux_loss_coef"}
FOR_TRAINING |= {"router_jitter_noise", "pretraining_tp", "use_cache"}
FOR_TEXT = {"bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "eod_token_id"}
FOR_OTHERS = {"architectures", "dtype", "transformers_version"}
NOT_OF_THE_MODEL = {"num_local_experts"}  # of `tests.tiny_moe.COMMON`, which Bailing's reference writes as it is
OVERRULED = {"no_rope_layer_interval"}  # by no_rope_layers
FLOAT32_ANYWAY = {"enable_moe_fp32_combine"}
IGNORED_HF = FOR_TRAINING | FOR_TEXT | FOR_OTHERS | NOT_OF_THE_MODEL | OVERRULED | FLOAT32_ANYWAY
IGNORED_GGUF = {"vocab_size", "expert_shared_count"}  # both are the shapes of tensors


@pytest.mark.parametrize("family", sorted(MOE_FAMILIES))
def test_every_key_of_a_configuration_is_looked_up_or_known_to_be_beside_the_point(family: str, tmp_path: Path) -> None:
    directory = tiny_hf(family, tmp_path)
    raw = json.loads((directory / "config.json").read_text())
    with recorded_keys() as keys:
        read(raw)
    assert set(raw) - keys <= IGNORED_HF
    with recorded_keys() as keys, open_checkpoint(gguf_of(directory, tmp_path / "m.gguf")) as c:
        found = {key for key in c.metadata if not key.startswith(("general.", "tokenizer."))}
    assert {key.partition(".")[2] for key in found - keys} <= IGNORED_GGUF


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (MIXTRAL | {"sliding_window": 4096}, ["sliding_window", "4096"]),
        (MIXTRAL | {"num_experts_per_tok": 9}, ["num_experts_per_tok", "9", "8"]),
        (MIXTRAL | {"hidden_act": "gelu"}, ["hidden_act", "'gelu'"]),
        (OLMOE | {"clip_qkv": -1}, ["clip_qkv", "-1"]),
        (MINIMAX | {"head_dim": 128, "rotary_dim": 130}, ["rotary_dim", "130", "128"]),
        (MINIMAX | {"qk_norm_type": "per_head"}, ["qk_norm_type", "'per_head'"]),
        (MINIMAX | {"scoring_func": "softmax"}, ["scoring_func"]),
        (GPT_OSS | {"swiglu_limit": 5.0}, ["swiglu_limit", "5.0"]),
        (GPT_OSS | {"attention_bias": False}, ["attention_bias"]),
        (GPT_OSS | {"layer_types": ["full_attention"] * 3}, ["layer_types", "3", "24"]),
        (GPT_OSS | {"layer_types": ["odd"] * 24}, ["layer_types", "sliding_attention or full_attention"]),
        (GPT_OSS | {"layer_types": 7}, ["layer_types", "7"]),
        (GRANITE | {"logits_scaling": 0}, ["logits_scaling", "0"]),
        (HUNYUAN | {"moe_topk": [8, 4] * 16}, ["moe_topk", "whole number"]),
        (HUNYUAN | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ["alpha"]),
        (HUNYUAN | {"use_cla": True}, ["use_cla"]),
        (LING | {"n_group": 7}, ["256 experts in 7 groups"]),
        (LING | {"use_qkv_bias": True}, ["use_qkv_bias"]),
        (LING | {"partial_rotary_factor": 1.5}, ["partial_rotary_factor", "1.5", "at most 1"]),
        (LING | {"norm_head": True}, ["norm_head"]),
        (nested(SCOUT, num_experts_per_tok=2), ["num_experts_per_tok", "2"]),
        (nested(SCOUT, no_rope_layers=[1, 0]), ["no_rope_layers", "48"]),
        (nested(SCOUT, no_rope_layers=[2] * 48), ["no_rope_layers"]),
        (nested(SCOUT, layer_types=["full_attention"] * 48), ["layer_types", "chunked"]),
        (nested(SCOUT, moe_layers=[48]), ["moe_layers", "47"]),
    ],
)
def test_variants_that_would_run_wrongly_are_refused_by_name(raw: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelError) as e:
        read(raw)
    for word in ["config.json", *words]:
        assert word in e.value.message
    assert e.value.hint
