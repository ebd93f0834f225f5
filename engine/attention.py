"""Causal attention of one request's new tokens over its cached ones: natively on the CPU, in torch on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from hetero.engine.batch import Span
from hetero.engine.kvcache import KVCache
from hetero.engine.pages import PAGE
from hetero.native import Kernels, Pool
from hetero.native.attention import PagedAttention, Sight, Store, Table, Turn


@dataclass(frozen=True, slots=True)
class Mask:
    """What a token sees of the positions up to its own, and what else its softmax counts.

    `window`: the last so many positions, its own among them. `chunk`: only those of its own run of so many.
    `sinks` float32 [H]: scores that join each head's softmax without a value.
    """

    window: int | None = None
    chunk: int | None = None
    sinks: torch.Tensor | None = None

    def start(self, position: int) -> int:
        """The first position that a token at `position` sees."""
        in_window = 0 if self.window is None else max(0, position - self.window + 1)
        return in_window if self.chunk is None else max(in_window, position // self.chunk * self.chunk)

    def visible(self, tokens: int, first: int, device: torch.device) -> torch.Tensor:
        """Which positions the tokens at first.. see, bool [tokens, first + tokens]."""
        keys = torch.arange(first + tokens, device=device)[None]
        own = torch.arange(first, first + tokens, device=device)[:, None]
        seen = keys <= own
        if self.window is not None:
            seen &= keys > own - self.window
        if self.chunk is not None:
            seen &= keys // self.chunk == own // self.chunk
        return seen


CAUSAL = Mask()
Gathered = tuple[PagedAttention, torch.Tensor, Table]


class Attention(Protocol):
    """Appends a span's keys and values to the cache and attends; float32 in and out."""

    turns: bool
    """Whether `grouped` takes raw q and k with a Turn, and norms and turns them on the way."""

    def grouped(
        self,
        layer: int,
        span: Span,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        turn: Turn | None,
        scale: float,
        mask: Mask,
    ) -> torch.Tensor:
        """q [T, H, d], k [T, G, d] and v [T, G, e] of the span's rows: [T, H, e]. Head h reads key head h // (H/G)."""

    def latent(
        self, layer: int, span: Span, q: torch.Tensor, latent: torch.Tensor, rank: int, scale: float
    ) -> torch.Tensor:
        """q [T, H, rank + rope] over the shared `latent` [T, rank + rope], whose first `rank` are the values."""

    def latent_chosen(
        self,
        layer: int,
        span: Span,
        q: torch.Tensor,
        latent: torch.Tensor,
        rank: int,
        scale: float,
        chosen: torch.Tensor,
    ) -> torch.Tensor:
        """`latent` for tokens that see only `chosen` int64 [T, k], ascending; later ones than its own do not count."""


class TorchAttention:
    """On any torch device."""

    turns = False

    def __init__(self, kv: KVCache) -> None:
        self._kv = kv

    def grouped(
        self,
        layer: int,
        span: Span,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        turn: Turn | None,
        scale: float,
        mask: Mask,
    ) -> torch.Tensor:
        assert turn is None
        for name, values in (("k", k), ("v", v)):
            self._kv.append(layer, name, span.sequence, span.first, values)
        keys, values = (self._kv.view(layer, name, span.sequence, span.length) for name in ("k", "v"))
        return attend(q, keys, values, span.first, scale, mask)

    def latent(
        self, layer: int, span: Span, q: torch.Tensor, latent: torch.Tensor, rank: int, scale: float
    ) -> torch.Tensor:
        self._kv.append(layer, "latent", span.sequence, span.first, latent)
        keys = self._kv.view(layer, "latent", span.sequence, span.length)[:, None]
        # Values as wide as the keys, the surplus dropped: only then does torch not hold all scores at once.
        return attend(q, keys, keys, span.first, scale, CAUSAL)[..., :rank]

    def latent_chosen(
        self,
        layer: int,
        span: Span,
        q: torch.Tensor,
        latent: torch.Tensor,
        rank: int,
        scale: float,
        chosen: torch.Tensor,
    ) -> torch.Tensor:
        self._kv.append(layer, "latent", span.sequence, span.first, latent)
        if len(q) == 1:
            slots = self._kv.slots(span.sequence, chosen[0])
            store = self._kv.store(layer, "latent")
            keys = store.type.widen(store.rows.index_select(0, slots), store.width)[:, None]
            return _attend_one(q[0], keys, keys, scale, None)[None, :, :rank]
        keys = self._kv.view(layer, "latent", span.sequence, span.length)[:, None]
        seen = CAUSAL.visible(len(q), span.first, q.device)
        seen &= torch.zeros_like(seen).scatter_(1, chosen, True)
        return _attend_seen(q, keys, keys, seen, scale)[..., :rank]


