"""GGUF files of the checkpoints in `tests.tiny_moe`: the reference's own weights under GGUF's names and keys.

The layout is that of llama.cpp's converter (its `conversion/` folder), written down again with the `gguf` package:
q and k rows in rope pairs for llama, granitemoe and bailingmoe; gate and up apart; Llama 4 and gpt-oss transposed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.tiny import load_reference
from tests.tiny_gguf import add_tokenizer

Floats = npt.NDArray[np.float32]

ARCHS = {
    "MixtralForCausalLM": "llama",
    "OlmoeForCausalLM": "olmoe",
    "MiniMaxM2ForCausalLM": "minimax-m2",
    "GptOssForCausalLM": "gpt-oss",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeSharedForCausalLM": "granitemoe",
    "HunYuanMoEV1ForCausalLM": "hunyuan-moe",
    "BailingMoeForCausalLM": "bailingmoe",
    "BailingMoeV2ForCausalLM": "bailingmoe2",
    "Llama4ForCausalLM": "llama4",
    "HYV3ForCausalLM": "hy_v3",
    "Ernie4_5_MoeForCausalLM": "ernie4_5-moe",
}
_TOP = {"model.embed_tokens": "token_embd", "model.word_embeddings": "token_embd", "model.norm": "output_norm"}
_TOP["lm_head"] = "output"
_LAYER = (
    (r"input_layernorm", "attn_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"self_attn\.([qkv])_proj", r"attn_\1"),
    (r"self_attn\.o_proj|attention\.dense", "attn_output"),
    (r"(?:self_attn|attention)\.([qk])(?:_norm|uery_layernorm|ey_layernorm)", r"attn_\1_norm"),
    (r"attention\.query_key_value", "attn_qkv"),
    (r"(?:mlp|block_sparse_moe|feed_forward)\.(?:gate|router|gate\.wg|router\.layer)", "ffn_gate_inp"),
    (r"(?:mlp|feed_forward)\.shared_(?:mlp|experts?)\.(gate|up|down)_proj", r"ffn_\1_shexp"),
    (r"shared_mlp\.output_linear", "ffn_down_shexp"),
    (r"(?:mlp|feed_forward)\.(gate|up|down)_proj", r"ffn_\1"),
)
_BIAS = re.compile(r"mlp\.(gate\.)?(moe_statics\.)?(e_score_correction_bias|expert_bias)")
_EXPERTS = re.compile(r"\w+\.experts\.(gate_up|down)_proj(_bias)?")
_ONE = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


def gguf_of(directory: Path, path: Path, **keys: float | str | list[bool]) -> Path:
    """The checkpoint in `directory` as a GGUF file of F32 tensors; `keys` (without the arch prefix) are added."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    arch = ARCHS[config["architectures"][0]]
    writer = gguf.GGUFWriter(path, arch)
    for key, value in (_keys(arch, config) | keys).items():
        kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        kinds[list] = writer.add_array
        kinds[value.__class__](f"{arch}.{key}", value)
    add_tokenizer(writer, config["vocab_size"])
    tensors = _tensors(arch, config, load_reference(directory).state_dict()) | _rope_factors(config)
    for name, value in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(value, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _rope_factors(c: Mapping[str, Any]) -> dict[str, Floats]:
    """Llama 3's scaling as divisors of the frequencies, here without a range to blend in."""
    rope = c.get("rope_parameters") or {}
    if rope.get("rope_type") != "llama3":
        return {}
    assert rope["low_freq_factor"] == rope["high_freq_factor"]
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, c["head_dim"], 2) / c["head_dim"])
    longest = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    return {"rope_freqs.weight": np.where(wavelengths > longest, rope["factor"], 1.0).astype(np.float32)}


def _tensors(arch: str, c: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Floats]:
    out: dict[str, Floats] = {}
    stacks: dict[str, dict[int, Floats]] = {}
    for name, tensor in state.items():
        value = tensor.detach().float().numpy()
        if not name.startswith("model.layers."):
            stem, _, kind = name.rpartition(".")
            out[f"{_TOP[stem]}.{kind}"] = value
            continue
        _, _, layer, rest = name.split(".", 3)
        one = _ONE.fullmatch(rest)
        if one:
            stacks.setdefault(f"blk.{layer}.ffn_{one[2]}_exps.weight", {})[int(one[1])] = value
        else:
            out |= {f"blk.{layer}.{n}": v for n, v in _layer(arch, c, rest, value)}
    out |= {name: np.stack([parts[e] for e in sorted(parts)]) for name, parts in stacks.items()}
    if c.get("norm_head"):
        out["output.weight"] = out["output.weight"] / (np.linalg.norm(out["output.weight"], axis=0) + 1e-7)
    if c.get("tie_word_embeddings"):
        out.pop("output.weight", None)
    return out


def _layer(arch: str, c: Mapping[str, Any], rest: str, value: Floats) -> Iterator[tuple[str, Floats]]:
    if _BIAS.fullmatch(rest):
        yield "exp_probs_b" if arch == "hy_v3" else "exp_probs_b.bias", value.reshape(-1)
    elif rest == "self_attn.sinks":
        yield "attn_sinks.weight", value
    elif experts := _EXPERTS.fullmatch(rest):
        yield from _experts(arch, experts[1], "bias" if experts[2] else "weight", value)
    elif rest == "shared_mlp.input_linear.weight":
        gate, up = np.split(value, 2)
        yield "ffn_gate_shexp.weight", gate
        yield "ffn_up_shexp.weight", up
    else:
        yield from _plain(arch, c, rest, value)


