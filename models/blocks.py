"""The parts that families are built from. Written against the engine's Ops; no device is named here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from hetero.models.config import HyperConfig, ModelConfig

if TYPE_CHECKING:
    import torch


Recurrence = Callable[[dict[str, "torch.Tensor"], list["torch.Tensor"]], "torch.Tensor"]
"""One request's rows through a recurrent layer: (states to change in place, inputs [n, ...]) to outputs [n, ...]."""


class Kept(Protocol):
    """What a layer keeps of one request while some rows of it, the first at position `first`, pass through."""

    @property
    def first(self) -> int: ...
    @property
    def states(self) -> dict[str, torch.Tensor]:
        """Its recurrent states by name, float32, to be changed in place."""

    def add(self, name: str, start: int, values: torch.Tensor) -> None:
        """Store `values` [n, ...] as the entries start.. of a paged state."""

    def entries(self, name: str, start: int, stop: int) -> torch.Tensor:
        """The entries [start, stop) of a paged state, float32 [stop - start, ...]."""

    def chosen(self, name: str, index: torch.Tensor) -> torch.Tensor:
        """The entries `index` int64 [...] of a paged state, float32 [..., ...]."""


Passage = Callable[[Kept, list["torch.Tensor"]], "torch.Tensor"]
"""One request's rows through a layer that keeps states and entries: inputs [n, ...] to outputs [n, ...]."""


Selection = Sequence["torch.Tensor | None"]
"""For each request of a batch the positions that its new tokens see, int64 [T, k] in ascending order; None: all up to
their own. Positions after a token's own, which come last, do not count."""


class Batch(Protocol):
    """What a forward pass reads of a step's batch."""

    @property
    def token_ids(self) -> torch.Tensor: ...
    @property
    def positions(self) -> torch.Tensor: ...


class Ops(Protocol):
    """What a forward pass may ask for; see hetero.engine.ops for shapes and dtypes."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor: ...
    def small(self, name: str) -> torch.Tensor | None: ...
    def norm(self, name: str, x: torch.Tensor, eps: float | None = None) -> torch.Tensor: ...
    def add(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor: ...
    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor: ...
    def join(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor: ...
    def sampled(self, h: torch.Tensor) -> torch.Tensor: ...
    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor: ...
    def linears(self, names: list[str], x: torch.Tensor) -> list[torch.Tensor]: ...
    def balanced(self, x: torch.Tensor, hyper: HyperConfig) -> torch.Tensor: ...
    def heads(self, name: str, x: torch.Tensor) -> torch.Tensor: ...
    def by_column_norms(self, name: str, x: torch.Tensor) -> torch.Tensor: ...
    def rotate(self, x: torch.Tensor, interleaved: bool | None = None) -> torch.Tensor: ...
    def route(self, logits: torch.Tensor, bias: str | None) -> tuple[torch.Tensor, torch.Tensor]: ...
    def experts(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor: ...
    def attention(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        norms: tuple[str, str] | None = None,
        *,
        rope: bool = True,
        window: int | None = None,
        chunk: int | None = None,
        sinks: str | None = None,
    ) -> torch.Tensor: ...
    def recurrent(self, layer: int, step: Recurrence, inputs: list[torch.Tensor]) -> torch.Tensor: ...
    def keeping(self, layer: int, step: Passage, inputs: list[torch.Tensor]) -> torch.Tensor: ...
    def latent_attention(
        self,
        layer: int,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        latent: torch.Tensor,
        scale: float,
        select: Selection | None = None,
    ) -> torch.Tensor: ...
    @property
    def longest(self) -> int: ...
    def index(self, layer: int, keys: torch.Tensor) -> None: ...
    def choose(self, layer: int, q: torch.Tensor, weights: torch.Tensor, top_k: int) -> Selection: ...


Attention = Callable[[ModelConfig, int, "torch.Tensor", Ops], "torch.Tensor"]


def project(
    config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [T, H, d], keys and values [T, G, d] of the normed x [T, hidden]."""
    prefix = f"model.layers.{layer}.self_attn."
    q, k, v = ops.linears([prefix + "q_proj", prefix + "k_proj", prefix + "v_proj"], x)
    heads, groups, dim = config.n_heads, config.n_kv_heads, config.head_dim
    return q.view(-1, heads, dim), k.view(-1, groups, dim), v.view(-1, groups, dim)


