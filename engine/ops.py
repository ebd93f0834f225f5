"""The operations that a family's forward pass is written against, bound to one step's batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from hetero.engine.attention import Attention, Mask
from hetero.engine.batch import Batch, Span
from hetero.engine.kept import KeptOfRequest
from hetero.engine.kvcache import KVCache
from hetero.engine.owners import Angles, DenseOwner
from hetero.engine.selection import Indexers
from hetero.models.blocks import Passage, Recurrence, Selection
from hetero.models.config import HyperConfig, ModelConfig
from hetero.models.load import Model
from hetero.models.rope import inverse_frequencies, rotation_scale
from hetero.native import Pool
from hetero.native.attention import Turn
from hetero.native.prepared import moe


class Experts:
    """The routed experts of a model: native kernels on the CPU, whatever device owns the dense parts."""

    def __init__(self, model: Model, pool: Pool) -> None:
        self._banks, self._kernels, self._pool = model.banks, model.kernels, pool

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of the chosen experts for x [T, hidden], ids int32 and weights float32 [T, k]."""
        assert (x.dtype, ids.dtype, weights.dtype) == (torch.float32, torch.int32, torch.float32)
        host, chosen, scale = (a.to("cpu").contiguous() for a in (x, ids, weights))
        out = torch.empty_like(host)
        tokens, top_k = chosen.shape
        addresses = host.data_ptr(), chosen.data_ptr(), scale.data_ptr(), out.data_ptr()
        moe(self._kernels, self._pool, self._banks[layer], tokens, top_k, *addresses)
        return out.to(x.device)


