"""What the families share: typed access to hyper-parameters, rope settings, and the table of expected tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from hetero.machine.types import ModelError, Role
from hetero.models.config import ModelConfig, MoeConfig, RopeConfig

_REQUIRED: Any = object()
MAX_LAYERS = 4096
MAX_EXPERTS = 65536
MAX_DIM = 1 << 26
INV_FREQ = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"
"""Rope frequencies that some checkpoints hold; they follow from the configuration."""
VISION = r"(model\.)?(vision_tower|vision_model|visual|mm_projector|multi_modal_projector)\..*"
"""Tensors of the towers that turn images into embeddings; this version reads text only."""
_looked_up: ContextVar[set[str] | None] = ContextVar("looked_up", default=None)


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor that a family needs: its shape `[..., out, in]`, its role, and whether a file may lack it.

    `flat`: files may have it as a matrix, its leading dimensions in one. `integers`: files have it as whole numbers.
    """

    shape: tuple[int, ...]
    role: Role
    optional: bool = False
    flat: bool = False
    integers: bool = False


@dataclass(frozen=True, slots=True)
class FusedExperts:
    """How a family's Hugging Face files hold experts as `mlp.experts.gate_up_proj` and `.down_proj` (see RENAME_HF).

    A family declares it, as shapes cannot tell: [E, 2I, H] and [E, H, I], or transposed [E, H, 2I] and [E, I, H]. Gate
    comes before up, or every row (or column) of gate is followed by one of up. Packed blocks are never transposed.
    """

    transposed: bool = False
    interleaved: bool = False


class Keys:
    """Typed access to hyper-parameters. Every failure is a ModelError that names the file and the key.

    `values` are a config.json or GGUF metadata; `prefix` is put before each key (`qwen3moe.`). JSON's null and a
    missing key are the same. A GGUF array whose entries are all equal counts as that one value.
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.values = values
        self.where = where
        self.prefix = prefix

    def get(self, key: str) -> Any:
        """The raw value, or None."""
        looked_up = _looked_up.get()
        if looked_up is not None:
            looked_up.add(self.prefix + key)
        value: Any = self.values.get(self.prefix + key)
        if hasattr(value, "tolist"):  # numpy's, which a config.json does without
            entries = value.tolist()
            return entries[0] if entries and all(v == entries[0] for v in entries) else entries
        return value

    def has(self, key: str) -> bool:
        return self.get(key) is not None

    def fail(self, key: str, found: str, expected: str) -> ModelError:
        return ModelError(
            f"{self.where}: {self.prefix}{key} is {found}; expected {expected}",
            "the file is damaged or of a variant that is not supported; try another upload of this model",
        )

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelError(
                f"{self.where}: the required key {self.prefix}{key} is missing",
                "the file was written by an old or different converter; try another upload of this model",
            )
        return default

    def integer(self, key: str, default: Any = _REQUIRED, *, low: int = 1, high: int = MAX_DIM) -> int:
        """An integer in [low, high]."""
        value = self._value(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(key, _short(value), f"a whole number from {low} to {high}")
        if not low <= value <= high:
            raise self.fail(key, _short(value), f"a whole number from {low} to {high}")
        return value

    def uniform(self, key: str, default: Any = _REQUIRED, *, high: int = MAX_DIM) -> int:
        """An integer in [1, high], also given as a list with one for each layer, which are then all equal."""
        value = self.get(key)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            return Keys({key: value[0]}, self.where).integer(key, high=high)
        return self.integer(key, default, high=high)

    def number(self, key: str, default: Any = _REQUIRED, *, above: float = 0.0) -> float:
        """A finite number > `above`."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(key, _short(value), f"a number above {above:g}")
        if abs(value) > 1e30 or not math.isfinite(value) or value <= above:
            raise self.fail(key, _short(value), f"a finite number above {above:g}")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A finite number, or None where the key is missing."""
        return None if self.get(key) is None else self.number(key, above=-1e30)

    def flag(self, key: str, default: Any = _REQUIRED) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.fail(key, _short(value), "true or false")
        return value

    def text(self, key: str, default: Any = _REQUIRED) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.fail(key, _short(value), "a text")
        return value

    def layers(self, key: str, n_layers: int) -> tuple[int, ...]:
        """A list of layer numbers below `n_layers`; empty where the key is missing."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or any(type(v) is not int or not 0 <= v < n_layers for v in value):
            raise self.fail(key, _short(value), f"a list of layer numbers from 0 to {n_layers - 1}")
        return tuple(sorted(set(value)))

    def any_of(self, *names: str) -> str:
        """The first of `names` that is there, or the first one for a message about its absence."""
        return next((name for name in names if self.has(name)), names[0])

    def refuse_unless(self, key: str, default: Any, *allowed: Any) -> None:
        """Refuse a variant that the family's forward pass does not have."""
        value = self.get(key)
        value = default if value is None else value
        if value not in allowed:
            names = " or ".join(repr(a) for a in allowed)
            raise ModelError(
                f"{self.where}: {self.prefix}{key} is {_short(value)}; this version supports only {names}",
                "this variant of the architecture is not supported yet",
            )


