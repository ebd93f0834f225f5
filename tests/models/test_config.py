"""Hyper-parameters mean the same from a config.json in either spelling and from GGUF metadata."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetero.machine.types import ModelError
from hetero.models.checkpoint import open_checkpoint
from hetero.models.config import MlaConfig, MoeConfig, RopeConfig
from hetero.models.families import family_for_gguf, family_for_hf
from hetero.models.families.common import recorded_keys
from hetero.models.outline import index_of_config
from tests.tiny import tiny_config, tiny_gguf, tiny_hf

# The values of the models' own config.json files.
V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "attention_bias": False,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
KIMI = V3 | {
    "model_type": "kimi_k2",
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_nextn_predict_layers": 0,
    "rope_theta": 50000.0,
    "rope_scaling": V3["rope_scaling"] | {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0},
    "routed_scaling_factor": 2.827,
    "vocab_size": 163840,
}
V2 = V3 | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "hidden_size": 5120,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1536,
    "topk_group": 3,
    "topk_method": "group_limited_greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 16.0,
    "num_hidden_layers": 60,
    "rope_scaling": V3["rope_scaling"] | {"mscale": 0.707, "mscale_all_dim": 0.707},
}
V2_LITE = V2 | {
    "q_lora_rank": None,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 64,
    "num_attention_heads": 16,
    "routed_scaling_factor": 1.0,
}
QWEN: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}


def read(raw: dict[str, Any]) -> Any:
    return family_for_hf(raw, "config.json").config_from_hf(raw)


def test_deepseek_v3_is_read_as_published() -> None:
    c = read(V3)
    assert (c.family, c.model_type, c.n_layers, c.hidden_size, c.head_dim) == ("deepseek", "deepseek_v3", 61, 7168, 192)
    assert c.mla == MlaConfig(1536, 512, 128, 64, 128, 1e-6)
    assert c.moe == MoeConfig(
        256, 8, 2048, 2048, 3, "sigmoid", True, 2.5, 8, 4, "top2", correction_bias=True, dense_layers=()
    )
    assert c.rope == RopeConfig(10000.0, 64, True, "yarn", 40.0, 4096, 32.0, 1.0, mscale=1.0, mscale_all_dim=1.0)
    assert c.mtp_layers == 1
    assert c.kv_elements_per_token == 61 * 576
    assert [c.is_moe_layer(i) for i in (0, 2, 3, 60)] == [False, False, True, True]


def test_kimi_k2_keeps_its_own_yarn_betas_and_single_group() -> None:
    c = read(KIMI)
    assert c.model_type == "kimi_k2"
    assert (c.rope.beta_fast, c.rope.beta_slow, c.rope.theta, c.rope.factor) == (1.0, 1.0, 50000.0, 32.0)
    assert (c.moe.n_group, c.moe.topk_group, c.moe.scaling, c.moe.n_experts) == (1, 1, 2.827, 384)
    assert c.mtp_layers == 0


def test_deepseek_v2_scores_groups_by_their_maximum() -> None:
    c = read(V2)
    moe = c.moe
    assert (moe.scoring, moe.group_score, moe.n_group, moe.topk_group) == ("softmax", "max", 8, 3)
    assert (moe.norm_topk, moe.scaling, moe.correction_bias) == (False, 16.0, False)
    assert moe.shared_intermediate_size == 2 * 1536
    assert (c.rope.mscale, c.rope.mscale_all_dim) == (0.707, 0.707)


def test_deepseek_v2_lite_has_one_query_matrix_and_no_groups() -> None:
    c = read(V2_LITE | {"n_group": 8, "topk_group": 3})  # greedy routing looks at no groups
    assert c.mla.q_lora_rank is None
    assert (c.moe.n_group, c.moe.topk_group) == (1, 1)


def test_defaults_are_those_of_transformers() -> None:
    drop = ("n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor", "scoring_func", "topk_method")
    drop += ("first_k_dense_replace", "n_shared_experts", "moe_layer_freq", "rms_norm_eps", "num_experts_per_tok")
    assert read({k: v for k, v in V3.items() if k not in drop}).moe == read(V3).moe
    qwen = read({k: v for k, v in QWEN.items() if k not in ("norm_topk_prob", "mlp_only_layers", "head_dim")})
    assert not qwen.moe.norm_topk
    assert qwen.head_dim == 64
    llama = read({k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "rope_scaling", "rope_theta")})
    assert (llama.n_kv_heads, llama.rope) == (32, RopeConfig(10000.0, 128))


@pytest.mark.parametrize("raw", [V3, V2, KIMI, QWEN, LLAMA])
def test_both_spellings_of_rope_mean_the_same(raw: dict[str, Any]) -> None:
    new = {k: v for k, v in raw.items() if k not in ("rope_scaling", "rope_theta")}
    scaling = dict(raw["rope_scaling"] or {})
    kind = scaling.pop("type", None) or scaling.pop("rope_type", "default")
    new["rope_parameters"] = {"rope_type": kind, "rope_theta": raw["rope_theta"], **scaling}
    assert read(new) == read(raw)


def test_qwen_layers_without_experts_follow_both_keys() -> None:
    c = read(QWEN | {"num_hidden_layers": 8, "decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert [i for i in range(8) if c.is_moe_layer(i)] == [1, 5, 7]
    tensors = family_for_hf(QWEN, "").expected_tensors(c)
    assert "model.layers.3.mlp.gate_proj.weight" in tensors
    assert "model.layers.5.mlp.experts.gate.weight" in tensors


def test_llama3_and_linear_rope_scaling() -> None:
    assert read(LLAMA).rope == RopeConfig(500000.0, 128, False, "llama3", 8.0, 8192)
    assert read(LLAMA | {"rope_scaling": {"type": "linear", "factor": 4}}).rope.factor == 4.0


def test_architectures_decide_before_model_type() -> None:
    assert family_for_hf({"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2"}, "").NAME == "deepseek"
    assert family_for_hf({"model_type": "kimi_k2"}, "").NAME == "deepseek"


@pytest.mark.parametrize(
    ("base", "change", "words"),
    [
        (LLAMA, {"hidden_size": None}, ["hidden_size", "missing"]),
        (LLAMA, {"hidden_size": "big"}, ["hidden_size", "'big'", "whole number"]),
        (LLAMA, {"hidden_size": True}, ["hidden_size", "True"]),
        (LLAMA, {"num_hidden_layers": 10**18}, ["num_hidden_layers", "4096"]),
        (LLAMA, {"num_hidden_layers": 0}, ["num_hidden_layers", "0"]),
        (LLAMA, {"rms_norm_eps": float("nan")}, ["rms_norm_eps", "nan", "finite"]),
        (LLAMA, {"rms_norm_eps": 10**400}, ["rms_norm_eps", "finite"]),
        (LLAMA, {"rope_theta": float("inf")}, ["rope_theta", "inf"]),
        (V3, {"rope_theta": 1.0}, ["rope_theta", "1.0", "above 1"]),
        (LLAMA, {"num_key_value_heads": 5}, ["num_key_value_heads", "5", "32"]),
        (LLAMA, {"hidden_act": "gelu"}, ["hidden_act", "'gelu'", "'silu'"]),
        (LLAMA, {"mlp_bias": True}, ["mlp_bias"]),
        (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2}}, ["'dynamic'", "yarn"]),
        (LLAMA, {"rope_scaling": {"type": "yarn"}}, ["rope_scaling.factor", "missing"]),
        (LLAMA, {"rope_scaling": [1]}, ["rope_scaling", "[1]"]),
        (LLAMA, {"rope_scaling": {"full": {"rope_theta": 1}}}, ["per layer type"]),
        (LLAMA, {"partial_rotary_factor": 0.5}, ["partial_rotary_factor", "0.5"]),
        (LLAMA, {"head_dim": 63}, ["63", "even"]),
        (QWEN, {"num_experts_per_tok": 129}, ["num_experts_per_tok", "129", "128"]),
        (QWEN, {"num_experts": 10**9}, ["num_experts"]),
        (QWEN, {"mlp_only_layers": [48]}, ["mlp_only_layers", "47"]),
        (QWEN, {"use_sliding_window": True}, ["use_sliding_window"]),
        (V3, {"topk_method": "greedy"}, ["topk_method", "greedy", "noaux_tc"]),
        (V3, {"scoring_func": "softmax"}, ["softmax"]),
        (V3, {"n_group": 7}, ["256 experts in 7 groups"]),
        (V3, {"topk_group": 9}, ["of which 9"]),
        (V3, {"attention_bias": True}, ["attention_bias"]),
        (V2, {"topk_method": "noaux_tc"}, ["noaux_tc"]),
    ],
)  # fmt: skip
def test_bad_or_unknown_settings_are_refused_by_name(base: Any, change: Any, words: list[str]) -> None:
    with pytest.raises(ModelError) as e:
        read(base | change)
    for word in ["config.json", *words]:
        assert word in e.value.message
    assert e.value.hint


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"architectures": ["Sphinx2ForCausalLM"]}, ["'Sphinx2ForCausalLM'", "not supported"]),
        ({"architectures": ["KimiLinearForCausalLM"]}, ["KimiLinearForCausalLM", "known but not supported yet"]),
        ({"architectures": ["DeepseekV41ForCausalLM"]}, ["n-gram tables"]),
        ({"architectures": ["MiMoV2FlashForCausalLM"]}, ["heads of two widths"]),
        ({"architectures": ["\x1b[2Jevil"]}, ["\\x1b[2Jevil"]),
        ({"model_type": "bert"}, ["'bert'"]),
        ({"architectures": []}, ["neither architectures nor model_type"]),
        ({}, ["neither architectures nor model_type"]),
    ],
)
def test_unsupported_architectures_are_named(raw: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelError) as e:
        family_for_hf(raw, "config.json")
    assert "\x1b" not in e.value.message
    for word in words:
        assert word in e.value.message


def test_unknown_architectures_list_the_supported_ones_once() -> None:
    with pytest.raises(ModelError, match="'x' is not supported") as gguf:
        family_for_gguf("x", "m.gguf")
    with pytest.raises(ModelError, match="'X' is not supported") as hf:
        family_for_hf({"architectures": ["X"]}, "config.json")
    for problem, name in ((gguf.value, "qwen3moe"), (hf.value, "Qwen3MoeForCausalLM")):
        assert name in problem.hint
        assert name not in problem.message


@pytest.mark.parametrize("method", [{"quant_method": "gptq", "bits": 4}, {"quant_method": "mxfp4"}])
def test_rows_that_are_no_whole_groups_are_refused_by_a_config_alone(method: dict[str, Any]) -> None:
    raw = tiny_config("qwen3moe", moe_intermediate_size=40) | {"architectures": ["Qwen3MoeForCausalLM"]}
    with pytest.raises(ModelError, match=r"c\.json: .* rows of \d+ weights; expected a multiple of the \d+ in a group"):
        index_of_config(raw | {"quantization_config": method}, "m", "c.json")
    index_of_config(raw | {"quantization_config": {"quant_method": "fp8"}}, "m", "c.json")


def test_gguf_and_hugging_face_agree_for_deepseek(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "mscale": 0.707}
    scaling |= {"mscale_all_dim": 0.707, "beta_fast": 16.0, "beta_slow": 2.0}
    config = tiny_config("deepseek2", rope_scaling=scaling)
    path = tiny_gguf("deepseek2", tmp_path / "m.gguf", rope_scaling=scaling)
    hf = read(config | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"})
    with open_checkpoint(path) as c:
        eps = c.config.rms_norm_eps
        assert eps == pytest.approx(1e-6)
        assert c.config.mla.latent_norm_eps == eps
        ours = replace(c.config, rms_norm_eps=1e-6, mla=replace(c.config.mla, latent_norm_eps=1e-6))
        ours = replace(ours, moe=replace(ours.moe, scaling=hf.moe.scaling))
        assert ours == hf


def test_gguf_deepseek_without_query_latent_is_known_by_its_tensors(tmp_path: Path) -> None:
    path = tiny_gguf(
        "deepseek2", tmp_path / "m.gguf", q_lora_rank=None, scoring_func="softmax", n_group=None, norm_topk_prob=False
    )
    with open_checkpoint(path) as c:
        assert c.config.mla.q_lora_rank is None
        assert (c.config.moe.scoring, c.config.moe.group_score, c.config.moe.n_group) == ("softmax", "max", 1)
        assert c.config.model_type == "deepseek_v2"
        assert "model.layers.0.self_attn.q_proj.weight" in c


@pytest.mark.parametrize("width", ["v_head_dim", "kv_lora_rank"])
def test_gguf_latent_widths_that_the_kernels_cannot_split_are_refused(tmp_path: Path, width: str) -> None:
    path = tiny_gguf("deepseek2", tmp_path / "m.gguf", **{width: 24})
    with pytest.raises(ModelError, match="is 24; expected a multiple of 16"):
        open_checkpoint(path)


def test_gguf_gating_is_told_by_the_correction_bias_where_the_key_is_missing(tmp_path: Path) -> None:
    path = tiny_gguf("deepseek2", tmp_path / "m.gguf", metadata={"deepseek2.expert_gating_func": 0})
    with open_checkpoint(path) as c:
        assert c.config.moe.scoring == "sigmoid"
        assert c.config.moe.correction_bias


def test_gguf_correction_bias_is_found_with_and_without_its_suffix(tmp_path: Path) -> None:
    path = tiny_gguf("deepseek2", tmp_path / "m.gguf")
    short = tmp_path / "short.gguf"
    raw = path.read_bytes()
    # `exp_probs_b` alone is what some converters write; ".bias" is cut and the header padded by a longer model name.
    assert raw.count(b"exp_probs_b.bias") == 2
    short.write_bytes(_rename(raw, b"exp_probs_b.bias", b"exp_probs_b"))
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    with open_checkpoint(path) as a, open_checkpoint(short) as b:
        np.testing.assert_array_equal(a.read_f32(name), b.read_f32(name))


def _rename(raw: bytes, old: bytes, new: bytes) -> bytes:
    """Rename tensors in a header, keeping its length with a longer `general.name`."""
    import struct

    saved = 0
    at = raw.find(old)
    while at >= 0:
        start = raw.rfind(b"blk.", 0, at)
        whole = raw[start : at + len(old)]
        changed = whole.replace(old, new)
        raw = raw[: start - 8] + struct.pack("<Q", len(changed)) + changed + raw[at + len(old) :]
        saved += len(old) - len(new)
        at = raw.find(old)
    title = b"tiny deepseek2"
    at = raw.find(title)
    longer = title + b"." * saved
    return raw[: at - 8] + struct.pack("<Q", len(longer)) + longer + raw[at + len(title) :]


def test_old_kimi_files_get_the_betas_that_their_converter_lost(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 32.0, "original_max_position_embeddings": 32, "mscale_all_dim": 1.0}
    kimi = {"n_routed_experts": 384, "rope_theta": 50000.0, "n_group": 1, "topk_group": 1, "num_hidden_layers": 2}
    with open_checkpoint(tiny_gguf("deepseek2", tmp_path / "k.gguf", rope_scaling=scaling, **kimi)) as c:
        assert (c.config.rope.beta_fast, c.config.rope.beta_slow) == (1.0, 1.0)
    scaling |= {"beta_fast": 4.0, "beta_slow": 2.0}
    with open_checkpoint(tiny_gguf("deepseek2", tmp_path / "n.gguf", rope_scaling=scaling, **kimi)) as c:
        assert (c.config.rope.beta_fast, c.config.rope.beta_slow) == (4.0, 2.0)
    with open_checkpoint(tiny_gguf("deepseek2", tmp_path / "d.gguf", rope_scaling=scaling | {"beta_fast": 32.0})) as c:
        assert c.config.rope.beta_fast == 32.0


def test_old_v3_files_without_group_keys_get_the_models_groups(tmp_path: Path) -> None:
    size = {"n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": None, "num_hidden_layers": 2}
    with open_checkpoint(tiny_gguf("deepseek2", tmp_path / "m.gguf", **size)) as c:
        assert (c.config.moe.n_group, c.config.moe.topk_group) == (8, 4)


def test_gguf_qwen_always_renormalises(tmp_path: Path) -> None:
    with open_checkpoint(tiny_gguf("qwen3moe", tmp_path / "m.gguf")) as c:
        assert c.config.moe.norm_topk
        assert c.config.qk_norm
        assert not c.config.tie_word_embeddings


def test_gguf_without_an_output_matrix_is_tied(tmp_path: Path) -> None:
    with open_checkpoint(tiny_gguf("llama", tmp_path / "m.gguf", tie_word_embeddings=True)) as c:
        assert c.config.tie_word_embeddings
        assert "lm_head.weight" not in c


def test_llama3_frequency_factors_come_from_their_tensor(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    path = tiny_gguf("llama", tmp_path / "m.gguf", extra={"rope_freqs.weight": factors})
    with open_checkpoint(path) as c:
        assert c.config.rope.freq_factors == tuple(factors.tolist())
    bad = tiny_gguf("llama", tmp_path / "bad.gguf", extra={"rope_freqs.weight": factors * np.nan})
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        open_checkpoint(bad)


def test_gguf_mtp_layers_are_left_out(tmp_path: Path) -> None:
    mtp = {"blk.2.nextn.eh_proj.weight": np.zeros((4, 4)), "blk.2.attn_norm.weight": np.zeros(64)}
    meta = {"deepseek2.nextn_predict_layers": 1, "deepseek2.block_count": 3}
    path = tiny_gguf("deepseek2", tmp_path / "m.gguf", num_hidden_layers=2, extra=mtp, metadata=meta)
    with open_checkpoint(path) as c:
        assert (c.config.n_layers, c.config.mtp_layers) == (2, 1)
        assert not any(t.name.startswith("model.layers.2.") for t in c.index.tensors)


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "deepseek2"])
def test_vocabulary_is_the_rows_of_the_embedding(tmp_path: Path, arch: str) -> None:
    path = tiny_gguf(arch, tmp_path / "m.gguf", vocab_size=512, metadata={f"{arch}.vocab_size": 7})
    with open_checkpoint(path) as c:
        assert c.config.vocab_size == c.index.vocab_size == 512


def test_index_sums_up_the_configuration(tmp_path: Path) -> None:
    with open_checkpoint(tiny_gguf("qwen3moe", tmp_path / "m.gguf", "Q4_0")) as c:
        index = c.index
        assert (index.name, index.architecture, index.n_layers) == ("tiny qwen3moe", "qwen3_moe", 2)
        assert (index.n_experts, index.top_k, index.hidden_size, index.max_context) == (8, 2, 64, 256)
        assert index.kv_elements_per_token == 2 * 2 * 2 * 32
        roles = {t.name.removeprefix("model.layers.0."): t.role for t in index.tensors}
        assert roles["mlp.experts.gate.weight"] == "expert"
        assert roles["self_attn.q_proj.weight"] == roles["model.embed_tokens.weight"] == "dense"
        assert roles["mlp.gate.weight"] == roles["input_layernorm.weight"] == "small"


def test_keys_that_nobody_reads_do_no_harm() -> None:
    assert read(json.loads(json.dumps(V3 | {"note": float("nan"), "quantization": {"deep": [1]}}))) == read(V3)


def test_vision_tensors_are_skipped_by_name_and_counted(tmp_path: Path) -> None:
    with open_checkpoint(tiny_hf("kimi_k25", tmp_path)) as c:
        assert "leaves out 2 tensors of the vision parts" in c.notes[0]
        assert c.config.model_type == "kimi_k2"
        assert "model.layers.0.self_attn.q_a_proj.weight" in c


def test_looked_up_keys_are_recorded_under_their_full_names() -> None:
    rope = {"type": "yarn", "factor": 2, "original_max_position_embeddings": 64}
    with recorded_keys() as keys:
        read({"architectures": ["KimiK25ForConditionalGeneration"], "text_config": V3 | {"rope_scaling": rope}})
    assert {"text_config.hidden_size", "text_config.rope_scaling.factor"} <= keys
    before = set(keys)
    read(LLAMA)
    assert keys == before
