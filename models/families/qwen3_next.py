"""Qwen3-Next: three gated delta nets to one gated attention, a quarter of a head rotated, zero-centred norms, experts
with a shared one behind a gate. Qwen3.5 takes most from here."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, gated_attention
from hetero.models.config import DeltaConfig, ModelConfig
from hetero.models.delta import delta_net
from hetero.models.families import qwen2_moe
from hetero.models.families.common import MAX_LAYERS, Expected, FusedExperts, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors

if TYPE_CHECKING:
    import torch

NAME = "qwen3_next"
HF_ARCHITECTURES = ("Qwen3NextForCausalLM",)
HF_MODEL_TYPES = ("qwen3_next",)
GGUF_ARCHS = ("qwen3next",)
RENAME_HF = qwen2_moe.RENAME_HF
SKIP_HF = qwen2_moe.SKIP_HF
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False
FUSED_EXPERTS = FusedExperts()


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' Qwen3NextConfig. Raises ModelError."""
    k = Keys(raw, where)
    base = hybrid_from_hf(k, NAME)
    moe = qwen2_moe.moe_from_hf(k, base.n_layers, experts=512, top_k=10, inter=512, shared=512, norm=True)
    assert base.delta is not None
    return replace(base, moe=moe, delta=replace(base.delta, fused_qkvz=True, fused_ba=True))


def hybrid_from_hf(k: Keys, family: str, *, inter: int = 5632, kv_heads: int = 2) -> ModelConfig:
    """The part that Qwen3-Next and Qwen3.5 have in common, without experts; the keywords are defaults."""
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("attention_bias", False, False)
    k.refuse_unless("use_sliding_window", False, False)
    defaults = {"head_dim": 256, "intermediate_size": inter}
    k = Keys({**defaults, **{key: value for key, value in k.values.items() if value is not None}}, k.where)
    base = config_of_hf(k, family, context=32768, eps=1e-6, partial=0.25, kv_default=kv_heads)
    key_heads = k.integer("linear_num_key_heads", 16)
    delta = DeltaConfig(
        layers=_delta_layers(k, base.n_layers, "layer_types"),
        key_heads=key_heads,
        value_heads=_value_heads(k, "linear_num_value_heads", key_heads, 32),
        key_dim=k.integer("linear_key_head_dim", 128),
        value_dim=k.integer("linear_value_head_dim", 128),
        conv=k.integer("linear_conv_kernel_dim", 4, low=2),
    )
    return replace(base, qk_norm=True, zero_centred=True, delta=delta)


def _value_heads(k: Keys, key: str, key_heads: int, default: int | None = None) -> int:
    heads = k.integer(key) if default is None else k.integer(key, default)
    if heads % key_heads:
        raise k.fail(key, str(heads), f"a multiple of the {key_heads} key heads")
    return heads


