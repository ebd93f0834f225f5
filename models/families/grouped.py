"""What the families with grouped-query attention share: reading a configuration, and the tensors of a model.

A family reads the common part here and replaces what is its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from hetero.models.config import ModelConfig
from hetero.models.families.common import (
    MAX_LAYERS,
    Expected,
    Keys,
    attention_tensors,
    feed_forward_tensors,
    gguf_heads,
    gguf_shape,
    kv_heads,
    rope_from_gguf,
    rope_from_hf,
    shell_tensors,
)

MAX_CONTEXT = 1 << 30


def config_of_hf(
    k: Keys,
    family: str,
    *,
    context: int,
    eps: float,
    theta: float = 10000.0,
    partial: float | None = None,
    interleaved: bool = False,
    kv_default: int | None = None,
) -> ModelConfig:
    """The common part of a config.json; the keywords are the architecture's defaults in transformers.

    Raises ModelError naming a missing or wrong key. `intermediate_size` may be that of the experts.
    """
    heads, hidden = k.integer("num_attention_heads"), k.integer("hidden_size")
    dim = k.integer("head_dim", hidden // heads)
    length = k.integer("max_position_embeddings", context, high=MAX_CONTEXT)
    return ModelConfig(
        family=family,
        model_type=k.text("model_type", family),
        vocab_size=k.integer("vocab_size"),
        hidden_size=hidden,
        n_layers=k.integer("num_hidden_layers", high=MAX_LAYERS),
        n_heads=heads,
        n_kv_heads=kv_heads(k, "num_key_value_heads", heads, kv_default),
        head_dim=dim,
        intermediate_size=k.integer("intermediate_size"),
        rms_norm_eps=k.number("rms_norm_eps", eps),
        max_context=length,
        rope=rope_from_hf(k, dim, length, interleaved=interleaved, theta=theta, partial=partial),
        tie_word_embeddings=k.flag("tie_word_embeddings", False),
        attention_bias=k.flag("attention_bias", False),
    )


def config_of_gguf(
    k: Keys,
    shapes: Mapping[str, tuple[int, ...]],
    family: str,
    *,
    partial: bool = False,
    interleaved: bool = False,
) -> ModelConfig:
    """The common part of GGUF metadata; `partial` architectures may rotate less than a head. Raises ModelError."""
    heads, hidden, dim = gguf_heads(k, partial=partial)
    rotated = k.integer("rope.dimension_count", dim, high=dim)
    length = k.integer("context_length", high=MAX_CONTEXT)
    return ModelConfig(
        family=family,
        model_type=family,
        vocab_size=gguf_shape(shapes, "model.embed_tokens.weight", 2, k.where)[0],
        hidden_size=hidden,
        n_layers=k.integer("block_count", high=MAX_LAYERS),
        n_heads=heads,
        n_kv_heads=kv_heads(k, "attention.head_count_kv", heads),
        head_dim=dim,
        intermediate_size=k.integer("feed_forward_length", 1),
        rms_norm_eps=k.number("attention.layer_norm_rms_epsilon"),
        max_context=length,
        rope=rope_from_gguf(k, rotated, length, interleaved=interleaved),
        tie_word_embeddings="lm_head.weight" not in shapes,
        attention_bias="model.layers.0.self_attn.q_proj.bias" in shapes,
    )


def model_tensors(config: ModelConfig) -> dict[str, Expected]:
    """Every tensor of a model: attention with its biases, routed and shared experts or dense MLPs; no q/k norms."""
    hidden = config.hidden_size
    out = shell_tensors(hidden, config.vocab_size, config.n_layers)
    heads = config.n_heads, config.n_kv_heads, config.head_dim
    for layer in range(config.n_layers):
        p = f"model.layers.{layer}."
        out |= attention_tensors(p + "self_attn.", hidden, *heads, config.attention_bias)
        out |= feed_forward_tensors(config, layer)
    return out


def norm_tensors(config: ModelConfig, q_width: int, k_width: int) -> dict[str, Expected]:
    """The q and k norms of every layer."""
    out = {}
    for layer in range(config.n_layers):
        out[f"model.layers.{layer}.self_attn.q_norm.weight"] = Expected((q_width,), "small")
        out[f"model.layers.{layer}.self_attn.k_norm.weight"] = Expected((k_width,), "small")
    return out
