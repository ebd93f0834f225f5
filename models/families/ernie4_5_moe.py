"""ERNIE 4.5 with experts: neighbours rotated, a softmax router whose correction bias decides the choice only."""

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

NAME = "ernie4_5_moe"
HF_ARCHITECTURES = ("Ernie4_5_MoeForCausalLM",)
HF_MODEL_TYPES = ("ernie4_5_moe",)
GGUF_ARCHS = ("ernie4_5-moe",)
RENAME_HF = ((r"\.mlp\.(gate\.)?moe_statics\.", ".mlp.gate."),)
SKIP_HF = (INV_FREQ, r"model\.mtp_(block|emb_norm|hidden_norm|linear_proj)\..*")
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' Ernie4_5_MoeConfig. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("use_bias", False, False)
    if k.number("moe_norm_min", 1e-12) > 1e-6:  # the chosen scores' sum is never so small
        raise k.fail("moe_norm_min", f"{k.number('moe_norm_min'):g}", "at most 1e-06")
    tied = k.flag("tie_word_embeddings", True)
    base = config_of_hf(k, NAME, context=131072, eps=1e-5, theta=500000.0, interleaved=True, kv_default=4)
    n_experts = k.integer(k.any_of("moe_num_experts", "num_experts"), 64, high=MAX_EXPERTS)
    inter = k.integer("moe_intermediate_size", 1536)
    last = k.integer("moe_layer_end_index", -1, low=-1)
    dense = _dense_layers(k, base.n_layers, base.n_layers - 1 if last == -1 else last)
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.integer(k.any_of("moe_k", "num_experts_per_tok"), 6, high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=inter * k.integer("moe_num_shared_experts", 2, low=0),
        correction_bias=True,
        dense_layers=dense,
    )
    return replace(base, moe=moe, tie_word_embeddings=tied)


def _dense_layers(k: Keys, n_layers: int, last: int) -> tuple[int, ...]:
    """Layers without experts: before the first, behind the last, and those between by the interval."""
    first, step = k.integer("moe_layer_start_index", 1, low=0), k.integer("moe_layer_interval", 1)
    return tuple(i for i in range(n_layers) if not first <= i <= last or (i + 1) % step)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "ernie4_5-moe.")
    base = config_of_gguf(k, shapes, NAME, interleaved=True)
    n_experts, inter = k.integer("expert_count", high=MAX_EXPERTS), k.integer("expert_feed_forward_length")
    first, step = k.integer("leading_dense_block_count", 0, low=0), k.integer("interleave_moe_layer_step", 1)
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("expert_used_count", high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=k.integer("expert_shared_feed_forward_length", 0, low=0),
        scaling=k.number("expert_weights_scale", 1.0) if k.get("expert_weights_scale") != 0 else 1.0,
        correction_bias=any(name.endswith("gate.e_score_correction_bias") for name in shapes),
        dense_layers=tuple(i for i in range(base.n_layers) if i < first or (i + 1) % step),
    )
    return replace(base, moe=moe)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return model_tensors(config)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
