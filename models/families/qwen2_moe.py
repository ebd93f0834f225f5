"""Qwen1.5-MoE and Qwen2-MoE: biases on q, k and v, top-k weights as they are, and a shared expert behind a gate."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, grouped_attention
from hetero.models.config import ModelConfig, MoeConfig
from hetero.models.families.common import INV_FREQ, MAX_EXPERTS, Expected, FusedExperts, Keys, gguf_shape
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors

if TYPE_CHECKING:
    import torch

NAME = "qwen2_moe"
HF_ARCHITECTURES = ("Qwen2MoeForCausalLM",)
HF_MODEL_TYPES = ("qwen2_moe",)
GGUF_ARCHS = ("qwen2moe",)
RENAME_HF: tuple[tuple[str, str], ...] = ((r"\.mlp\.shared_expert\.", ".mlp.shared_experts."),)
SKIP_HF = (INV_FREQ,)
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False
FUSED_EXPERTS = FusedExperts()


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' Qwen2MoeConfig. Raises ModelError."""
    k = Keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("use_sliding_window", False, False)
    base = config_of_hf(k, NAME, context=32768, eps=1e-6)
    moe = moe_from_hf(k, base.n_layers, experts=60, top_k=4, inter=1408, shared=5632, norm=False)
    return replace(base, moe=moe, attention_bias=k.flag("qkv_bias", True))


def moe_from_hf(
    k: Keys, n_layers: int, *, experts: int, top_k: int, inter: int, shared: int, norm: bool | None
) -> MoeConfig:
    """Experts and the gated shared one; the keywords are the architecture's defaults, `norm` None: always."""
    n_experts = k.integer(k.any_of("num_experts", "num_local_experts"), experts, high=MAX_EXPERTS)
    step = k.integer("decoder_sparse_step", 1)
    dense = {layer for layer in range(n_layers) if (layer + 1) % step}
    return MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("num_experts_per_tok", top_k, high=n_experts),
        intermediate_size=k.integer("moe_intermediate_size", inter),
        shared_intermediate_size=k.integer("shared_expert_intermediate_size", shared),
        norm_topk=norm is None or k.flag("norm_topk_prob", norm),
        dense_layers=tuple(sorted(dense | set(k.layers("mlp_only_layers", n_layers)))),
        shared_gate=True,
    )


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    k = Keys(meta, where, "qwen2moe.")
    base = config_of_gguf(k, shapes, NAME)
    return replace(base, moe=moe_from_gguf(k, shapes, base.n_layers, norm=False))


def moe_from_gguf(k: Keys, shapes: Mapping[str, tuple[int, ...]], n_layers: int, *, norm: bool) -> MoeConfig:
    """Experts and the gated shared one; the format has no word on renormalising, so the architecture says it.

    Older files lack the widths of experts and shared expert, which the tensors of the first layer with experts show.
    """
    first = next((i for i in range(n_layers) if f"model.layers.{i}.mlp.gate.weight" in shapes), 0)
    prefix = f"model.layers.{first}.mlp."
    inter = gguf_shape(shapes, prefix + "experts.down.weight", 3, k.where)[2]
    shared = gguf_shape(shapes, prefix + "shared_experts.down_proj.weight", 2, k.where)[1]
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    return MoeConfig(
        n_experts=n_experts,
        top_k=k.integer("expert_used_count", high=n_experts),
        intermediate_size=k.integer("expert_feed_forward_length", inter),
        shared_intermediate_size=k.integer("expert_shared_feed_forward_length", shared),
        norm_topk=norm,
        dense_layers=tuple(i for i in range(n_layers) if f"model.layers.{i}.mlp.gate_proj.weight" in shapes),
        shared_gate=True,
    )


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return without_output_bias(model_tensors(config))


def without_output_bias(tensors: dict[str, Expected]) -> dict[str, Expected]:
    """Qwen2 has biases on q, k and v alone."""
    return {name: want for name, want in tensors.items() if not name.endswith(".o_proj.bias")}


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, grouped_attention)
