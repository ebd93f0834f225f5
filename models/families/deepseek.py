"""The DeepSeek family: V2-Lite, V2, V3, R1, V3.1, Kimi K2, the text part of Kimi K2.5 and K2.6, and GLM-4.7-Flash.

Multi-head latent attention with or without a query latent, interleaved rope (YaRN), shared experts, leading dense
layers; V2 routes by softmax (groups by their maximum), V3 by sigmoid with a correction bias (groups by their top 2).
The others are V3 with other numbers.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder
from hetero.models.config import ModelConfig, MoeConfig
from hetero.models.families import latent
from hetero.models.families.common import (
    INV_FREQ,
    MAX_EXPERTS,
    MAX_LAYERS,
    VISION,
    Expected,
    FusedExperts,
    Keys,
    check_groups,
    text_keys,
)
from hetero.models.families.routed import (
    Defaults,
    layers_without_mtp,
    moe_from_gguf,
    sigmoid_moe_from_hf,
)

if TYPE_CHECKING:
    import torch

NAME = "deepseek"
_KIMI = ("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration")
_V2 = ("DeepseekV2ForCausalLM", "deepseek_v2")
_FLASH = ("Glm4MoeLiteForCausalLM", "glm4_moe_lite")
HF_ARCHITECTURES = (_V2[0], "DeepseekV3ForCausalLM", *_KIMI, _FLASH[0])
HF_MODEL_TYPES = (_V2[1], "deepseek_v3", "kimi_k2", "kimi_k25", _FLASH[1])
GGUF_ARCHS = ("deepseek2",)
RENAME_HF = ((r"^language_model\.", ""),)
SKIP_HF = (INV_FREQ, VISION)
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False
V3_DEFAULTS = Defaults(n_group=8, topk_group=4, scaling=2.5, first_dense=3)


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' configuration of its architecture. Raises ModelError."""
    k = text_keys(raw, where)
    architectures = raw.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else raw.get("model_type")
    n_layers = k.integer("num_hidden_layers", high=MAX_LAYERS)
    if name in _V2:
        return latent.config_of_hf(k, NAME, _v2_moe(k, n_layers), model_type=_V2[1], context=2048, eps=1e-6)
    if name in _FLASH:
        moe = sigmoid_moe_from_hf(k, n_layers, Defaults(scaling=1.8, top_k=4))
        return latent.config_of_hf(k, NAME, moe, model_type=_FLASH[1], context=202752, eps=1e-5)
    moe = sigmoid_moe_from_hf(k, n_layers, V3_DEFAULTS)
    return latent.config_of_hf(k, NAME, moe, model_type="deepseek_v3", context=4096, eps=1e-6)


def _v2_moe(k: Keys, n_layers: int) -> MoeConfig:
    k.refuse_unless("scoring_func", "softmax", "softmax")
    k.refuse_unless("topk_method", "greedy", "greedy", "group_limited_greedy")
    n_experts = k.integer("n_routed_experts", high=MAX_EXPERTS)
    inter = k.integer("moe_intermediate_size")
    grouped = k.text("topk_method", "greedy") != "greedy"
    first, step = k.integer("first_k_dense_replace", 0, low=0), k.integer("moe_layer_freq", 1)
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("num_experts_per_tok", high=n_experts),
        intermediate_size=inter,
        shared_intermediate_size=inter * k.integer("n_shared_experts", 2, low=0),
        first_dense=first,
        norm_topk=k.flag("norm_topk_prob", False),
        scaling=k.number("routed_scaling_factor", 1.0),
        n_group=k.integer("n_group", 1) if grouped else 1,
        topk_group=k.integer("topk_group", 1) if grouped else 1,
        group_score="max",
        dense_layers=tuple(layer for layer in range(first, n_layers) if layer % step),
    )
    return check_groups(moe, k.where)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "deepseek2.")
    moe = moe_from_gguf(k, shapes, layers_without_mtp(k, MAX_LAYERS)[0], None)
    moe = check_groups(_known_groups(moe, k), where)
    model_type = "deepseek_v3" if moe.scoring == "sigmoid" else "deepseek_v2"
    config = latent.config_of_gguf(k, shapes, NAME, moe, model_type=model_type)
    rope = config.rope
    kimi = rope.kind == "yarn" and rope.theta == 50000.0 and moe.n_experts == 384
    if kimi and not k.has("rope.scaling.yarn_beta_fast"):  # files from before the key are of a model with 1 and 1
        config = replace(config, rope=replace(rope, beta_fast=1.0, beta_slow=1.0))
    return config


def _known_groups(moe: MoeConfig, k: Keys) -> MoeConfig:
    """Files written before llama.cpp knew of groups lack the two keys; the models of that time are known by size."""
    if k.has("expert_group_count"):
        return moe
    if moe.n_experts == 160 and moe.scoring == "softmax":  # DeepSeek-V2, V2.5, Coder-V2
        return replace(moe, n_group=8, topk_group=3)
    if moe.n_experts == 256 and moe.scoring == "sigmoid" and moe.top_k == 8:  # DeepSeek-V3, R1
        return replace(moe, n_group=8, topk_group=4)
    return moe


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return latent.model_tensors(config)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, latent.latent_attention)