def _delta_layers(k: Keys, n_layers: int, listed: str) -> tuple[int, ...]:
    """The layers without attention, by the list `listed` (one type or flag a layer) or by the interval."""
    kinds = k.get(listed)
    if kinds is None:
        interval = k.integer("full_attention_interval", 4)
        return tuple(layer for layer in range(n_layers) if (layer + 1) % interval)
    kinds = kinds if isinstance(kinds, list) else [kinds] * n_layers
    known = ("linear_attention", "full_attention", True, False)
    if len(kinds) < n_layers or any(kind not in known for kind in kinds):
        expected = f"linear_attention or full_attention for each of {n_layers} layers"
        raise k.fail(listed, f"a list of {len(kinds)} kinds", expected)
    return tuple(layer for layer in range(n_layers) if kinds[layer] in ("linear_attention", True))


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError."""
    base = with_experts(Keys(meta, where, "qwen3next."), shapes, NAME)
    delta = base.delta
    assert delta is not None
    first = f"model.layers.{delta.layers[0]}.linear_attn." if delta.layers else ""
    fused = first + "in_proj_qkvz.weight" in shapes  # files of 2025 have them in Hugging Face's order
    return replace(base, delta=replace(delta, fused_qkvz=fused, fused_ba=True))


def with_experts(k: Keys, shapes: Mapping[str, tuple[int, ...]], family: str) -> ModelConfig:
    """`hybrid_from_gguf` with routed experts and the shared one. Raises ModelError."""
    base = hybrid_from_gguf(k, shapes, family)
    return replace(base, moe=qwen2_moe.moe_from_gguf(k, shapes, base.n_layers, norm=True))


def hybrid_from_gguf(k: Keys, shapes: Mapping[str, tuple[int, ...]], family: str) -> ModelConfig:
    """GGUF metadata of Qwen3-Next and Qwen3.5, without experts. Norms are stored whole there, value and key heads
    equally wide."""
    base = config_of_gguf(k, shapes, family, partial=True)
    mtp = k.integer("nextn_predict_layers", 0, low=0, high=MAX_LAYERS)
    n_layers = base.n_layers - mtp
    if n_layers < 1:
        raise k.fail("block_count", str(base.n_layers), f"more than nextn_predict_layers ({mtp})")
    key_heads, width = k.integer("ssm.group_count"), k.integer("ssm.state_size")
    value_heads = _value_heads(k, "ssm.time_step_rank", key_heads)
    inner = k.integer("ssm.inner_size")
    if inner % value_heads:
        raise k.fail("ssm.inner_size", str(inner), f"a multiple of the {value_heads} value heads")
    delta = DeltaConfig(
        layers=_delta_layers(k, n_layers, "attention.recurrent_layers"),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=width,
        value_dim=inner // value_heads,
        conv=k.integer("ssm.conv_kernel", low=2),
    )
    return replace(base, n_layers=n_layers, mtp_layers=mtp, qk_norm=True, delta=delta)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) tells which form A has."""
    hidden, dim = config.hidden_size, config.head_dim
    out = model_tensors(config)
    for layer in range(config.n_layers):
        p = f"model.layers.{layer}.self_attn."
        if config.is_delta_layer(layer):
            out = {name: want for name, want in out.items() if not name.startswith(p)}
            out |= _delta_tensors(f"model.layers.{layer}.linear_attn.", config, names)
        else:
            out[p + "q_proj.weight"] = Expected((2 * config.n_heads * dim, hidden), "dense")
            out |= {f"{p}{part}_norm.weight": Expected((dim,), "small") for part in ("q", "k")}
    return out


def _delta_tensors(p: str, config: ModelConfig, names: Container[str]) -> dict[str, Expected]:
    d, hidden = config.delta, config.hidden_size
    assert d is not None
    values, heads = d.value_heads * d.value_dim, d.value_heads
    rows = {"in_proj_qkv": d.conv_width, "in_proj_z": values}
    if d.fused_qkvz:
        rows = {"in_proj_qkvz": d.conv_width + values}
    rows |= {"in_proj_ba": 2 * heads} if d.fused_ba else {"in_proj_b": heads, "in_proj_a": heads}
    out = {f"{p}{name}.weight": Expected((n, hidden), "dense") for name, n in rows.items()}
    out[p + "out_proj.weight"] = Expected((hidden, values), "dense")
    out[p + "conv1d.weight"] = Expected((d.conv_width, 1, d.conv), "small")
    out[p + "norm.weight"] = Expected((d.value_dim,), "small")
    out[p + "dt_bias"] = Expected((d.value_heads,), "small")
    out[p + ("A" if p + "A" in names else "A_log")] = Expected((d.value_heads,), "small")
    return out


def attention_or_delta(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
    """What the layer has to mix tokens, on the normed x [T, hidden]."""
    return (delta_net if config.is_delta_layer(layer) else gated_attention)(config, layer, x, ops)


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, attention_or_delta)
