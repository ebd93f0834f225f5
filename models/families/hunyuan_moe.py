"""Hunyuan-A13B: q and k normed per head after their rotation, NTK-scaled rope, a shared MLP beside the experts."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, project
from hetero.models.config import ModelConfig, MoeConfig
from hetero.models.families.common import INV_FREQ, MAX_EXPERTS, Expected, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors, norm_tensors

if TYPE_CHECKING:
    import torch

NAME = "hunyuan_moe"
HF_ARCHITECTURES = ("HunYuanMoEV1ForCausalLM",)
HF_MODEL_TYPES = ("hunyuan_v1_moe",)
GGUF_ARCHS = ("hunyuan-moe",)
SKIP_HF = (INV_FREQ,)
RENAME_HF = (
    (r"\.mlp\.gate\.wg\.", ".mlp.gate."),
    (r"\.mlp\.shared_mlp\.", ".mlp.shared_experts."),
    (r"\.self_attn\.query_layernorm\.", ".self_attn.q_norm."),
    (r"\.self_attn\.key_layernorm\.", ".self_attn.k_norm."),
)
FUSED_EXPERTS = None
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' HunYuanMoEV1Config. Raises ModelError.

    Per-layer lists must hold one value for all layers.
    """
    k = Keys(_rope_base(raw, where), where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("mlp_bias", False, False)
    k.refuse_unless("use_cla", False, False)
    k.refuse_unless("use_mla", False, False)
    k.refuse_unless("use_qk_norm", True, True)
    k.refuse_unless("use_mixed_mlp_moe", True, True)
    k.refuse_unless("moe_layer_num_skipped", 0, 0)
    base = config_of_hf(k, NAME, context=2048, eps=1e-5)
    n_experts = k.uniform("num_experts", 1, high=MAX_EXPERTS)
    moe = MoeConfig(
        n_experts=n_experts,
        top_k=k.uniform("moe_topk", k.uniform("num_experts_per_tok", 1, high=n_experts), high=n_experts),
        intermediate_size=k.uniform("moe_intermediate_size", base.intermediate_size),
        shared_intermediate_size=base.intermediate_size * k.uniform("num_shared_expert", 1),
    )
    return replace(base, moe=moe)


def _rope_base(raw: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """`raw` with "dynamic" scaling by a constant alpha replaced by the base that it amounts to: it is NTK-aware scaling
    (theta * alpha^(d / (d - 2))), which does not depend on the length."""
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters")
    if not isinstance(scaling, dict) or "dynamic" not in (scaling.get("type"), scaling.get("rope_type")):
        return raw
    p = Keys({**raw, **scaling}, where)
    dim = p.integer("head_dim", p.integer("hidden_size") // p.integer("num_attention_heads"), low=4)
    theta = p.number("rope_theta", 10000.0) * p.number("alpha") ** (dim / (dim - 2))
    return {**raw, "rope_scaling": None, "rope_parameters": None, "rope_theta": theta}


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "hunyuan-moe.")
    base = config_of_gguf(k, shapes, NAME)
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    top_k = k.integer("expert_used_count", high=n_experts)
    inter = k.integer("expert_feed_forward_length", base.intermediate_size)
    shared = k.integer("expert_shared_feed_forward_length", base.intermediate_size)
    return replace(base, moe=MoeConfig(n_experts, top_k, inter, shared))


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return model_tensors(config) | norm_tensors(config, config.head_dim, config.head_dim)


def late_norm_attention(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
    """Grouped-query attention that norms q and k after turning them."""
    prefix = f"model.layers.{layer}.self_attn."
    q, k, v = project(config, layer, x, ops)
    q = ops.norm(prefix + "q_norm.weight", ops.rotate(q))
    k = ops.norm(prefix + "k_norm.weight", ops.rotate(k))
    out = ops.attention(layer, q, k, v, config.attention_scale, rope=False)
    return ops.linear(prefix + "o_proj", out.flatten(1))


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, late_norm_attention)
