"""GGUF files of the tiny Qwen checkpoints that `tests.tiny` makes, with the changes that llama.cpp's converter makes:

experts are stacked, zero-centred norms get their one, A_log becomes -exp(A_log), Qwen3-Next's joint projection is taken
apart, and Qwen3.5's value heads go from grouped by key head to tiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file

from tests.tiny_gguf import add_tokenizer

Floats = npt.NDArray[np.float32]
ARCHS = {
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2_moe": "qwen2moe",
    "qwen3_next": "qwen3next",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5": "qwen35",
}
_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
}
_NAMES |= {f"self_attn.{p}_proj.{kind}": f"attn_{p}.{kind}" for p in "qkv" for kind in ("weight", "bias")}
_NAMES |= {f"mlp.{p}_proj.weight": f"ffn_{p}.weight" for p in ("gate", "up", "down")}
_NAMES |= {f"mlp.experts.{p}.weight": f"ffn_{p}_exps.weight" for p in ("gate", "up", "down")}
_NAMES |= {f"mlp.shared_expert.{p}_proj.weight": f"ffn_{p}_shexp.weight" for p in ("gate", "up", "down")}
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def qwen_gguf(directory: Path, path: Path, *, type: str = "F32", fused: bool = False, **metadata: int) -> Path:
    """Write the checkpoint `directory` as `path`. `type` is that of all matrices but routers, gates and convolutions.

    `fused` leaves Qwen3-Next's joint projection as files of 2025 have it; `metadata` adds integer keys.
    """
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    c = raw.get("text_config", raw)
    arch = ARCHS[raw["model_type"]]
    writer = gguf.GGUFWriter(path, arch)
    _add_metadata(writer, arch, c)
    add_tokenizer(writer)
    for key, value in metadata.items():
        writer.add_uint32(f"{arch}.{key}", value)
    for name, values in _converted(arch, c, _read(directory), fused).items():
        small = values.ndim == 1 or "gate_inp" in name or "conv1d" in name
        kind = Type.F32 if small or values.shape[-1] % gguf.GGML_QUANT_SIZES[Type[type]][0] else Type[type]
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _read(directory: Path) -> dict[str, Floats]:
    """The text model's tensors with experts stacked."""
    out: dict[str, Floats] = {}
    experts: dict[str, dict[int, Floats]] = {}
    for name, values in load_file(directory / "model.safetensors").items():
        name = name.replace("model.language_model.", "model.")
        if ".visual." in name:
            continue
        if ".mlp.experts." not in name:
            out[name] = values
            continue
        prefix, rest = name.split(".experts.")
        expert, part, _ = rest.split(".")
        experts.setdefault(f"{prefix}.experts.{part.removesuffix('_proj')}.weight", {})[int(expert)] = values
    return out | {name: np.stack([some[e] for e in sorted(some)]) for name, some in experts.items()}


def _converted(arch: str, c: Mapping[str, Any], weights: Mapping[str, Floats], fused: bool) -> dict[str, Floats]:
    hybrid = arch in ("qwen3next", "qwen35moe", "qwen35")
    out: dict[str, Floats] = {}
    for name, values in weights.items():
        if hybrid and name.endswith("norm.weight") and "linear_attn" not in name:
            values = values + 1
        if name in _TOP:
            out[_TOP[name]] = values
            continue
        _, _, layer, rest = name.split(".", 3)
        if rest == "post_attention_layernorm.weight":
            out[f"blk.{layer}.{'post_attention_norm' if hybrid else 'ffn_norm'}.weight"] = values
        elif rest == "linear_attn.in_proj_qkvz.weight":
            out |= {f"blk.{layer}.{n}.weight": v for n, v in _joint(c, values, fused).items()}
        else:
            values = _of_delta(arch, c, rest, values) if "linear_attn" in rest else values
            out[f"blk.{layer}.{_NAMES[rest]}"] = values.reshape(-1) if rest.endswith("expert_gate.weight") else values
    return {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in out.items()}


def _joint(c: Mapping[str, Any], values: Floats, fused: bool) -> dict[str, Floats]:
    """Rows of each key head's q, k, v and z, all heads' q first, then k, v; z apart."""
    if fused:
        return {"ssm_in": values}
    heads, key = c["linear_num_key_heads"], c["linear_key_head_dim"]
    value = c["linear_num_value_heads"] // heads * c["linear_value_head_dim"]
    by_head = values.reshape(heads, 2 * key + 2 * value, -1)
    parts = np.split(by_head, [key, 2 * key, 2 * key + value], axis=1)
    q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
    return {"attn_qkv": np.concatenate([q, k, v]), "attn_gate": z}


def _of_delta(arch: str, c: Mapping[str, Any], name: str, values: Floats) -> Floats:
    if name.endswith("A_log"):
        values = -np.exp(values)
    elif name.endswith("conv1d.weight"):
        values = values[:, 0]
    if arch == "qwen3next" or name.endswith("norm.weight"):
        return values
    width = c["linear_value_head_dim"] if "qkv" in name or "_z." in name or "conv" in name or "out" in name else 1
    if name.endswith("out_proj.weight"):
        return _tiled(c, values.T, width).T
    first = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"] if "qkv" in name or "conv" in name else 0
    return np.concatenate([values[:first], _tiled(c, values[first:], width)])


def _tiled(c: Mapping[str, Any], values: Floats, width: int) -> Floats:
    """Rows of value heads, `width` each, from grouped by key head to tiled."""
    keys = c["linear_num_key_heads"]
    grouped = values.reshape(keys, c["linear_num_value_heads"] // keys, width, -1)
    return grouped.swapaxes(0, 1).reshape(values.shape)


def _add_metadata(w: gguf.GGUFWriter, arch: str, c: Mapping[str, Any]) -> None:
    rope = c["rope_parameters"]
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    w.add_name(f"tiny {arch}")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c.get("intermediate_size", 96))
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(dim * rope.get("partial_rotary_factor", 1.0)))
    w.add_vocab_size(c["vocab_size"])
    if "num_experts" in c:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if "mrope_section" in rope:
        w.add_rope_dimension_sections([*rope["mrope_section"], 0])
    if "linear_num_key_heads" in c:
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        w.add_full_attention_interval(4)
