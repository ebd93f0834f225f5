"""Ling and Ring 1.x (BailingMoE): one matrix for q, k and v, softmax router, shared experts."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig, MoeConfig
from hetero.models.families.common import MAX_EXPERTS, MAX_LAYERS, Expected, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors

if TYPE_CHECKING:
    import torch

NAME = "bailing_moe"
HF_ARCHITECTURES = ("BailingMoeForCausalLM",)
HF_MODEL_TYPES = ("bailing_moe",)
GGUF_ARCHS = ("bailingmoe",)
SKIP_HF = (r"model\.(layers\.\d+\.attention\.)?rotary_emb\.inv_freq",)
RENAME_HF = (
    (r"^model\.word_embeddings\.", "model.embed_tokens."),
    (r"\.attention\.query_key_value\.", ".self_attn.qkv_proj."),
    (r"\.attention\.dense\.", ".self_attn.o_proj."),
)
FUSED_EXPERTS = None
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = True


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of the published configuration_bailing_moe.py. Raises ModelError."""
    k = Keys(raw, where)
    refuse_variants(k)
    base = config_of_hf(k, NAME, context=16384, eps=1e-5)
    n_experts = k.integer("num_experts", 16, high=MAX_EXPERTS)
    inter = k.integer("moe_intermediate_size")
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("num_experts_per_tok", 2, high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=inter * k.integer("num_shared_experts", 0, low=0),
        first_dense=k.integer("first_k_dense_replace", 0, low=0, high=MAX_LAYERS),
        norm_topk=k.flag("norm_topk_prob", True),
    )
    return replace(base, moe=moe, norm_head=k.flag("norm_head", False))


def refuse_variants(k: Keys) -> None:
    """What neither version's published models use."""
    k.refuse_unless("hidden_act", "silu", "silu")
    for key in ("use_bias", "use_qkv_bias", "multi_gate", "use_sliding_window"):
        k.refuse_unless(key, False, False)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError.

    llama.cpp's converter writes a normed head as such.
    """
    k = Keys(meta, where, "bailingmoe.")
    base = config_of_gguf(k, shapes, NAME)
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    inter = k.integer("expert_feed_forward_length")
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("expert_used_count", high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=inter * k.integer("expert_shared_count", low=0),
        first_dense=k.integer("leading_dense_block_count", 0, low=0, high=MAX_LAYERS),
        norm_topk=k.flag("expert_weights_norm", False),
        scaling=k.number("expert_weights_scale", 1.0),
    )
    return replace(base, moe=moe)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return model_tensors(config)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
