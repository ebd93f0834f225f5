"""Granite 3.x MoE, with and without a shared expert: Mixtral's graph with four constant multipliers."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig, MoeConfig, Multipliers
from hetero.models.families.common import INV_FREQ, MAX_EXPERTS, Expected, FusedExperts, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors

if TYPE_CHECKING:
    import torch

NAME = "granite_moe"
HF_ARCHITECTURES = ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")
HF_MODEL_TYPES = ("granitemoe", "granitemoeshared")
GGUF_ARCHS = ("granitemoe",)
SKIP_HF = (INV_FREQ,)
RENAME_HF = (
    (r"\.block_sparse_moe\.router\.layer\.", ".mlp.gate."),
    (r"\.block_sparse_moe\.input_linear\.", ".mlp.experts.gate_up_proj."),
    (r"\.block_sparse_moe\.output_linear\.", ".mlp.experts.down_proj."),
    (r"\.shared_mlp\.input_linear\.", ".mlp.shared_experts.gate_up_proj."),
    (r"\.shared_mlp\.output_linear\.", ".mlp.shared_experts.down_proj."),
)
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ("rope_freqs.weight",)
PERMUTED_QK = True


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' GraniteMoeSharedConfig. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    base = config_of_hf(k, NAME, context=2048, eps=1e-6)
    n_experts = k.integer(k.any_of("num_local_experts", "num_experts"), 8, high=MAX_EXPERTS)
    top_k = k.integer("num_experts_per_tok", 2, high=n_experts)
    shared = k.integer("shared_intermediate_size", 0, low=0)
    factors = Multipliers(
        embedding=k.number("embedding_multiplier", 1.0),
        residual=k.number("residual_multiplier", 1.0),
        logits=1.0 / k.number("logits_scaling", 1.0),
        attention=k.number("attention_multiplier", 1.0),
    )
    return replace(base, moe=MoeConfig(n_experts, top_k, base.intermediate_size, shared), multipliers=factors)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "granitemoe.")
    base = config_of_gguf(k, shapes, NAME)
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    top_k = k.integer("expert_used_count", high=n_experts)
    inter = k.integer("expert_feed_forward_length", base.intermediate_size)
    shared = k.integer("expert_shared_feed_forward_length", 0, low=0)
    factors = Multipliers(
        embedding=k.number("embedding_scale", 1.0),
        residual=k.number("residual_scale", 1.0),
        logits=1.0 / k.number("logit_scale", 1.0),
        attention=k.optional_number("attention.scale") or None,
    )
    return replace(base, moe=MoeConfig(n_experts, top_k, inter, shared), multipliers=factors)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return model_tensors(config)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