def grouped_attention(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
    """Grouped-query attention on the normed x [T, hidden], with per-head q/k norms where the model has them."""
    prefix = f"model.layers.{layer}.self_attn."
    q, k, v = project(config, layer, x, ops)
    norms = (prefix + "q_norm.weight", prefix + "k_norm.weight") if config.qk_norm else None
    out = ops.attention(layer, q, k, v, config.attention_scale, norms)
    return ops.linear(prefix + "o_proj", out.flatten(1))


def gated_attention(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
    """`grouped_attention` whose output is multiplied by the sigmoid of a gate; q_proj gives it after each head's q."""
    prefix = f"model.layers.{layer}.self_attn."
    both, k, v = ops.linears([prefix + "q_proj", prefix + "k_proj", prefix + "v_proj"], x)
    q, gate = both.view(-1, config.n_heads, 2, config.head_dim).unbind(2)
    k, v = (part.view(-1, config.n_kv_heads, config.head_dim) for part in (k, v))
    norms = (prefix + "q_norm.weight", prefix + "k_norm.weight")
    out = ops.attention(layer, q.contiguous(), k, v, config.head_dim**-0.5, norms)
    return ops.linear(prefix + "o_proj", (out * gate.sigmoid()).flatten(1))


def wide_norm_attention(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
    """Grouped-query attention whose q and k are normed over all heads at once, then clipped where the model does."""
    prefix = f"model.layers.{layer}.self_attn."
    q, k, v = project(config, layer, x, ops)
    q = ops.norm(prefix + "q_norm.weight", q.flatten(1)).view(q.shape)
    k = ops.norm(prefix + "k_norm.weight", k.flatten(1)).view(k.shape)
    if config.clip_qkv is not None:
        q, k, v = (part.clamp(-config.clip_qkv, config.clip_qkv) for part in (q, k, v))
    out = ops.attention(layer, q, k, v, config.attention_scale)
    return ops.linear(prefix + "o_proj", out.flatten(1))


def dense_mlp(prefix: str, x: torch.Tensor, ops: Ops, limit: float | None = None) -> torch.Tensor:
    """silu(gate x) * (up x), then down: a dense layer's MLP or the shared experts. `limit` clamps both factors."""
    gate, up = ops.linears([prefix + "gate_proj", prefix + "up_proj"], x)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return ops.linear(prefix + "down_proj", ops.gated(gate, up))


def feed_forward(config: ModelConfig, layer: int, x: torch.Tensor, ops: Ops) -> torch.Tensor:
    """A layer's MLP on the normed x [T, hidden]: routed and shared experts, or the dense one."""
    prefix = f"model.layers.{layer}.mlp."
    if config.moe is None or not config.is_moe_layer(layer):
        return dense_mlp(prefix, x, ops)
    bias = prefix + "gate.e_score_correction_bias" if config.moe.correction_bias else None
    ids, weights = ops.route(ops.linear(prefix + "gate", x), bias)
    routed, weights = _weighted(x, weights) if config.moe.weighs_input else (x, weights)
    out = ops.experts(layer, routed, ids, weights)
    if config.moe.shared_intermediate_size:
        shared = dense_mlp(prefix + "shared_experts.", x, ops)
        if config.moe.shared_gate:
            shared *= ops.linear(prefix + "shared_expert_gate", x).sigmoid()
        out = ops.add(out, shared)
    return out


def _weighted(x: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The input of each token's one expert times its weight, and ones for the output."""
    import torch

    assert weights.shape[1] == 1
    return x * weights, torch.ones_like(weights)


def decoder(config: ModelConfig, batch: Batch, ops: Ops, attention: Attention) -> torch.Tensor:
    """The pre-norm residual decoder: logits float32 [sample rows, vocab]."""
    factors = config.multipliers
    h = _times(ops.embed(batch.token_ids), factors.embedding)
    for layer in range(config.n_layers):
        prefix = f"model.layers.{layer}."
        x = attention(config, layer, ops.norm(prefix + "input_layernorm.weight", h), ops)
        h = ops.add(h, _times(x, factors.residual))
        if layer == config.n_layers - 1:
            h = ops.sampled(h)  # past the last attention only sampled rows matter
        x = feed_forward(config, layer, ops.norm(prefix + "post_attention_layernorm.weight", h), ops)
        h = ops.add(h, _times(x, factors.residual))
    h = ops.norm("model.norm.weight", h)
    if config.norm_head:
        h = ops.by_column_norms("lm_head", h)
    return _times(ops.linear("lm_head", h), factors.logits)


def _times(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x if factor == 1.0 else x * factor
