"""Qwen3-MoE: grouped-query attention with q/k norms, half-split rope, softmax router, no shared expert."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig, MoeConfig
from hetero.models.families.common import (
    INV_FREQ,
    MAX_EXPERTS,
    MAX_LAYERS,
    Expected,
    FusedExperts,
    Keys,
    attention_tensors,
    expert_tensors,
    gguf_heads,
    gguf_shape,
    kv_heads,
    mlp_tensors,
    rope_from_gguf,
    rope_from_hf,
    shell_tensors,
)

if TYPE_CHECKING:
    import torch

NAME = "qwen3_moe"
HF_ARCHITECTURES = ("Qwen3MoeForCausalLM",)
HF_MODEL_TYPES = ("qwen3_moe",)
GGUF_ARCHS = ("qwen3moe",)
SKIP_HF = (INV_FREQ,)
RENAME_HF: tuple[tuple[str, str], ...] = ()
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' Qwen3MoeConfig. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("use_sliding_window", False, False)
    heads, hidden = k.integer("num_attention_heads"), k.integer("hidden_size")
    dim = k.integer("head_dim", hidden // heads)
    n_layers = k.integer("num_hidden_layers", high=MAX_LAYERS)
    context = k.integer("max_position_embeddings", 32768, high=1 << 30)
    experts_key = "num_experts" if k.has("num_experts") else "num_local_experts"
    n_experts = k.integer(experts_key, high=MAX_EXPERTS)
    step = k.integer("decoder_sparse_step", 1)
    dense = {layer for layer in range(n_layers) if (layer + 1) % step}
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("num_experts_per_tok", 8, high=n_experts),
        intermediate_size=k.integer("moe_intermediate_size"),
        norm_topk=k.flag("norm_topk_prob", False),
        dense_layers=tuple(sorted(dense | set(k.layers("mlp_only_layers", n_layers)))),
    )
    return ModelConfig(
        family=NAME,
        model_type=k.text("model_type", "qwen3_moe"),
        vocab_size=k.integer("vocab_size"),
        hidden_size=hidden,
        n_layers=n_layers,
        n_heads=heads,
        n_kv_heads=kv_heads(k, "num_key_value_heads", heads, min(4, heads)),
        head_dim=dim,
        intermediate_size=k.integer("intermediate_size", 6144),
        rms_norm_eps=k.number("rms_norm_eps", 1e-6),
        max_context=context,
        rope=rope_from_hf(k, dim, context, interleaved=False),
        tie_word_embeddings=k.flag("tie_word_embeddings", False),
        qk_norm=True,
        moe=moe,
        attention_bias=k.flag("attention_bias", False),
    )


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError.

    The format has no word on renormalising the top-k weights; this architecture does it.
    """
    k = Keys(meta, where, "qwen3moe.")
    heads, hidden, dim = gguf_heads(k)
    n_layers = k.integer("block_count", high=MAX_LAYERS)
    context = k.integer("context_length", high=1 << 30)
    moe = _moe_from_gguf(k, shapes, n_layers)
    return ModelConfig(
        family=NAME,
        model_type="qwen3_moe",
        vocab_size=gguf_shape(shapes, "model.embed_tokens.weight", 2, where)[0],
        hidden_size=hidden,
        n_layers=n_layers,
        n_heads=heads,
        n_kv_heads=kv_heads(k, "attention.head_count_kv", heads),
        head_dim=dim,
        intermediate_size=k.integer("feed_forward_length", 1),
        rms_norm_eps=k.number("attention.layer_norm_rms_epsilon"),
        max_context=context,
        rope=rope_from_gguf(k, dim, context, interleaved=False),
        tie_word_embeddings="lm_head.weight" not in shapes,
        qk_norm=True,
        moe=moe,
        attention_bias="model.layers.0.self_attn.q_proj.bias" in shapes,
    )


def _moe_from_gguf(k: Keys, shapes: Mapping[str, tuple[int, ...]], n_layers: int) -> MoeConfig:
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    dense = (layer for layer in range(n_layers) if f"model.layers.{layer}.mlp.gate.weight" not in shapes)
    dense = (layer for layer in dense if f"model.layers.{layer}.mlp.gate_proj.weight" in shapes)
    return MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("expert_used_count", high=n_experts),
        intermediate_size=k.integer("expert_feed_forward_length"),
        norm_topk=True,
        dense_layers=tuple(dense),
    )


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    assert config.moe is not None
    hidden, dim = config.hidden_size, config.head_dim
    out = shell_tensors(hidden, config.vocab_size, config.n_layers)
    for layer in range(config.n_layers):
        p = f"model.layers.{layer}."
        out |= attention_tensors(
            p + "self_attn.", hidden, config.n_heads, config.n_kv_heads, dim, config.attention_bias
        )
        out[p + "self_attn.q_norm.weight"] = Expected((dim,), "small")
        out[p + "self_attn.k_norm.weight"] = Expected((dim,), "small")
        if config.is_moe_layer(layer):
            out |= expert_tensors(p + "mlp.", hidden, config.moe.intermediate_size, config.moe.n_experts)
        else:
            out |= mlp_tensors(p + "mlp.", hidden, config.intermediate_size)
    return out


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