def _experts(arch: str, part: str, kind: str, value: Floats) -> Iterator[tuple[str, Floats]]:
    if kind == "weight" and arch in ("gpt-oss", "llama4"):
        value = value.swapaxes(1, 2)
    if part == "down":
        yield f"ffn_down_exps.{kind}", value
    elif arch == "gpt-oss":
        yield f"ffn_gate_exps.{kind}", value[:, ::2]
        yield f"ffn_up_exps.{kind}", value[:, 1::2]
    else:
        gate, up = np.split(value, 2, axis=1)
        yield f"ffn_gate_exps.{kind}", gate
        yield f"ffn_up_exps.{kind}", up


def _plain(arch: str, c: Mapping[str, Any], rest: str, value: Floats) -> Iterator[tuple[str, Floats]]:
    stem, _, kind = rest.rpartition(".")
    name = next(m.expand(to) for pattern, to in _LAYER if (m := re.fullmatch(pattern, stem)))
    if arch == "gpt-oss" and name == "ffn_norm":
        name = "post_attention_norm"
    if arch == "bailingmoe" and name == "attn_qkv":
        dim, groups = c["head_dim"], c["num_key_value_heads"]
        q, k, v = np.split(value, [c["num_attention_heads"] * dim, (c["num_attention_heads"] + groups) * dim])
        yield "attn_q.weight", _paired(q, c["num_attention_heads"])
        yield "attn_k.weight", _paired(k, groups)
        yield "attn_v.weight", v
        return
    if arch in ("llama", "granitemoe") and name in ("attn_q", "attn_k"):
        value = _paired(value, c["num_attention_heads" if name == "attn_q" else "num_key_value_heads"])
    yield f"{name}.{kind}", value


def _paired(w: Floats, heads: int) -> Floats:
    return w.reshape(heads, 2, len(w) // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def _keys(arch: str, c: Mapping[str, Any]) -> dict[str, Any]:
    rope = c.get("rope_parameters") or {"rope_theta": c.get("rope_theta", 10000.0)}
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    theta = rope["rope_theta"]
    if "alpha" in rope:
        theta *= rope["alpha"] ** (dim / (dim - 2))
    partial = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0))
    out = {
        "block_count": c["num_hidden_layers"],
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c.get("intermediate_size_mlp", c["intermediate_size"]),
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.key_length": dim,
        "attention.value_length": dim,
        "attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
        "rope.freq_base": float(theta),
        "rope.dimension_count": int(dim * partial),
        "vocab_size": c["vocab_size"],
        "expert_count": c.get("num_experts") or c.get("moe_num_experts") or c["num_local_experts"],
        "expert_used_count": c.get("moe_topk") or c.get("moe_k") or c["num_experts_per_tok"],
    }
    if rope.get("rope_type") == "yarn":
        out |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"]}
        out["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return out | _OWN_KEYS.get(arch, lambda c: {})(c)


def _bailing(c: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "leading_dense_block_count": c["first_k_dense_replace"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_weights_scale": c.get("routed_scaling_factor", 1.0),
        "expert_shared_count": c["num_shared_experts"],
        "expert_weights_norm": c["norm_topk_prob"],
    }


_OWN_KEYS = {
    "olmoe": lambda c: {"attention.clamp_kqv": c["clip_qkv"]} if c["clip_qkv"] else {},
    "minimax-m2": lambda c: {"expert_feed_forward_length": c["intermediate_size"], "expert_gating_func": 2},
    "gpt-oss": lambda c: {
        "attention.sliding_window": c["sliding_window"],
        "expert_feed_forward_length": c["intermediate_size"],
    },
    "granitemoe": lambda c: {
        "attention.scale": c["attention_multiplier"],
        "embedding_scale": c["embedding_multiplier"],
        "residual_scale": c["residual_multiplier"],
        "logit_scale": c["logits_scaling"],
        "expert_shared_feed_forward_length": c.get("shared_intermediate_size", 0),
    },
    "hunyuan-moe": lambda c: {
        "expert_feed_forward_length": c["intermediate_size"],
        "expert_shared_feed_forward_length": c["intermediate_size"],
        "expert_shared_count": 1,
    },
    "hy_v3": lambda c: {
        "leading_dense_block_count": c["mlp_layer_types"].count("dense"),
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_feed_forward_length": c["moe_intermediate_size"] * c["num_shared_experts"],
        "expert_weights_norm": True,
        "expert_weights_scale": c["router_scaling_factor"],
        "expert_gating_func": 2,
    },
    "ernie4_5-moe": lambda c: {
        "leading_dense_block_count": c["moe_layer_start_index"],
        "interleave_moe_layer_step": c["moe_layer_interval"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_count": c["moe_num_shared_experts"],
        "expert_shared_feed_forward_length": c["moe_intermediate_size"] * c["moe_num_shared_experts"],
    },
    "bailingmoe": _bailing,
    "bailingmoe2": lambda c: _bailing(c)
    | {
        "expert_shared_feed_forward_length": c["moe_shared_expert_intermediate_size"],
        "expert_gating_func": 2,
        "expert_group_count": c["n_group"],
        "expert_group_used_count": c["topk_group"],
    },
    "llama4": lambda c: {
        "interleave_moe_layer_step": c["interleave_moe_layer_step"],
        "expert_feed_forward_length": c["intermediate_size"],
    },
}
