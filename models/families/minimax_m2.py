"""MiniMax-M2: q and k normed over their full width, half of a head rotated, a sigmoid router with correction bias."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, wide_norm_attention
from hetero.models.config import ModelConfig, MoeConfig
from hetero.models.families import mixtral
from hetero.models.families.common import MAX_EXPERTS, Expected, FusedExperts, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors, norm_tensors

if TYPE_CHECKING:
    import torch

NAME = "minimax_m2"
HF_ARCHITECTURES = ("MiniMaxM2ForCausalLM",)
HF_MODEL_TYPES = ("minimax_m2",)
GGUF_ARCHS = ("minimax-m2",)
RENAME_HF = (*mixtral.RENAME_HF, (r"\.mlp\.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"))
SKIP_HF = mixtral.SKIP_HF
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' MiniMaxM2Config. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("attention_bias", False, False)
    k.refuse_unless("qk_norm_type", "per_layer", "per_layer")
    k.refuse_unless("use_qk_norm", True, True)
    k.refuse_unless("scoring_func", "sigmoid", "sigmoid")
    k.refuse_unless("use_routing_bias", True, True)
    k.refuse_unless("shared_intermediate_size", 0, 0)
    dim = k.integer("head_dim", 128)
    share = k.integer("rotary_dim", dim, high=dim) / dim
    base = config_of_hf(k, NAME, context=196608, eps=1e-6, theta=5e6, partial=share, kv_default=8)
    n_experts = k.integer(k.any_of("num_local_experts", "num_experts"), 256, high=MAX_EXPERTS)
    top_k = k.integer("num_experts_per_tok", 8, high=n_experts)
    moe = MoeConfig(n_experts, top_k, base.intermediate_size, scoring="sigmoid", correction_bias=True)
    return replace(base, moe=moe)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "minimax-m2.")
    k.refuse_unless("expert_gating_func", 2, 2)
    base = config_of_gguf(k, shapes, NAME, partial=True)
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    top_k = k.integer("expert_used_count", high=n_experts)
    inter = k.integer("expert_feed_forward_length", base.intermediate_size)
    return replace(base, moe=MoeConfig(n_experts, top_k, inter, scoring="sigmoid", correction_bias=True))


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    dim = config.head_dim
    return model_tensors(config) | norm_tensors(config, config.n_heads * dim, config.n_kv_heads * dim)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, wide_norm_attention)
