"""Tencent's Hy3: grouped-query attention with q/k norms, experts as in DeepSeek-V3 without groups."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig
from hetero.models.families.common import INV_FREQ, MAX_LAYERS, Expected, FusedExperts, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors, norm_tensors
from hetero.models.families.routed import Defaults, layers_without_mtp, moe_from_gguf, mtp_from_hf, sigmoid_moe_from_hf

if TYPE_CHECKING:
    import torch

NAME = "hy_v3"
HF_ARCHITECTURES = ("HYV3ForCausalLM",)
HF_MODEL_TYPES = ("hy_v3",)
GGUF_ARCHS = ("hy_v3",)
RENAME_HF = (
    (r"\.mlp\.router\.gate\.", ".mlp.gate."),
    (r"\.mlp\.(expert_bias|e_score_correction_bias)$", ".mlp.gate.e_score_correction_bias"),
    (r"\.mlp\.shared_mlp\.", ".mlp.shared_experts."),
)
SKIP_HF = (INV_FREQ,)
FUSED_EXPERTS = FusedExperts()
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' HYV3Config. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("mlp_bias", False, False)
    k.refuse_unless("qk_norm", True, True)
    k.refuse_unless("attention_bias", False, False)
    if not k.has("head_dim"):
        k = Keys({**raw, "head_dim": 128}, where)
    base = config_of_hf(k, NAME, context=131072, eps=1e-5, theta=11158840.0, kv_default=8)
    as_deepseek = {
        "routed_scaling_factor": k.number("router_scaling_factor", 2.826),
        "n_shared_experts": k.integer("num_shared_experts", 1, low=0),
        "norm_topk_prob": k.flag("route_norm", True),
    }
    moe = sigmoid_moe_from_hf(Keys({**raw, **as_deepseek}, where), base.n_layers, Defaults())
    return replace(base, moe=moe, qk_norm=True, mtp_layers=mtp_from_hf(k, MAX_LAYERS))


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError.

    Files have the width of the shared experts together, and no count of them.
    """
    k = Keys(meta, where, "hy_v3.")
    base = config_of_gguf(k, shapes, NAME)
    n_layers, mtp = layers_without_mtp(k, MAX_LAYERS)
    counted = Keys({**meta, "hy_v3.expert_shared_count": 1}, where, "hy_v3.")
    moe = moe_from_gguf(counted, shapes, n_layers, "sigmoid")
    shared = k.integer("expert_shared_feed_forward_length", moe.intermediate_size)
    moe = replace(moe, shared_intermediate_size=shared)
    return replace(base, n_layers=n_layers, mtp_layers=mtp, moe=moe, qk_norm=True)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return model_tensors(config) | norm_tensors(config, config.head_dim, config.head_dim)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
