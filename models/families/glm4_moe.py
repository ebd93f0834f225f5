"""GLM-4.5, 4.6, 4.7 and Air: grouped-query attention with biases, half of a head rotated, experts as in DeepSeek-V3."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig
from hetero.models.families.common import INV_FREQ, MAX_LAYERS, Expected, FusedExperts, Keys, check_groups
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors, norm_tensors
from hetero.models.families.routed import (
    Defaults,
    layers_without_mtp,
    moe_from_gguf,
    mtp_from_hf,
    sigmoid_moe_from_hf,
)

if TYPE_CHECKING:
    import torch

NAME = "glm4_moe"
HF_ARCHITECTURES = ("Glm4MoeForCausalLM",)
HF_MODEL_TYPES = ("glm4_moe",)
GGUF_ARCHS = ("glm4moe",)
RENAME_HF: tuple[tuple[str, str], ...] = ()
SKIP_HF = (INV_FREQ,)
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' Glm4MoeConfig. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    base = config_of_hf(k, NAME, context=131072, eps=1e-5, partial=0.5, kv_default=8)
    moe = sigmoid_moe_from_hf(k, base.n_layers, Defaults())
    return replace(base, moe=moe, qk_norm=k.flag("use_qk_norm", False), mtp_layers=mtp_from_hf(k, MAX_LAYERS))


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "glm4moe.")
    base = config_of_gguf(k, shapes, NAME, partial=True)
    n_layers, mtp = layers_without_mtp(k, MAX_LAYERS)
    moe = check_groups(moe_from_gguf(k, shapes, n_layers, "sigmoid"), where)
    qk_norm = "model.layers.0.self_attn.q_norm.weight" in shapes
    return replace(base, n_layers=n_layers, mtp_layers=mtp, moe=moe, qk_norm=qk_norm)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    out = {name: want for name, want in model_tensors(config).items() if not name.endswith("o_proj.bias")}
    return out | norm_tensors(config, config.head_dim, config.head_dim) if config.qk_norm else out


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
