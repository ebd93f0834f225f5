"""gpt-oss: attention sinks, a sliding window in every other layer, biases everywhere, clamped SwiGLU experts."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hetero.models.blocks import Batch, Ops, decoder, project
from hetero.models.config import ModelConfig, MoeConfig
from hetero.models.families.common import INV_FREQ, MAX_EXPERTS, Expected, FusedExperts, Keys
from hetero.models.families.grouped import config_of_gguf, config_of_hf, model_tensors

if TYPE_CHECKING:
    import torch

NAME = "gpt_oss"
HF_ARCHITECTURES = ("GptOssForCausalLM",)
HF_MODEL_TYPES = ("gpt_oss",)
GGUF_ARCHS = ("gpt-oss",)
SKIP_HF = (INV_FREQ,)
RENAME_HF = ((r"\.mlp\.router\.", ".mlp.gate."),)
FUSED_EXPERTS = FusedExperts(transposed=True, interleaved=True)
SKIP_GGUF: tuple[str, ...] = ()
PERMUTED_QK = False
_YARN = {"rope_type": "yarn", "factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096}


def config_from_hf(raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """From a config.json, with the defaults of transformers' GptOssConfig. Raises ModelError."""
    given = raw.get("rope_scaling") or raw.get("rope_parameters")
    k = Keys(raw if given else {**raw, "rope_scaling": _YARN}, where)
    k.refuse_unless("hidden_act", "silu", "silu")
    k.refuse_unless("attention_bias", True, True)
    k.refuse_unless("swiglu_limit", 7.0, 7.0)
    k.refuse_unless("swiglu_alpha", 1.702, 1.702)
    base = config_of_hf(k, NAME, context=131072, eps=1e-5, theta=150000.0, kv_default=8)
    n_experts = k.integer(k.any_of("num_local_experts", "num_experts"), 128, high=MAX_EXPERTS)
    top_k = k.integer(k.any_of("num_experts_per_tok", "experts_per_token"), 4, high=n_experts)
    window = k.integer("sliding_window", 128)
    return _with_experts(base, n_experts, top_k, base.intermediate_size, _sliding_of_hf(k, base.n_layers), window)


def _sliding_of_hf(k: Keys, n_layers: int) -> list[bool]:
    """Per layer whether it has a window: as `layer_types` says, or every other layer from the first on."""
    if not k.has("layer_types"):
        return [layer % 2 == 0 for layer in range(n_layers)]
    types, known = k.get("layer_types"), ("sliding_attention", "full_attention")
    if not isinstance(types, list) or len(types) < n_layers or any(t not in known for t in types):
        found = f"a list of {len(types)}" if isinstance(types, list) else repr(types)[:60]
        raise k.fail("layer_types", found, f"a list of {n_layers}, {' or '.join(known)} each")
    return [t == "sliding_attention" for t in types[:n_layers]]


def config_from_gguf(
    meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = "GGUF"
) -> ModelConfig:
    """From GGUF metadata and the shapes of its tensors by canonical name. Raises ModelError.

    The format has no word on YaRN's range of dimensions being exact, not rounded to whole ones; this family's is.
    """
    k = Keys(meta, where, "gpt-oss.")
    base = config_of_gguf(k, shapes, NAME)
    base = replace(base, rope=replace(base.rope, truncate=False))
    n_experts = k.integer("expert_count", high=MAX_EXPERTS)
    top_k = k.integer("expert_used_count", high=n_experts)
    inter, window = k.integer("expert_feed_forward_length"), k.integer("attention.sliding_window")
    return _with_experts(base, n_experts, top_k, inter, _sliding_of_gguf(k, base.n_layers), window)


def _sliding_of_gguf(k: Keys, n_layers: int) -> list[bool]:
    """Per layer whether it has a window: given as such, or all but the last of every `pattern` layers."""
    key = "attention.sliding_window_pattern"
    given: Any = k.values.get(k.prefix + key)
    if not hasattr(given, "tolist"):
        period = k.integer(key, 2)
        return [layer % period < period - 1 for layer in range(n_layers)]
    if len(given) < n_layers:
        raise k.fail(key, f"of {len(given)} layers", f"one of {n_layers}")
    return [bool(flag) for flag in given[:n_layers]]


def _with_experts(
    base: ModelConfig, n_experts: int, top_k: int, inter: int, sliding: list[bool], window: int
) -> ModelConfig:
    moe = MoeConfig(n_experts, top_k, inter, activation="gpt_oss", expert_bias=True)
    windows = tuple(window * slides for slides in sliding)
    return replace(base, moe=moe, windows=windows, attention_bias=True)


def expected_tensors(config: ModelConfig, names: Container[str] = ()) -> dict[str, Expected]:
    """Every tensor of the model by canonical name; `names` (what a file holds) is not needed here."""
    assert config.moe is not None
    out = model_tensors(config)
    for layer in range(config.n_layers):
        p = f"model.layers.{layer}."
        out[p + "self_attn.sinks"] = Expected((config.n_heads,), "small")
        out[p + "self_attn.o_proj.bias"] = Expected((config.hidden_size,), "small")
        out[p + "mlp.gate.bias"] = Expected((config.moe.n_experts,), "small")
    return out


def sink_attention(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
    """Grouped-query attention whose softmax has one more score per head, without a value."""
    prefix = f"model.layers.{layer}.self_attn."
    q, k, v = project(config, layer, x, ops)
    window = config.window(layer)
    out = ops.attention(layer, q, k, v, config.attention_scale, window=window, sinks=prefix + "sinks")
    return ops.linear(prefix + "o_proj", out.flatten(1))


def forward(config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor:
    """Logits float32 [sample rows, vocab] of one ragged batch."""
    return decoder(config, batch, ops, sink_attention)
