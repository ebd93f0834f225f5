"""Qwen3.5 and 3.6 with experts: Qwen3-Next with its projections apart. Images are not read: their part is skipped.

Rotary positions are given per axis of an image; for text all three axes are equal, which is plain rope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hetero.models.config import ModelConfig
from hetero.models.families import qwen2_moe, qwen3_next
from hetero.models.families.common import FusedExperts, Keys

NAME = "qwen3_5_moe"
HF_ARCHITECTURES = ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM")
HF_MODEL_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")
GGUF_ARCHS = ("qwen35moe",)
RENAME_HF = ((r"^model\.language_model\.", "model."), (r"^model\.mtp\.", "mtp."), *qwen2_moe.RENAME_HF)
SKIP_HF = (*qwen2_moe.SKIP_HF, r"(model\.)?visual\..*")
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False
FUSED_EXPERTS = FusedExperts()


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, its text part nested or not, with the defaults of transformers' Qwen3_5MoeTextConfig."""
    nested = raw.get("text_config")
    k = Keys({**raw, **nested} if isinstance(nested, dict) else raw, where)
    base = qwen3_next.hybrid_from_hf(k, NAME)
    moe = qwen2_moe.moe_from_hf(k, base.n_layers, experts=256, top_k=8, inter=512, shared=512, norm=None)
    return replace(base, model_type=NAME, moe=moe)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError.

    llama.cpp's converter stores value heads tiled, so that its products can broadcast the key heads.
    """
    base = qwen3_next.with_experts(Keys(meta, where, "qwen35moe."), shapes, NAME)
    assert base.delta is not None
    return replace(base, delta=replace(base.delta, tiled=True))


expected_tensors = qwen3_next.expected_tensors
forward = qwen3_next.forward
