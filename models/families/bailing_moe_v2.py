"""Ling and Ring 2.0 (BailingMoeV2): half of a head rotated, q/k norms, DeepSeek-V3's router, leading dense layers."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig, MoeConfig
from hetero.models.families import bailing_moe
from hetero.models.families.common import MAX_EXPERTS, MAX_LAYERS, Expected, Keys, check_groups
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors, norm_tensors

if TYPE_CHECKING:
    import torch

NAME = "bailing_moe_v2"
HF_ARCHITECTURES = ("BailingMoeV2ForCausalLM",)
HF_MODEL_TYPES = ("bailing_moe_v2",)
GGUF_ARCHS = ("bailingmoe2",)
SKIP_HF = bailing_moe.SKIP_HF
RENAME_HF = (
    *bailing_moe.RENAME_HF,
    (r"\.attention\.query_layernorm\.", ".self_attn.q_norm."),
    (r"\.attention\.key_layernorm\.", ".self_attn.k_norm."),
    (r"\.mlp\.gate\.expert_bias$", ".mlp.gate.e_score_correction_bias"),
)
FUSED_EXPERTS = None
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of the published configuration_bailing_moe_v2.py. Raises ModelError."""
    k = Keys(raw, where)
    bailing_moe.refuse_variants(k)
    k.refuse_unless("norm_head", False, False)
    k.refuse_unless("use_qk_norm", True, True)
    k.refuse_unless("score_function", "sigmoid", "sigmoid")
    k.refuse_unless("moe_router_enable_expert_bias", True, True)
    base = config_of_hf(k, NAME, context=32768, eps=1e-6, theta=600000.0, partial=0.5)
    n_experts = k.integer("num_experts", 256, high=MAX_EXPERTS)
    inter, n_shared = k.integer("moe_intermediate_size"), k.integer("num_shared_experts", 1, low=0)
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("num_experts_per_tok", 8, high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=k.integer("moe_shared_expert_intermediate_size", inter) * n_shared,
        first_dense=k.integer("first_k_dense_replace", 0, low=0, high=MAX_LAYERS),
        norm_topk=k.flag("norm_topk_prob", True),
        scaling=k.number("routed_scaling_factor", 1.0),
        n_group=k.integer("n_group", 8),
        topk_group=k.integer("topk_group", 4),
    )
    mtp = k.integer("num_nextn_predict_layers", 0, low=0, high=MAX_LAYERS)
    return replace(base, moe=_router(moe, where), qk_norm=True, mtp_layers=mtp)


def _router(moe: MoeConfig, where: str) -> MoeConfig:
    return check_groups(replace(moe, scoring="sigmoid", group_score="top2", correction_bias=True), where)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "bailingmoe2.")
    k.refuse_unless("expert_gating_func", 2, 2)
    base = config_of_gguf(k, shapes, NAME, partial=True)
    mtp = k.integer("nextn_predict_layers", 0, low=0, high=base.n_layers - 1)
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    inter, n_shared = k.integer("expert_feed_forward_length"), k.integer("expert_shared_count", low=0)
    n_group = max(1, k.integer("expert_group_count", 1, low=0))
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("expert_used_count", high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=k.integer("expert_shared_feed_forward_length", inter) * n_shared,
        first_dense=k.integer("leading_dense_block_count", 0, low=0, high=MAX_LAYERS),
        norm_topk=k.flag("expert_weights_norm", False),
        scaling=k.number("expert_weights_scale", 1.0),
        n_group=n_group,
        topk_group=k.integer("expert_group_used_count") if n_group > 1 else 1,
    )
    return replace(base, moe=_router(moe, where), qk_norm=True, n_layers=base.n_layers - mtp, mtp_layers=mtp)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return model_tensors(config) | norm_tensors(config, config.head_dim, config.head_dim)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