class NativeAttention:
    """On the CPU, over the pages as they lie. A token's bits depend on no other token of its step."""

    turns = True

    def __init__(self, kv: KVCache, kernels: Kernels, pool: Pool) -> None:
        self._kv, self._kernels, self._pool = kv, kernels, pool
        self._paged: dict[int, PagedAttention] = {}
        self._scratch: dict[tuple[int, float], Gathered] = {}

    def grouped(
        self,
        layer: int,
        span: Span,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        turn: Turn | None,
        scale: float,
        mask: Mask,
    ) -> torch.Tensor:
        assert turn is not None
        tokens, heads, _ = q.shape
        paged = self._grouped(layer, heads, v.shape[2], scale, mask)
        out = torch.empty(tokens, heads, v.shape[2])
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        addresses = q.data_ptr(), k.data_ptr(), v.data_ptr()
        paged.step(self._pool, span.table, span.first, tokens, *addresses, turn, out.data_ptr())
        return out

    def _grouped(self, layer: int, heads: int, width: int, scale: float, mask: Mask) -> PagedAttention:
        if layer not in self._paged:
            stores = self._store(layer, "k"), self._store(layer, "v")
            sinks = 0 if mask.sinks is None else mask.sinks.data_ptr()
            sight = Sight(mask.window or 0, mask.chunk or 0, sinks)
            self._paged[layer] = self._make(*stores, heads, width, scale, sight)
        return self._paged[layer]

    def latent(
        self, layer: int, span: Span, q: torch.Tensor, latent: torch.Tensor, rank: int, scale: float
    ) -> torch.Tensor:
        if layer not in self._paged:
            self._paged[layer] = self._make(self._store(layer, "latent"), None, q.shape[1], rank, scale, Sight())
        tokens, heads, _ = q.shape
        q, latent, out = q.contiguous(), latent.contiguous(), torch.empty(tokens, heads, rank)
        paged = self._paged[layer]
        paged.append(span.table, span.first, tokens, latent.data_ptr())
        paged.attend(self._pool, span.table, span.first, tokens, q.data_ptr(), out.data_ptr())
        return out

    def latent_chosen(
        self,
        layer: int,
        span: Span,
        q: torch.Tensor,
        latent: torch.Tensor,
        rank: int,
        scale: float,
        chosen: torch.Tensor,
    ) -> torch.Tensor:
        """Token by token: what it sees is copied together, so that nothing else of the cache is read."""
        self._kv.append(layer, "latent", span.sequence, span.first, latent)
        store, (tokens, heads, _), k = self._kv.store(layer, "latent").rows, q.shape, chosen.shape[1]
        paged, scratch, table = self._gathered(layer, k, heads, rank, scale)
        slots = self._kv.slots(span.sequence, chosen)
        q, out = q.contiguous(), torch.empty(tokens, heads, rank)
        for t in range(tokens):
            n = min(k, span.first + t + 1)
            torch.index_select(store, 0, slots[t, :n], out=scratch[:n])
            paged.attend(self._pool, table, n - 1, 1, q[t].data_ptr(), out[t].data_ptr())
        return out

    def _gathered(self, layer: int, k: int, heads: int, rank: int, scale: float) -> Gathered:
        """Attention over `k` positions of a layer's latents that are copied into a store of their own."""
        found = self._scratch.get((k, scale))
        if found is None:
            pages = -(-k // PAGE)
            store = self._kv.store(layer, "latent")
            scratch = store.rows.new_empty(pages * PAGE, store.rows.shape[1])
            keys = Store(scratch.data_ptr(), len(scratch), 1, store.width, store.type.name)
            table = np.arange(pages, dtype=np.int32)
            found = self._scratch[k, scale] = (self._make(keys, None, heads, rank, scale, Sight()), scratch, table)
        return found

    def _make(
        self, keys: Store, values: Store | None, heads: int, width: int, scale: float, sight: Sight
    ) -> PagedAttention:
        return PagedAttention(self._kernels, keys, values, heads, width, PAGE, scale, sight)

    def _store(self, layer: int, name: str) -> Store:
        store = self._kv.store(layer, name)
        groups = store.rows.shape[1] if store.rows.ndim == 3 else 1
        return Store(store.rows.data_ptr(), len(store.rows), groups, store.width, store.type.name)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, scale: float, mask: Mask) -> torch.Tensor:
    """Attention of q [T, H, d] at positions first.. over k [L, G, d], v [L, G, e], L = first + T; returns [T, H, e]."""
    if q.shape[0] == 1:
        start = mask.start(first)
        return _attend_one(q[0], k[start:], v[start:], scale, mask.sinks)[None]
    if mask.sinks is None:
        return _attend_many(q, k, v, first, scale, mask)
    parts = _with_sink(q, k, v, mask.sinks / scale)
    return _attend_many(*parts, first, scale, mask)[..., : v.shape[2]]


def _attend_one(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, sinks: torch.Tensor | None
) -> torch.Tensor:
    """One token: two batched products over what it sees as it lies, without repeating key heads."""
    heads, groups = q.shape[0], k.shape[1]
    grouped = q.view(groups, heads // groups, -1) * scale
    scores = torch.bmm(grouped, k.permute(1, 2, 0))
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(groups, -1, 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : len(k)]
    return torch.bmm(weights, v.transpose(0, 1)).view(heads, -1)


def _with_sink(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v with one more key, whose value is 0 and whose product with q is each head's `score` [H].

    It is a product of 8 more columns, so that torch's blocked kernels, which take no score per head, can be used.
    """
    q, k, v = F.pad(q, (0, 8)), F.pad(k, (0, 8, 0, 0, 0, 1)), F.pad(v, (0, 8, 0, 0, 0, 1))
    q[..., -1] = score
    k[-1, :, -1] = 1
    return q, k, v


def _attend_many(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, scale: float, mask: Mask
) -> torch.Tensor:
    tokens, seen = len(q), None
    if first or len(k) > tokens or mask.window is not None or mask.chunk is not None:
        seen = F.pad(mask.visible(tokens, first, q.device), (0, len(k) - first - tokens), value=True)
    return _attend_seen(q, k, v, seen, scale)


def _attend_seen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Many tokens, which see `seen` bool [T, L] (None: causally, all being new): each key head is a batch of its own,
    which its query heads share without copies of the cache."""
    tokens, heads, groups = q.shape[0], q.shape[1], k.shape[1]
    repeat = heads // groups
    queries = q.reshape(tokens, groups, repeat, -1).permute(1, 2, 0, 3)
    keys, values = (cached.transpose(0, 1)[:, None].expand(-1, repeat, -1, -1) for cached in (k, v))
    out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, is_causal=seen is None, scale=scale)
    return out.permute(2, 0, 1, 3).reshape(tokens, heads, -1)
