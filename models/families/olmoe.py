"""OLMoE: q and k normed over their full width, optionally clipped q, k and v, unnormalised top-k weights."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, wide_norm_attention
from hetero.models.config import ModelConfig, MoeConfig
from hetero.models.families.common import INV_FREQ, MAX_EXPERTS, Expected, FusedExperts, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors, norm_tensors

if TYPE_CHECKING:
    import torch

NAME = "olmoe"
HF_ARCHITECTURES = ("OlmoeForCausalLM",)
HF_MODEL_TYPES = ("olmoe",)
GGUF_ARCHS = ("olmoe",)
RENAME_HF: tuple[tuple[str, str], ...] = ()
SKIP_HF = (INV_FREQ,)
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' OlmoeConfig. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    base = config_of_hf(k, NAME, context=4096, eps=1e-5)
    n_experts = k.integer(k.any_of("num_experts", "num_local_experts"), 64, high=MAX_EXPERTS)
    top_k = k.integer("num_experts_per_tok", 8, high=n_experts)
    moe = MoeConfig(n_experts, top_k, base.intermediate_size, norm_topk=k.flag("norm_topk_prob", False))
    return replace(base, moe=moe, clip_qkv=k.number("clip_qkv") if k.has("clip_qkv") else None)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError.

    The format has no word on renormalising the top-k weights; this architecture does not.
    """
    k = Keys(meta, where, "olmoe.")
    base = config_of_gguf(k, shapes, NAME)
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    top_k = k.integer("expert_used_count", high=n_experts)
    inter = k.integer("expert_feed_forward_length", base.intermediate_size)
    clip = k.number("attention.clamp_kqv") if k.has("attention.clamp_kqv") else None
    return replace(base, moe=MoeConfig(n_experts, top_k, inter, norm_topk=False), clip_qkv=clip)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    dim = config.head_dim
    return model_tensors(config) | norm_tensors(config, config.n_heads * dim, config.n_kv_heads * dim)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, wide_norm_attention)
