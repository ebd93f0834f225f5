"""The dense Llama family: grouped-query attention, half-split rope, SwiGLU. A mixture of experts with none routed."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig
from hetero.models.families.common import (
    INV_FREQ,
    MAX_LAYERS,
    Expected,
    Keys,
    attention_tensors,
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

NAME = "llama"
HF_ARCHITECTURES = ("LlamaForCausalLM",)
HF_MODEL_TYPES = ("llama",)
GGUF_ARCHS = ("llama",)
SKIP_HF = (INV_FREQ,)
RENAME_HF: tuple[tuple[str, str], ...] = ()
FUSED_EXPERTS = None
SKIP_GGUF: tuple[str, ...] = ("rope_freqs.weight",)  # read into the configuration (`RopeConfig.freq_factors`)
PERMUTED_QK = True
"""GGUF files of this architecture hold the rows of q and k in rope pairs; HF files hold them in halves."""


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' LlamaConfig. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("mlp_bias", False, False)
    heads = k.integer("num_attention_heads")
    hidden = k.integer("hidden_size")
    dim = k.integer("head_dim", hidden // heads)
    context = k.integer("max_position_embeddings", 2048, high=1 << 30)
    return ModelConfig(
        family=NAME,
        model_type=k.text("model_type", "llama"),
        vocab_size=k.integer("vocab_size"),
        hidden_size=hidden,
        n_layers=k.integer("num_hidden_layers", high=MAX_LAYERS),
        n_heads=heads,
        n_kv_heads=kv_heads(k, "num_key_value_heads", heads),
        head_dim=dim,
        intermediate_size=k.integer("intermediate_size"),
        rms_norm_eps=k.number("rms_norm_eps", 1e-6),
        max_context=context,
        rope=rope_from_hf(k, dim, context, interleaved=False),
        tie_word_embeddings=k.flag("tie_word_embeddings", False),
        attention_bias=k.flag("attention_bias", False),
    )


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "llama.")
    heads, hidden, dim = gguf_heads(k)
    context = k.integer("context_length", high=1 << 30)
    return ModelConfig(
        family=NAME,
        model_type="llama",
        vocab_size=gguf_shape(shapes, "model.embed_tokens.weight", 2, where)[0],
        hidden_size=hidden,
        n_layers=k.integer("block_count", high=MAX_LAYERS),
        n_heads=heads,
        n_kv_heads=kv_heads(k, "attention.head_count_kv", heads),
        head_dim=dim,
        intermediate_size=k.integer("feed_forward_length"),
        rms_norm_eps=k.number("attention.layer_norm_rms_epsilon"),
        max_context=context,
        rope=rope_from_gguf(k, dim, context, interleaved=False),
        tie_word_embeddings="lm_head.weight" not in shapes,
        attention_bias="model.layers.0.self_attn.q_proj.bias" in shapes,
    )


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    hidden = config.hidden_size
    out = shell_tensors(hidden, config.vocab_size, config.n_layers)
    for layer in range(config.n_layers):
        p = f"model.layers.{layer}."
        out |= attention_tensors(
            p + "self_attn.", hidden, config.n_heads, config.n_kv_heads, config.head_dim, config.attention_bias
        )
        out |= mlp_tensors(p + "mlp.", hidden, config.intermediate_size)
    return out


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
