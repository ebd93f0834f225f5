"""Qwen3.5 and 3.6 without experts: the layers of Qwen3.5-MoE with a dense MLP. Images are not read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hetero.models.config import ModelConfig
from hetero.models.families import qwen3_5_moe, qwen3_next
from hetero.models.families.common import Keys

NAME = "qwen3_5"
HF_ARCHITECTURES = ("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM")
HF_MODEL_TYPES = ("qwen3_5", "qwen3_5_text")
GGUF_ARCHS = ("qwen35",)
RENAME_HF = qwen3_5_moe.RENAME_HF
SKIP_HF = qwen3_5_moe.SKIP_HF
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False
FUSED_EXPERTS = None


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, its text part nested or not, with the defaults of transformers' Qwen3_5TextConfig."""
    nested = raw.get("text_config")
    k = Keys({**raw, **nested} if isinstance(nested, dict) else raw, where)
    return replace(qwen3_next.hybrid_from_hf(k, NAME, inter=12288, kv_heads=4), model_type=NAME)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name; value heads are tiled. Raises ModelError."""
    base = qwen3_next.hybrid_from_gguf(Keys(meta, where, "qwen35."), shapes, NAME)
    assert base.delta is not None
    return replace(base, delta=replace(base.delta, tiled=True))


expected_tensors = qwen3_next.expected_tensors
forward = qwen3_next.forward
