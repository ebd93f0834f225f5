"""Architectures that can be planned from their config.json though this version has no forward pass for them.

Only what takes bytes or time is described: matrices, their shapes and roles, and what a token leaves in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hetero.models.families.common import (
    MAX_EXPERTS,
    MAX_LAYERS,
    Expected,
    Keys,
    attention_tensors,
    expert_tensors,
    mlp_tensors,
    shell_tensors,
)

Attention = Literal["grouped", "latent", "delta"]

ARCHITECTURES: dict[str, Attention] = {
    "DeepseekV32ForCausalLM": "latent",
    "GlmMoeDsaForCausalLM": "latent",
}


@dataclass(frozen=True, slots=True)
class Outline:
    """What planning needs of an architecture; tensors by canonical name, formats not decided yet."""

    architecture: str
    tensors: dict[str, Expected]
    n_layers: int
    hidden_size: int
    vocab_size: int
    max_context: int
    n_experts: int
    top_k: int
    kv_elements_per_token: int
    kv_fixed_elements: int
    recurrent_bytes: int


def outline(raw: Mapping[str, Any], architecture: str, where: str) -> Outline:
    """The outline of a config.json of one of `ARCHITECTURES`. Raises ModelError naming a missing or wrong key."""
    nested = raw.get("text_config")
    k = Keys(nested if isinstance(nested, dict) else raw, where, "")
    kind = ARCHITECTURES[architecture]
    n_layers = k.integer("num_hidden_layers", high=MAX_LAYERS)
    hidden, vocab = k.integer("hidden_size"), k.integer("vocab_size")
    out = shell_tensors(hidden, vocab, n_layers)
    if k.flag("tie_word_embeddings", False):
        del out["lm_head.weight"]
    per_token = fixed = 0
    for layer in range(n_layers):
        tensors, paged, kept = _attention(k, kind, layer, hidden)
        out |= tensors | _mlp(k, layer, hidden)
        per_token, fixed = per_token + paged, fixed + kept
    return Outline(
        architecture=k.text("model_type", architecture),
        tensors=out,
        n_layers=n_layers,
        hidden_size=hidden,
        vocab_size=vocab,
        max_context=k.integer("max_position_embeddings", 131072, high=1 << 30),
        n_experts=_experts(k),
        top_k=k.integer("num_experts_per_tok", high=_experts(k)),
        kv_elements_per_token=per_token,
        kv_fixed_elements=0 if kind == "delta" else fixed,
        recurrent_bytes=4 * fixed if kind == "delta" else 0,
    )


def _experts(k: Keys) -> int:
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    name = next((name for name in names if k.has(name)), names[0])
    return k.integer(name, high=MAX_EXPERTS)


def _mlp(k: Keys, layer: int, hidden: int) -> dict[str, Expected]:
    prefix = f"model.layers.{layer}.mlp."
    if layer < k.integer("first_k_dense_replace", 0, low=0) or layer in k.layers("mlp_only_layers", MAX_LAYERS):
        return mlp_tensors(prefix, hidden, k.integer("intermediate_size"))
    inter = k.integer("moe_intermediate_size" if k.has("moe_intermediate_size") else "intermediate_size")
    out = expert_tensors(prefix, hidden, inter, _experts(k))
    shared = k.integer("shared_expert_intermediate_size", inter * k.integer("n_shared_experts", 0, low=0), low=0)
    return out | mlp_tensors(prefix + "shared_experts.", hidden, shared) if shared else out


def _attention(k: Keys, kind: Attention, layer: int, hidden: int) -> tuple[dict[str, Expected], int, int]:
    """Tensors of one layer, values a token keeps in the cache, and values kept whatever the length."""
    prefix = f"model.layers.{layer}.self_attn."
    if kind == "latent":
        return _latent(k, prefix, hidden)
    if kind == "delta" and (layer + 1) % k.integer("full_attention_interval", 4):
        return _delta(k, prefix, hidden)
    heads = k.integer("num_attention_heads")
    groups, dim = k.integer("num_key_value_heads", heads), k.integer("head_dim", hidden // heads)
    out = attention_tensors(prefix, hidden, heads, groups, dim, k.flag("attention_bias", False))
    if kind == "delta":  # queries come with a gate of their own width
        out[prefix + "q_proj.weight"] = Expected((2 * heads * dim, hidden), "dense")
    return out, 2 * groups * dim, 0


def _latent(k: Keys, prefix: str, hidden: int) -> tuple[dict[str, Expected], int, int]:
    """Multi-head latent attention, with the indexer of sparse attention where the config has one."""
    heads, rank, rope = k.integer("num_attention_heads"), k.integer("kv_lora_rank"), k.integer("qk_rope_head_dim")
    nope, v, q_rank = k.integer("qk_nope_head_dim"), k.integer("v_head_dim"), k.integer("q_lora_rank")
    out = {
        "q_a_proj": (q_rank, hidden),
        "q_b_proj": (heads * (nope + rope), q_rank),
        "kv_a_proj_with_mqa": (rank + rope, hidden),
        "k_b_proj": (heads, rank, nope),
        "v_b_proj": (heads, v, rank),
        "o_proj": (hidden, heads * v),
    }
    kept = rank + rope
    if k.has("index_head_dim"):
        width, index_heads = k.integer("index_head_dim"), k.integer("index_n_heads")
        out |= {"indexer.wq_b": (index_heads * width, q_rank), "indexer.wk": (width, hidden)}
        out["indexer.weights_proj"] = (index_heads, hidden)
        kept += width
    return {f"{prefix}{name}.weight": Expected(shape, "dense") for name, shape in out.items()}, kept, 0


def _delta(k: Keys, prefix: str, hidden: int) -> tuple[dict[str, Expected], int, int]:
    """Gated delta net: a recurrent state of one matrix per value head instead of a cache."""
    key, value = k.integer("linear_key_head_dim"), k.integer("linear_value_head_dim")
    keys, values = k.integer("linear_num_key_heads") * key, k.integer("linear_num_value_heads") * value
    heads = k.integer("linear_num_value_heads")
    shapes = {"in_proj_qkv": (2 * keys + values, hidden), "in_proj_z": (values, hidden)}
    shapes |= {"in_proj_ba": (2 * heads, hidden), "out_proj": (hidden, values)}
    out = {f"{prefix}{name}.weight": Expected(shape, "dense") for name, shape in shapes.items()}
    window = (k.integer("linear_conv_kernel_dim", 4) - 1) * (2 * keys + values)
    return out, 0, heads * key * value + window
