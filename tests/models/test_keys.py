"""Every key of a config.json is looked up by its family or listed here with the reason why it changes nothing.

A key that is read and not used, or not read at all, is how models go subtly wrong (a scaling factor, a norm's switch),
so a new family's keys have to be looked at one by one.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hetero.machine.types import ModelError
from hetero.models.checkpoint import open_checkpoint
from hetero.models.families import FAMILIES as MODULES
from hetero.models.families import family_for_hf
from hetero.models.families.common import recorded_keys
from hetero.models.families.ignored import EVERYWHERE, OWN, unknown_keys
from hetero.models.families.unsupported import NEEDS_GGUF, NEEDS_HF
from tests.tiny import FAMILIES, _config_class, tiny_hf

# Keys of config.json files as their authors publish them, besides those that transformers' classes have: only names
# that no class of it knows show whether the list of ignored keys is long enough. Values are those of the models.
_COMMON: dict[str, Any] = {
    "torch_dtype": "bfloat16", "transformers_version": "4.57.1", "use_cache": True, "attention_dropout": 0.0,
    "initializer_range": 0.02, "_name_or_path": "x", "bos_token_id": 0, "eos_token_id": [1, 2], "pad_token_id": 3,
    "unsloth_fixed": True, "sliding_window": None, "rope_scaling": None,
}  # fmt: skip
_DEEPSEEK = {
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001, "ep_size": 1,
    "pretraining_tp": 1, "seq_aux": True, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_key_value_heads": 4, "hidden_act": "silu",
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
        "scale_fmt": "ue8m0",
    },
}  # fmt: skip
_OLD = {
    "add_cross_attention": False, "bad_words_ids": None, "chunk_size_feed_forward": 0, "diversity_penalty": 0.0,
    "do_sample": False, "early_stopping": False, "encoder_no_repeat_ngram_size": 0, "id2label": {"0": "LABEL_0"},
    "is_decoder": False, "is_encoder_decoder": False, "length_penalty": 1.0, "max_length": 20, "min_length": 0,
    "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1, "top_k": 50,
    "output_attentions": False, "output_hidden_states": False, "output_scores": False, "pruned_heads": {},
    "remove_invalid_values": False, "repetition_penalty": 1.0, "return_dict": True, "temperature": 1.0, "top_p": 1.0,
    "return_dict_in_generate": False, "tf_legacy_loss": False, "tie_encoder_decoder": False, "torchscript": False,
    "typical_p": 1.0, "use_bfloat16": False, "forced_bos_token_id": 3, "problem_type": "x", "prefix": "",
}  # fmt: skip
_QWEN = {
    "use_sliding_window": False, "max_window_layers": 28, "output_router_logits": False, "router_aux_loss_coef": 0.001,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu",
}  # fmt: skip
HUB: dict[str, dict[str, Any]] = {
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "kimi_k25": {
        "text_config": _OLD | {"auto_map": {}, "aux_loss_alpha": 0.001, "ep_size": 1, "tokenizer_class": None},
        "ignore_index": -100, "media_placeholder_token_id": 163605, "use_unified_vision_chunk": True,
        "video_placeholder": "<|video|>", "auto_map": {"AutoConfig": "x.y"}, "vision_config": {"mm_hidden_size": 1152},
    },
    "glm4_moe": {"pretraining_tp": 1, "num_nextn_predict_layers": 1, "use_qk_norm": False},
    "glm_moe_dsa": {"ep_size": 1, "pretraining_tp": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "qwen3_moe": _QWEN | {"auto_map": {}, "compression_config": {"quant_method": "compressed-tensors"}},
    "qwen3_next": _QWEN | {"full_attention_interval": 4, "seq_length": 262144},
    "qwen3_5_moe": {
        "image_token_id": 248056, "vision_start_token_id": 248053, "vision_end_token_id": 248054,
        "text_config": {"attn_output_gate": True, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 0,
                        "mtp_use_dedicated_embeddings": False, "full_attention_interval": 4, "dtype": "bfloat16"},
    },
    "qwen2_moe": _QWEN,
    "llama": {"pretraining_tp": 1, "mlp_bias": False, "torch_dtype": "bfloat16"},
    "llama4": {"for_llm_compressor": False, "attn_scale": 0.1, "cache_implementation": "hybrid"},
    "gpt_oss": {
        "experts_per_token": 2, "initial_context_length": 4096, "router_aux_loss_coef": 0.9,
        "output_router_logits": False,
        "quantization_config": {"modules_to_not_convert": ["x"], "quant_method": "mxfp4"},
    },
    "minimax_m2": {
        "attn_type_list": [1, 1], "layernorm_full_attention_alpha": 1.0, "layernorm_full_attention_beta": 1.0,
        "layernorm_linear_attention_alpha": 1.0, "layernorm_linear_attention_beta": 1.0, "layernorm_mlp_alpha": 1.0,
        "layernorm_mlp_beta": 1.0, "max_model_len": 196608, "mlp_intermediate_size": 8192, "mtp_transformer_layers": 1,
        "num_mtp_modules": 0, "postnorm": False, "qk_norm_type": "per_layer", "router_jitter_noise": 0.0,
        "shared_moe_mode": "sigmoid", "use_mtp": False, "scoring_func": "sigmoid", "use_routing_bias": True,
        "shared_intermediate_size": 0, "use_qk_norm": True, "auto_map": {},
    },
    "hunyuan_moe": {
        "add_classification_head": False, "anyres_pooling_size": 2, "anyres_vit_max_image_size": None,
        "cla_share_factor": 2, "class_num": 0, "dense_list": [64, 0], "eod_token_id": 5, "group_limited_greedy": False,
        "im_end_id": 6, "im_newline_id": 12, "im_start_id": 5, "kv_lora_rank": None, "mask_init_id": 13,
        "max_image_size": None, "moe_drop_tokens": False, "moe_layer_num_skipped": 0,
        "moe_random_routing_dropped_token": False, "n_group": False, "norm_type": "rms", "num_media_embeds": 257,
        "org_vocab_size": 128167, "pad_id": 1, "pool_type": "last", "position_embedding_xdrope": False,
        "q_lora_rank": None, "qk_nope_head_dim": None, "routed_scaling_factor": False, "sep_token_id": 4,
        "skip_cls_token": False, "text_end_id": 8, "text_start_id": 7, "topk_group": False, "use_cla": False,
        "use_mixed_mlp_moe": True, "use_mla": False, "use_qk_norm": True, "use_rotary_pos_emb": True,
        "v_head_dim": None, "video_end_id": 10, "video_start_id": 9, "vit_add_patchemb_bias": False,
    },
    "bailing_moe": {
        "embedding_dropout": 0.0, "multi_gate": False, "norm_softmax": False, "output_dropout": 0.0,
        "use_qkv_bias": False, "use_bias": False, "use_rmsnorm": True,
        "max_window_layers": 28, "output_router_logits": False,
    },
    "bailing_moe_v2": {
        "embedding_dropout": 0.0, "output_dropout": 0.0, "mtp_loss_scaling_factor": 0, "num_nextn_predict_layers": 0,
        "router_dtype": "fp32", "use_rmsnorm": True, "max_window_layers": 20, "use_sliding_window": False,
    },
    "granite_moe": {"router_aux_loss_coef": 0.0, "output_router_logits": False, "sliding_window": None},
    "mixtral": {"router_jitter_noise": 0.0, "sliding_window": None, "output_router_logits": False},
    "olmoe": {"clip_qkv": None, "norm_topk_prob": False, "output_router_logits": False},
}  # fmt: skip


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


def published(name: str) -> dict[str, Any]:
    """A tiny family's configuration with the keys of real files beside transformers'."""
    raw, more = config_of(name), HUB.get(name, {})
    inner = more.get("text_config", {})
    outer = {key: value for key, value in more.items() if key != "text_config"}
    nested = {"text_config": raw["text_config"] | inner} if "text_config" in raw else inner
    return _COMMON | raw | outer | nested


def unknown(raw: Mapping[str, Any]) -> list[str]:
    family = family_for_hf(raw, "config.json")
    with recorded_keys() as looked_up:
        family.config_from_hf(raw)
    return unknown_keys(raw, looked_up, family.NAME)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_key_is_looked_up_or_listed(name: str) -> None:
    left = unknown(config_of(name))
    assert not left, f"{name}: read these keys, refuse what they may say, or list why they change nothing: {left}"


@pytest.mark.parametrize("name", FAMILIES)
def test_keys_of_published_files_are_known_and_those_listed_change_nothing(name: str) -> None:
    raw = published(name)
    assert unknown(raw) == []
    family = family_for_hf(raw, "config.json")
    with recorded_keys() as looked_up:
        config = family.config_from_hf(raw)
    bare = {key: value for key, value in raw.items() if key in looked_up or key in ("architectures", "text_config")}
    assert family.config_from_hf(bare) == config


def test_nothing_is_listed_without_a_file_that_has_it() -> None:
    """An entry that no family needs any more has to go."""
    unused: set[str] = set()
    for name in FAMILIES:
        for raw in (config_of(name), published(name)):
            with recorded_keys() as looked_up:
                family_for_hf(raw, "config.json").config_from_hf(raw)
            unused |= {key.removeprefix("text_config.") for key in names_of(raw) if key not in looked_up}
    for table in (EVERYWHERE, *OWN.values()):
        for pattern in table:
            assert any(re.fullmatch(pattern, key) for key in unused), pattern


def test_an_unknown_key_is_noted_and_harmless(tmp_path: Path) -> None:
    folder = tiny_hf("qwen3_moe", tmp_path)
    with open_checkpoint(folder) as c:
        assert c.notes == ()
    raw = json.loads((folder / "config.json").read_text())
    more = {"new_gate": True, "off": None, "deep": {"er": {"est": 1}}, "\x1b[31m": 1}
    (folder / "config.json").write_text(json.dumps(raw | more))
    with open_checkpoint(folder) as c:
        (note,) = c.notes
    assert note.endswith("config.json: 3 keys that this version does not know: 'new_gate', 'deep.er.est', '\\x1b[31m'")


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


LISTS = ("mlp_layer_types", "layer_types", "compress_ratios", "mlp_only_layers", "no_rope_layers", "moe_layers")


@pytest.mark.parametrize("name", FAMILIES)
def test_lists_of_anything_are_refused_or_understood(name: str) -> None:
    """A list's entries may be lists themselves, which no set and no table takes."""
    for key in LISTS:
        for value in ([[]] * 64, [{}] * 64, [None] * 64, [[1]], ["sparse", ["dense"]] * 40):
            raw = config_of(name)
            inner = raw.get("text_config")
            raw |= {"text_config": inner | {key: value}} if inner else {key: value}
            with contextlib.suppress(ModelError):
                family_for_hf(raw, "config.json").config_from_hf(raw)