class Runtime:
    """What does not change between steps: the model's parts where the placement put them."""

    def __init__(self, model: Model, owner: DenseOwner, pool: Pool, attention: Attention, kv: KVCache) -> None:
        self.config: ModelConfig = model.config
        self.kernels = model.kernels
        self.owner = owner
        self.attention, self.kv, self.states, self.indexers = attention, kv, kv.states, Indexers(kv)
        self.experts = Experts(model, pool)
        self.inverse = inverse_frequencies(model.config.rope).to(owner.device)
        self.rotation_scale = rotation_scale(model.config.rope)
        self._column_norms: dict[str, torch.Tensor] = {}

    @property
    def repeats(self) -> bool:
        """Whether steps are made of native calls, which can be made again."""
        return self.attention.turns

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin float32 [T, half] of `positions` int64 [T]."""
        turns = positions.float()[:, None] * self.inverse
        return turns.cos() * self.rotation_scale, turns.sin() * self.rotation_scale

    def to_latent(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """MLA: q_nope [T, H, nope] into the latent space, [T, H, r]."""
        return self.owner.heads(f"model.layers.{layer}.self_attn.k_b_proj", q)

    def from_latent(self, layer: int, mixed: torch.Tensor) -> torch.Tensor:
        """MLA: the attended latent [T, H, r] to values, [T, H, v]."""
        return self.owner.heads(f"model.layers.{layer}.self_attn.v_b_proj", mixed)

    def column_norms(self, name: str) -> torch.Tensor:
        """Of the matrix `name`.weight [n, k], float32 [k], computed once."""
        if name not in self._column_norms:
            self._column_norms[name] = self.owner.column_norms(name)
        return self._column_norms[name]


class Ops:
    """`forward(config, batch, ops)` of a family sees only this; no family names a device."""

    def __init__(self, runtime: Runtime, batch: Batch) -> None:
        self._runtime, self._batch = runtime, batch
        self.repeatable = True
        """Whether the same calls serve any position: False once a step has asked for what differs between them."""
        self._angles = Angles(*runtime.angles(batch.positions), runtime.config.rope.interleaved)

    @property
    def angles(self) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin float32 [T, half] of the step's positions, where its native calls read them."""
        return self._angles.cos, self._angles.sin

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """float32 [T, hidden]."""
        return self._runtime.owner.embed(token_ids)

    def small(self, name: str) -> torch.Tensor | None:
        """A small float32 tensor by canonical name, or None."""
        return self._runtime.owner.small(name)

    def norm(self, name: str, x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
        """RMS norm over the last axis by the weight `name`; `eps` defaults to the model's."""
        weight = self._runtime.owner.small(name)
        assert weight is not None, name
        return self._runtime.owner.norm(x, weight, self._runtime.config.rms_norm_eps if eps is None else eps)

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """x [T, k] by the matrix `name`.weight (and .bias): float32 [T, n]."""
        return self._runtime.owner.linears([name], x)[0]

    def heads(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """x [T, H, k], head by head times the matrix `name`.weight [H, n, k]: float32 [T, H, n]."""
        return self._runtime.owner.heads(name, x)

    def by_column_norms(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """x [T, k] for a product with the matrix `name`.weight whose columns have been made unit vectors."""
        return x / (self._runtime.column_norms(name) + 1e-7)

    def add(self, h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """h + x, both float32 [T, n]; `h` may be used up."""
        return self._runtime.owner.add(h, x)

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, both float32 [T, n]; `gate` may be used up."""
        return self._runtime.owner.gated(gate, up)

    def balanced(self, x: torch.Tensor, hyper: HyperConfig) -> torch.Tensor:
        """x float32 [T, n, n] as nearly doubly stochastic matrices; `x` may be used up. See `hetero.models.hyper`."""
        return self._runtime.owner.balanced(x, hyper)

    def join(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a [..., n] and b [..., m] side by side: [..., n + m]."""
        return self._runtime.owner.join(a, b)

    def sampled(self, h: torch.Tensor) -> torch.Tensor:
        """The rows of h [T, ...] whose logits are wanted."""
        rows = self._batch.sample_rows
        return h if len(rows) == len(h) else h[rows]

    def linears(self, names: list[str], x: torch.Tensor) -> list[torch.Tensor]:
        """Several matrices on the same x, in one pass over it."""
        return self._runtime.owner.linears(names, x)

    def rotate(self, x: torch.Tensor, interleaved: bool | None = None) -> torch.Tensor:
        """Rotary positions on x [T, heads, d], whose first `rope.dim` values turn, in pairs as the model's rope or as
        `interleaved` says."""
        angles = self._angles if interleaved is None else replace(self._angles, interleaved=interleaved)
        return self._runtime.owner.rotate(x, angles, None, 0.0)

    def _rotate(self, x: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        return self._runtime.owner.rotate(x, self._angles, norm, self._runtime.config.rms_norm_eps)

    def route(self, logits: torch.Tensor, bias: str | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts that router `logits` float32 [T, E] choose: ids int32 and weights float32 [T, k].

        `bias` names the small tensor [E] that corrects the choice, where the model has one.
        """
        correction = None if bias is None else self.small(bias)
        return self._runtime.owner.route(logits, correction)

    def experts(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The routed experts' weighted sum, float32 [T, hidden]."""
        return self._runtime.experts(layer, x, ids, weights)

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
    ) -> torch.Tensor:
        """Norm q [T, H, d] and k [T, G, d] per head by `norms`, turn them if `rope`, append k and v [T, G, e] to the
        cache and attend causally, each request to itself: [T, H, e].

        A token sees the last `window` positions with its own (None: all), and of these only the ones in its own run of
        `chunk` (Llama 4). `sinks` names a small tensor [H] of scores that join each softmax without a value (gpt-oss).
        All of these, `scale` and `norms` are the same at every call for one `layer`.
        """
        attention = self._runtime.attention
        weights = (None, None) if norms is None else (self.small(norms[0]), self.small(norms[1]))
        mask = Mask(window, chunk, None if sinks is None else self.small(sinks))
        assert mask.sinks is not None or sinks is None, sinks
        if not attention.turns:
            q, k = self._prepare(q, weights[0], rope), self._prepare(k, weights[1], rope)

        def attend(span: Span, at: slice) -> torch.Tensor:
            turn = self._turn(span, *weights, rope) if attention.turns else None
            return attention.grouped(layer, span, q[at], k[at], v[at], turn, scale, mask)

        return self._by_span(attend)

    def _prepare(self, x: torch.Tensor, norm: torch.Tensor | None, rope: bool) -> torch.Tensor:
        if rope:
            return self._rotate(x, norm)
        return x if norm is None else self._runtime.owner.norm(x, norm, self._runtime.config.rms_norm_eps)

    def _by_span(self, attend: Callable[[Span, slice], torch.Tensor]) -> torch.Tensor:
        outs = [attend(span, slice(span.start, span.stop)) for span in self._batch.spans]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _turn(self, span: Span, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, rope: bool) -> Turn:
        """What the fused kernel needs to norm and turn a span's q and k."""
        half = self._angles.cos.shape[1] if rope else 0
        offset = span.start * half * 4
        return Turn(
            self._angles.cos.data_ptr() + offset,
            self._angles.sin.data_ptr() + offset,
            half,
            self._angles.interleaved,
            0 if q_norm is None else q_norm.data_ptr(),
            0 if k_norm is None else k_norm.data_ptr(),
            self._runtime.config.rms_norm_eps,
        )

    def recurrent(self, layer: int, step: Recurrence, inputs: list[torch.Tensor]) -> torch.Tensor:
        """`step(states, inputs)` on the rows of each request in turn; `states` are the layer's by name, float32, to be
        changed in place. The outputs' rows follow each other as those of `inputs` [T, ...] do."""
        self.repeatable = False
        states, outs = self._runtime.states, []
        for span in self._batch.spans:
            sequence = span.sequence
            for start, stop in span.parts:
                outs.append(step(states.of(layer, sequence.slot), [x[start:stop] for x in inputs]))
                if span.first + stop - span.start == sequence.mark:
                    states.copy(layer, sequence.slot, sequence.pending)
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def keeping(self, layer: int, step: Passage, inputs: list[torch.Tensor]) -> torch.Tensor:
        """`step(kept, inputs)` on the rows of each request in turn, as `recurrent` does, with the paged entries of the
        layer besides its states."""
        self.repeatable = False
        kv, states, outs = self._runtime.kv, self._runtime.states, []
        for span in self._batch.spans:
            sequence = span.sequence
            for start, stop in span.parts:
                kept = KeptOfRequest(kv, layer, sequence, span.first + start - span.start)
                outs.append(step(kept, [x[start:stop] for x in inputs]))
                if span.first + stop - span.start == sequence.mark:
                    states.copy(layer, sequence.slot, sequence.pending)
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    @property
    def longest(self) -> int:
        """Positions of the batch's longest request after this step."""
        self.repeatable = False
        return max(span.length for span in self._batch.spans)

    def index(self, layer: int, keys: torch.Tensor) -> None:
        """Append an indexer's turned keys [T, d] to the cache; before `choose`."""
        self.repeatable = False
        for span in self._batch.spans:
            self._runtime.indexers.append(layer, span, keys[span.start : span.stop])

    def choose(self, layer: int, q: torch.Tensor, weights: torch.Tensor, top_k: int) -> Selection:
        """The positions that each token attends to, by an indexer's turned q [T, H, d] and weights [T, H]."""
        rows = [slice(span.start, span.stop) for span in self._batch.spans]
        spans = zip(self._batch.spans, rows, strict=True)
        return [self._runtime.indexers.choose(layer, span, q[at], weights[at], top_k) for span, at in spans]

    def latent_attention(
        self,
        layer: int,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        latent: torch.Tensor,
        scale: float,
        select: Selection | None = None,
    ) -> torch.Tensor:
        """Absorbed MLA: cache `latent` [T, r + rope] only; q_nope [T, H, nope], q_rope [T, H, rope]; [T, H, v].

        q·k = (W_k^T q_nope)·c + q_rope·k_rope, so keys are never expanded (DeepSeek-V2, arXiv 2405.04434, 2.1.2).
        `select` limits what each request's tokens see.
        """
        q = self.join(self._runtime.to_latent(layer, q_nope), q_rope)
        rank, attention = q.shape[2] - q_rope.shape[2], self._runtime.attention
        choices = {span.start: part for span, part in zip(self._batch.spans, select or (), strict=bool(select))}

        def attend(span: Span, at: slice) -> torch.Tensor:
            chosen = choices.get(span.start)
            if chosen is None:
                return attention.latent(layer, span, q[at], latent[at], rank, scale)
            return attention.latent_chosen(layer, span, q[at], latent[at], rank, scale, chosen)

        mixed = self._by_span(attend)
        return self._runtime.from_latent(layer, mixed)