@contextmanager
def recorded_keys() -> Iterator[set[str]]:
    """While it lasts, the full names of hyper-parameters that are looked up, nested ones as `rope_scaling.factor`."""
    keys: set[str] = set()
    token = _looked_up.set(keys)
    try:
        yield keys
    finally:
        _looked_up.reset(token)


def text_keys(raw: Mapping[str, Any], where: str) -> Keys:
    """The hyper-parameters of a config.json's language model, which multimodal models nest in `text_config`."""
    nested = raw.get("text_config")
    if not isinstance(nested, dict):
        return Keys(raw, where)
    return Keys({f"text_config.{key}": value for key, value in nested.items()}, where, "text_config.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_HF_KINDS = {"default": "default", "linear": "linear", "yarn": "yarn", "llama3": "llama3"}
RopeKind = Literal["default", "linear", "yarn", "llama3"]


def _even(keys: Keys, dim: int) -> int:
    """The rotated width, whose values turn in pairs."""
    if dim % 2:
        raise ModelError(
            f"{keys.where}: heads rotate {dim} values; expected an even number",
            "the file is damaged or of a variant that is not supported; try another upload of this model",
        )
    return dim


def rope_from_hf(
    keys: Keys, dim: int, max_context: int, *, interleaved: bool, theta: float = 10000.0, partial: float | None = None
) -> RopeConfig:
    """Rope settings in both spellings: `rope_theta` + `rope_scaling`, and transformers 5's `rope_parameters`.

    `theta` is the architecture's default base. `partial` is the default share of a head that turns, for architectures
    that know `partial_rotary_factor`; None refuses any but 1.
    """
    raw = keys.get("rope_scaling") or keys.get("rope_parameters") or {}
    name = "rope_scaling" if keys.get("rope_scaling") else "rope_parameters"
    if not isinstance(raw, dict):
        raise keys.fail(name, _short(raw), "an object")
    p = nested(keys, name, raw)
    return rope_of(p, keys, dim, max_context, interleaved=interleaved, theta=theta, partial=partial)


def nested(keys: Keys, name: str, raw: Mapping[str, Any]) -> Keys:
    """The keys of the object `raw` under `name`."""
    name = keys.prefix + name
    return Keys({f"{name}.{k}": v for k, v in raw.items()}, keys.where, f"{name}.")


def rope_of(
    p: Keys, keys: Keys, dim: int, max_context: int, *, interleaved: bool, theta: float, partial: float | None
) -> RopeConfig:
    """Rope settings by the object `p`; what it lacks stands in `keys`, see `rope_from_hf`."""
    kind = p.text("rope_type", p.text("type", "default"))
    if kind not in _HF_KINDS or any(isinstance(v, dict) for v in p.values.values()):
        found = kind if kind not in _HF_KINDS else "given per layer type"
        raise ModelError(
            f"{keys.where}: rope scaling {found!r} is not supported; supported: {', '.join(_HF_KINDS)}",
            "this variant of the architecture is not supported yet",
        )
    factor = p.number("partial_rotary_factor", keys.number("partial_rotary_factor", partial or 1.0))
    if factor > 1.0 or (partial is None and factor != 1.0):
        expected = "1 (this architecture rotates the whole head)" if partial is None else "at most 1"
        raise keys.fail("partial_rotary_factor", f"{factor:g}", expected)
    dim = int(dim * factor)
    theta = p.number("rope_theta", keys.number("rope_theta", theta, above=1.0), above=1.0)
    rope = RopeConfig(theta=theta, dim=_even(keys, dim), interleaved=interleaved, kind=cast(RopeKind, kind))
    return rope if kind == "default" else _scaled(rope, p, keys, max_context)


def _scaled(rope: RopeConfig, p: Keys, keys: Keys, max_context: int) -> RopeConfig:
    factor = p.number("factor")
    if rope.kind == "linear":
        return replace(rope, factor=factor)
    original = p.integer("original_max_position_embeddings", max_context)
    original = keys.integer("original_max_position_embeddings", original)
    rope = replace(rope, factor=factor, original_context=original)
    if rope.kind == "llama3":
        low, high = p.number("low_freq_factor"), p.number("high_freq_factor")
        if high < low:
            raise p.fail("high_freq_factor", f"{high:g}", f"at least low_freq_factor ({low:g})")
        return replace(rope, low_freq_factor=low, high_freq_factor=high)
    return replace(
        rope,
        beta_fast=p.number("beta_fast", 32.0),
        beta_slow=p.number("beta_slow", 1.0),
        mscale=p.optional_number("mscale"),
        mscale_all_dim=p.optional_number("mscale_all_dim"),
        attention_factor=p.optional_number("attention_factor"),
        truncate=p.flag("truncate", True),
    )


def rope_from_gguf(keys: Keys, dim: int, max_context: int, *, interleaved: bool) -> RopeConfig:
    """Rope settings of GGUF metadata; llama.cpp's default for a missing base is 10000."""
    theta = keys.number("rope.freq_base", 10000.0, above=1.0)
    rope = RopeConfig(theta=theta, dim=_even(keys, dim), interleaved=interleaved)
    old_linear = keys.optional_number("rope.scale_linear")
    kind = keys.text("rope.scaling.type", "none" if old_linear is None else "linear")
    if kind == "none":
        return rope
    if kind not in ("linear", "yarn"):
        raise ModelError(
            f"{keys.where}: rope scaling {kind!r} is not supported; supported: none, linear, yarn",
            "this variant of the architecture is not supported yet",
        )
    factor = keys.number("rope.scaling.factor", old_linear or 1.0)
    rope = replace(rope, kind=cast(RopeKind, kind), factor=factor)
    if kind == "linear":
        return rope
    return replace(
        rope,
        original_context=keys.integer("rope.scaling.original_context_length", max_context),
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=keys.optional_number("rope.scaling.yarn_attn_factor"),
    )


def kv_heads(keys: Keys, key: str, heads: int, default: int | None = None) -> int:
    """The number of key/value heads, which divides the number of query heads; as many as those by default."""
    n = keys.integer(key, heads if default is None else default)
    if heads % n:
        raise keys.fail(key, str(n), f"a divisor of the {heads} query heads")
    return n


def gguf_heads(keys: Keys, *, partial: bool = False) -> tuple[int, int, int]:
    """Query heads, hidden size and the width of a head, which keys, values and (unless `partial`) rotation share."""
    heads, hidden = keys.integer("attention.head_count"), keys.integer("embedding_length")
    dim = keys.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length",) if partial else ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, dim) != dim:
            raise keys.fail(key, str(keys.integer(key)), f"{dim}, the width of a head")
    return heads, hidden, dim


def check_groups(moe: MoeConfig, where: str) -> MoeConfig:
    """`moe` itself. Raises ModelError where its groups cannot give the experts of a token."""
    size, rest = divmod(moe.n_experts, moe.n_group)
    if rest or not 1 <= moe.topk_group <= moe.n_group or moe.topk_group * size < moe.top_k:
        raise ModelError(
            f"{where}: {moe.n_experts} experts in {moe.n_group} groups of which {moe.topk_group} are used cannot "
            f"give {moe.top_k} experts for a token",
            "the expert counts contradict each other; try another upload of this model",
        )
    if moe.n_group > 1 and moe.group_score == "top2" and size < 2:
        raise ModelError(f"{where}: groups of one expert cannot be scored by their best two", "the file is damaged")
    return moe


def gguf_shape(shapes: Mapping[str, tuple[int, ...]], name: str, rank: int, where: str) -> tuple[int, ...]:
    """The shape of a tensor whose presence and rank the configuration depends on."""
    shape = shapes.get(name)
    if shape is None or len(shape) != rank:
        found = "is missing" if shape is None else f"has shape {list(shape)}"
        raise ModelError(
            f"{where}: the tensor {name} {found}; a complete language model has it with {rank} dimensions",
            "the file holds only a part of a model; download the complete model",
        )
    return shape


def shell_tensors(hidden: int, vocab: int, n_layers: int) -> dict[str, Expected]:
    """Embedding, head (absent = tied), final norm and the two norms of every layer."""
    out = {
        "model.embed_tokens.weight": Expected((vocab, hidden), "dense"),
        "lm_head.weight": Expected((vocab, hidden), "dense", optional=True),
        "model.norm.weight": Expected((hidden,), "small"),
    }
    for layer in range(n_layers):
        out[f"model.layers.{layer}.input_layernorm.weight"] = Expected((hidden,), "small")
        out[f"model.layers.{layer}.post_attention_layernorm.weight"] = Expected((hidden,), "small")
    return out


def attention_tensors(prefix: str, hidden: int, heads: int, kv_heads: int, dim: int, bias: bool) -> dict[str, Expected]:
    """Grouped-query attention of one layer, `prefix` being `model.layers.N.self_attn.`."""
    rows = {"q": heads * dim, "k": kv_heads * dim, "v": kv_heads * dim}
    out = {f"{prefix}{p}_proj.weight": Expected((n, hidden), "dense") for p, n in rows.items()}
    out[f"{prefix}o_proj.weight"] = Expected((hidden, heads * dim), "dense")
    if bias:
        out |= {f"{prefix}{p}_proj.bias": Expected((n,), "small") for p, n in rows.items()}
        out[f"{prefix}o_proj.bias"] = Expected((hidden,), "small", optional=True)
    return out


def feed_forward_tensors(config: ModelConfig, layer: int) -> dict[str, Expected]:
    """The router with its bias, the routed and the shared experts of a layer, or its dense MLP."""
    prefix, hidden, moe = f"model.layers.{layer}.mlp.", config.hidden_size, config.moe
    if moe is None or not config.is_moe_layer(layer):
        return mlp_tensors(prefix, hidden, config.intermediate_size)
    out = expert_tensors(prefix, hidden, moe.intermediate_size, moe.n_experts, moe.expert_bias)
    if moe.correction_bias:
        out[prefix + "gate.e_score_correction_bias"] = Expected((moe.n_experts,), "small")
    if moe.shared_intermediate_size:
        out |= mlp_tensors(prefix + "shared_experts.", hidden, moe.shared_intermediate_size)
    if moe.shared_gate:
        out[prefix + "shared_expert_gate.weight"] = Expected((1, hidden), "small")
    return out


def mlp_tensors(prefix: str, hidden: int, inter: int) -> dict[str, Expected]:
    """A dense SwiGLU MLP; `prefix` ends with a dot."""
    return {
        f"{prefix}gate_proj.weight": Expected((inter, hidden), "dense"),
        f"{prefix}up_proj.weight": Expected((inter, hidden), "dense"),
        f"{prefix}down_proj.weight": Expected((hidden, inter), "dense"),
    }


def expert_tensors(prefix: str, hidden: int, inter: int, n_experts: int, bias: bool = False) -> dict[str, Expected]:
    """The router and the stacked experts of one layer, `prefix` being `model.layers.N.mlp.`."""
    rows = {"gate": inter, "up": inter, "down": hidden} if bias else {}
    biases = {f"{prefix}experts.{part}.bias": Expected((n_experts, n), "small") for part, n in rows.items()}
    return biases | {
        f"{prefix}gate.weight": Expected((n_experts, hidden), "small"),
        f"{prefix}experts.gate.weight": Expected((n_experts, inter, hidden), "expert"),
        f"{prefix}experts.up.weight": Expected((n_experts, inter, hidden), "expert"),
        f"{prefix}experts.down.weight": Expected((n_experts, hidden, inter), "expert"),
    }
