"""Mixtral: grouped-query attention, half-split rope, a softmax over the chosen experts, no shared expert."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig, MoeConfig
from hetero.models.families.common import INV_FREQ, MAX_EXPERTS, Expected, FusedExperts, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors

if TYPE_CHECKING:
    import torch

NAME = "mixtral"
HF_ARCHITECTURES = ("MixtralForCausalLM",)
HF_MODEL_TYPES = ("mixtral",)
GGUF_ARCHS: tuple[str, ...] = ()
"""GGUF files call themselves llama; those with experts come here (`family_of_gguf`)."""
RENAME_HF = (
    (r"\.block_sparse_moe\.", ".mlp."),
    (r"(\.experts\.\d+)\.w1\.", r"\1.gate_proj."),
    (r"(\.experts\.\d+)\.w2\.", r"\1.down_proj."),
    (r"(\.experts\.\d+)\.w3\.", r"\1.up_proj."),
)
SKIP_HF = (INV_FREQ,)
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ("rope_freqs.weight",)
PERMUTED_QK = True


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' MixtralConfig. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("sliding_window", None, None)
    base = config_of_hf(k, NAME, context=131072, eps=1e-5, theta=1e6, kv_default=8)
    n_experts = k.integer(k.any_of("num_local_experts", "num_experts"), 8, high=MAX_EXPERTS)
    top_k = k.integer("num_experts_per_tok", 2, high=n_experts)
    return replace(base, moe=MoeConfig(n_experts, top_k, base.intermediate_size))


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "llama.")
    base = config_of_gguf(k, shapes, NAME)
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    top_k = k.integer("expert_used_count", high=n_experts)
    inter = k.integer("expert_feed_forward_length", base.intermediate_size)
    return replace(base, moe=MoeConfig(n_experts, top_k, inter))


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return model_tensors(config)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
