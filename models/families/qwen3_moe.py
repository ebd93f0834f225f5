"""Qwen3-MoE: grouped-query attention with q/k norms, half-split rope, softmax router, no shared expert."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig, MoeConfig
from hetero.models.families.common import INV_FREQ, MAX_EXPERTS, Expected, FusedExperts, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors, norm_tensors

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
    if not k.has("intermediate_size"):
        k = Keys({**raw, "intermediate_size": 6144}, where)
    base = config_of_hf(k, NAME, context=32768, eps=1e-6, kv_default=min(4, k.integer("num_attention_heads")))
    n_layers = base.n_layers
    n_experts = k.integer("num_experts" if k.has("num_experts") else "num_local_experts", high=MAX_EXPERTS)
    step = k.integer("decoder_sparse_step", 1)
    dense = {layer for layer in range(n_layers) if (layer + 1) % step}
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("num_experts_per_tok", 8, high=n_experts),
        intermediate_size=k.integer("moe_intermediate_size"),
        norm_topk=k.flag("norm_topk_prob", False),
        dense_layers=tuple(sorted(dense | set(k.layers("mlp_only_layers", n_layers)))),
    )
    return replace(base, qk_norm=True, moe=moe)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError.

    The format has no word on renormalising the top-k weights; this architecture does it.
    """
    k = Keys(meta, where, "qwen3moe.")
    base = config_of_gguf(k, shapes, NAME)
    return replace(base, qk_norm=True, moe=_moe_from_gguf(k, shapes, base.n_layers))


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
    return model_tensors(config) | norm_tensors(config, config.head_dim, config.head_dim)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
