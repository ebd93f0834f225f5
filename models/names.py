"""Canonical tensor names: what each file format calls a tensor, and Hugging Face's name for it.

Experts are one stacked tensor `mlp.experts.{gate,up,down}.weight` of shape [E, out, in], whatever the file has.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

_GGUF_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "output_hc_fn.weight": "model.hc_head.fn.weight",
    "output_hc_base.weight": "model.hc_head.base",
    "output_hc_scale.weight": "model.hc_head.scale",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "attn_kv": "self_attn.kv_proj",
    "attn_output_a": "self_attn.o_a_proj",
    "attn_output_b": "self_attn.o_proj",
    "attn_compressor_kv": "self_attn.compressor.kv_proj",
    "attn_compressor_gate": "self_attn.compressor.gate_proj",
    "attn_compressor_norm": "self_attn.compressor.kv_norm",
    "indexer_compressor_kv": "self_attn.indexer.compressor.kv_proj",
    "indexer_compressor_gate": "self_attn.indexer.compressor.gate_proj",
    "indexer_compressor_norm": "self_attn.indexer.compressor.kv_norm",
    "hc_attn_fn": "attn_hc.fn",
    "hc_ffn_fn": "ffn_hc.fn",
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate",
    "ffn_up_exps": "mlp.experts.up",
    "ffn_down_exps": "mlp.experts.down",
    "ffn_gate_up_exps": "mlp.experts.gate_up",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_in": "linear_attn.in_proj_qkvz",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_GGUF_BARE = {
    "exp_probs_b": "mlp.gate.e_score_correction_bias",  # written with and without `.bias`
    "attn_sinks": "self_attn.sinks",
    "ssm_a": "linear_attn.A",
    "ssm_dt": "linear_attn.dt_bias",
    "attn_compressor_ape": "self_attn.compressor.position_bias",
    "indexer_compressor_ape": "self_attn.indexer.compressor.position_bias",
    "hc_attn_base": "attn_hc.base",
    "hc_attn_scale": "attn_hc.scale",
    "hc_ffn_base": "ffn_hc.base",
    "hc_ffn_scale": "ffn_hc.scale",
    "ffn_gate_tid2eid": "mlp.gate.tid2eid",
}
_BLOCK = re.compile(r"blk\.(0|[1-9]\d{0,4})\.((?:indexer\.)?[a-z0-9_]+)(\.weight|\.bias)?")
_DELTA = re.compile(r"blk\.(0|[1-9]\d{0,4})\.ssm_a")
_EXPERT = re.compile(r"(model\.layers\.\d{1,5}\.mlp\.experts\.)(0|[1-9]\d{0,5})\.(gate|up|down)_proj\.(weight|bias)")
_FUSED = re.compile(r"(model\.layers\.\d{1,5}\.mlp\.experts)\.(gate_up|gate|up|down)_proj(?:(?:\.weight)?|[._](bias))")
_LAYER = re.compile(r"(?:model\.layers|blk)\.(\d{1,5})\.")


def delta_layers(names: Iterable[str]) -> set[int]:
    """The layers that a GGUF file with tensors of these names has gated delta nets in."""
    return {int(match[1]) for name in names if (match := _DELTA.fullmatch(name))}


def from_gguf(name: str, deltas: Container[int] = ()) -> str | None:
    """The canonical name of a GGUF tensor, or None where no supported family has it.

    In the layers `deltas` what is called `attn_qkv` belongs to a gated delta net.
    """
    top = _GGUF_TOP.get(name)
    if top is not None:
        return top
    match = _BLOCK.fullmatch(name)
    if match is None:
        return None
    layer, part, kind = match.groups()
    if part in _GGUF_BARE:
        return f"model.layers.{layer}.{_GGUF_BARE[part]}"
    if part == "attn_qkv" and int(layer) in deltas:
        return f"model.layers.{layer}.linear_attn.in_proj_qkv{kind or ''}"
    part = _GGUF_LAYER.get(part)
    return None if part is None or kind is None else f"model.layers.{layer}.{part}{kind}"


def hf_expert(name: str) -> tuple[str, int] | None:
    """(canonical name of the stack, expert) for a per-expert tensor of a Hugging Face file, else None."""
    match = _EXPERT.fullmatch(name)
    return None if match is None else (f"{match[1]}{match[3]}.{match[4]}", int(match[2]))


def hf_fused(name: str) -> tuple[str, str, str] | None:
    """(stem of the experts, `gate_up` or one of its parts or `down`, `weight` or `bias`) of a stack, else None."""
    match = _FUSED.fullmatch(name)
    return None if match is None else (match[1], match[2], match[3] or "weight")


def from_hf(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    """`name` with every rule (regular expression, replacement) of a family applied in turn: the canonical name."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def layer_of(name: str) -> int | None:
    """The layer that a raw or canonical name belongs to, or None."""
    match = _LAYER.match(name)
    return None if match is None else int(match[1])
