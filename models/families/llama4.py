"""The text part of Llama 4: chunked attention, layers without rope, one expert per token that weighs its input."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, project
from hetero.models.config import ChunkedConfig, ModelConfig, MoeConfig
from hetero.models.families.common import MAX_EXPERTS, VISION, Expected, FusedExperts, Keys, text_keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors

if TYPE_CHECKING:
    import torch

NAME = "llama4"
HF_ARCHITECTURES = ("Llama4ForConditionalGeneration", "Llama4ForCausalLM")
HF_MODEL_TYPES = ("llama4", "llama4_text")
GGUF_ARCHS = ("llama4",)
SKIP_HF = (
    VISION,
    r"(language_model\.)?model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
)
RENAME_HF = (
    (r"^language_model\.", ""),
    (r"\.feed_forward\.router\.", ".mlp.gate."),
    (r"\.feed_forward\.shared_expert\.", ".mlp.shared_experts."),
    (r"\.feed_forward\.", ".mlp."),
)
FUSED_EXPERTS = FusedExperts(transposed=True)
SKIP_GGUF: tuple[str, ...] = ("rope_freqs.weight",)
PERMUTED_QK = False
_CHUNK, _TEMPERATURE, _GLOBAL_STEP = 8192, 0.1, 4
"""What GGUF files do not say: llama.cpp has these constants."""


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json or the text_config in it, with the defaults of transformers' Llama4TextConfig."""
    k = text_keys(raw, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    base = config_of_hf(k, NAME, context=131072, eps=1e-5, theta=500000.0, interleaved=True, kv_default=8)
    n_experts = k.integer("num_local_experts", 16, high=MAX_EXPERTS)
    k.refuse_unless("num_experts_per_tok", 1, 1)
    layers = range(base.n_layers)
    step = k.integer("interleave_moe_layer_step", 1)
    routed = k.layers("moe_layers", base.n_layers) or tuple(layer for layer in layers if (layer + 1) % step == 0)
    tuned = bool(k.get("attn_temperature_tuning")) if k.has("attn_temperature_tuning") else True
    chunked = ChunkedConfig(
        chunk=k.integer("attention_chunk_size", 8192) if _has_chunks(k) else 0,
        global_layers=_global_layers(k, base.n_layers),
        floor=k.integer("floor_scale", 8192) if tuned else 0,
        temperature=k.number("attn_scale", 0.1),
    )
    _check_types(k, chunked, base.n_layers)
    base = replace(base, intermediate_size=k.integer("intermediate_size_mlp", 16384), chunked=chunked)
    return _with_experts(base, n_experts, k.integer("intermediate_size"), routed, k.flag("use_qk_norm", True))


def _has_chunks(k: Keys) -> bool:
    """A null attention_chunk_size means none; a missing key means the default."""
    return k.has("attention_chunk_size") or k.prefix + "attention_chunk_size" not in k.values


def _global_layers(k: Keys, n_layers: int) -> tuple[int, ...]:
    """The layers without rope: zeros of `no_rope_layers` (whose name says the opposite), or every fourth."""
    rotated = k.get("no_rope_layers")
    if not rotated:
        step = k.integer("no_rope_layer_interval", _GLOBAL_STEP)
        return tuple(layer for layer in range(n_layers) if (layer + 1) % step == 0)
    if not isinstance(rotated, list) or len(rotated) < n_layers or any(flag not in (0, 1) for flag in rotated):
        raise k.fail("no_rope_layers", "no such list", f"a list of {n_layers} ones and zeros")
    return tuple(layer for layer in range(n_layers) if not rotated[layer])


def _check_types(k: Keys, chunked: ChunkedConfig, n_layers: int) -> None:
    """`layer_types` says the same as the other keys in every published model."""
    local = "chunked_attention" if chunked.chunk else "full_attention"
    wanted = ["full_attention" if layer in chunked.global_layers else local for layer in range(n_layers)]
    types = k.get("layer_types")
    if types and types != wanted:
        raise k.fail("layer_types", "at odds with no_rope_layers", "chunked attention in the layers with rope")


def _with_experts(base: ModelConfig, n_experts: int, inter: int, routed: tuple[int, ...], norm: bool) -> ModelConfig:
    dense = tuple(sorted(set(range(base.n_layers)) - set(routed)))
    moe = MoeConfig(n_experts, 1, inter, inter, scoring="sigmoid", norm_topk=False, dense_layers=dense)
    return replace(base, moe=replace(moe, weighs_input=True), qk_norm=norm)


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError.

    The format has no word on the q/k norm: Maverick, the one with 128 experts, has none.
    """
    k = Keys(meta, where, "llama4.")
    base = config_of_gguf(k, shapes, NAME, interleaved=True)
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    k.refuse_unless("expert_used_count", 1, 1)
    step = k.integer("interleave_moe_layer_step")
    layers = range(base.n_layers)
    whole = k.get("attention.sliding_window") == 0
    every = tuple(layer for layer in layers if (layer + 1) % _GLOBAL_STEP == 0)
    chunked = ChunkedConfig(0 if whole else _CHUNK, () if whole else every, _CHUNK, _TEMPERATURE)
    routed = tuple(layer for layer in layers if (layer + 1) % step == 0)
    inter = k.integer("expert_feed_forward_length")
    return _with_experts(replace(base, chunked=chunked), n_experts, inter, routed, n_experts != 128)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    return model_tensors(config)


def _attention(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops, positions: torch.Tensor) -> torch.Tensor:
    """On the normed x [T, hidden] at `positions` [T]: rotated, normed and chunked, or over all with a temperature."""
    import torch
    import torch.nn.functional as F

    assert config.chunked is not None
    q, k, v = project(config, layer, x, ops)
    scale, chunk = config.attention_scale, config.chunked.chunk or None
    if layer in config.chunked.global_layers:
        if config.chunked.floor:
            steps = torch.floor((positions.float() + 1.0) / config.chunked.floor)
            q = q * (torch.log1p(steps) * config.chunked.temperature + 1.0)[:, None, None]
        out = ops.attention(layer, q, k, v, scale, rope=False)
    else:
        q, k = ops.rotate(q), ops.rotate(k)
        if config.qk_norm:
            q, k = (F.rms_norm(part, (config.head_dim,), eps=config.rms_norm_eps) for part in (q, k))
        out = ops.attention(layer, q, k, v, scale, rope=False, chunk=chunk)
    return ops.linear(f"model.layers.{layer}.self_attn.o_proj", out.flatten(1))


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""

    def attention(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        return _attention(config, layer, x, ops, batch.positions)

    return decoder(config, batch, ops, attention)
