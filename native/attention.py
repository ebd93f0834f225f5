"""Attention over a paged KV cache, on plain addresses.

These calls happen several times per layer and token, so a call keeps its C struct and only changes what is new.
Addresses come with shapes that the caller vouches for; lengths are derived from them and checked in C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.native.formats import cache_row_bytes, format_info
from hetero.native.kernels import Kernels, Pool
from hetero.native.library import ffi

Table = npt.NDArray[np.int32]
_FLOATS, _BYTES, _TABLE = ffi.typeof("float *"), ffi.typeof("uint8_t *"), ffi.typeof("int32_t[]")


@dataclass(frozen=True, slots=True)
class Store:
    """One layer's cached values: `address` of [n_slots, groups, width] in `kv_format` (F32, F16, BF16 or Q8_0)."""

    address: int
    n_slots: int
    groups: int
    width: int
    kv_format: str

    @property
    def bytes(self) -> int:
        return self.n_slots * self.groups * cache_row_bytes(self.kv_format, self.width)


@dataclass(frozen=True, slots=True)
class Turn:
    """How a step's q and k are normed (addresses of weights [d], 0: not) and turned (cos and sin [n_tokens, half])."""

    cos: int
    sin: int
    half: int
    interleaved: bool
    q_norm: int = 0
    k_norm: int = 0
    eps: float = 0.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What a query sees of the positions up to its own: the last `window`, its own run of `chunk` (0: all).

    `sinks` is the address of float32 [heads], scores that join each softmax without a value (0: none).
    """

    window: int = 0
    chunk: int = 0
    sinks: int = 0


class PagedAttention:
    """Causal attention of `heads` query heads over one layer's stores; a None `values` reads MLA's latent."""

    def __init__(
        self,
        kernels: Kernels,
        keys: Store,
        values: Store | None,
        heads: int,
        value_width: int,
        page: int,
        scale: float,
        sight: Sight = Sight(),
    ) -> None:
        self._kernels, self._keys, self._values, self._page = kernels, keys, values, page
        args = ffi.new("hetero_attention_args *")
        args.kv_format = format_info(keys.kv_format).code
        args.heads, args.groups, args.d, args.e = heads, keys.groups, keys.width, value_width
        args.page, args.n_slots, args.scale = page, keys.n_slots, scale
        args.window, args.chunk = sight.window, sight.chunk
        args.sinks, args.sinks_bytes = ffi.cast(_FLOATS, sight.sinks), heads * 4
        args.k, args.k_bytes = ffi.cast(_BYTES, keys.address), keys.bytes
        if values is not None:
            args.v, args.v_bytes = ffi.cast(_BYTES, values.address), values.bytes
        self._args: Any = args
        self._step: Any = ffi.new("hetero_step_args *")
        self._step_tokens = -1

    def append(self, table: Table, first: int, n_tokens: int, keys: int, values: int = 0) -> None:
        """Store float32 `keys` (and `values`) [n_tokens, groups, width] at addresses, as positions first.. ."""
        self._append(self._keys, table, first, n_tokens, keys)
        if self._values is not None:
            self._append(self._values, table, first, n_tokens, values)

    def _append(self, store: Store, table: Table, first: int, n_tokens: int, source: int) -> None:
        self._kernels.call(
            "hetero_kv_append",
            self._args.kv_format,
            ffi.cast(_FLOATS, source),
            n_tokens * store.groups * store.width * 4,
            n_tokens,
            store.groups,
            store.width,
            first,
            ffi.from_buffer(_TABLE, table),
            len(table),
            self._page,
            ffi.cast(_BYTES, store.address),
            store.bytes,
        )

    def attend(self, pool: Pool, table: Table, first: int, n_tokens: int, q: int, out: int) -> None:
        """out float32 [n_tokens, heads, value_width] for q float32 [n_tokens, heads, width] at positions first.. ."""
        args = self._args
        pages = self._place(table, first, n_tokens, out)
        args.q, args.q_bytes = ffi.cast(_FLOATS, q), n_tokens * args.heads * args.d * 4
        self._kernels.call("hetero_attention", pool.native, args)
        del pages  # alive until here: the struct does not keep it

    def step(
        self, pool: Pool, table: Table, first: int, n_tokens: int, q: int, k: int, v: int, turn: Turn, out: int
    ) -> None:
        """Norm and turn raw q [n_tokens, heads, d] and k, store k and v, attend: what a decode does, in one call.

        `turn` differs between calls in nothing but the addresses of cos and sin.
        """
        pages = self._place(table, first, n_tokens, out)
        step, args = self._step, self._args
        step.q, step.k, step.v = ffi.cast(_FLOATS, q), ffi.cast(_FLOATS, k), ffi.cast(_FLOATS, v)
        step.cos, step.sin = ffi.cast(_FLOATS, turn.cos), ffi.cast(_FLOATS, turn.sin)
        if n_tokens != self._step_tokens:
            self._step_tokens = n_tokens
            step.q_bytes, step.k_bytes = n_tokens * args.heads * args.d * 4, n_tokens * args.groups * args.d * 4
            step.v_bytes, step.table_bytes = n_tokens * args.groups * args.e * 4, n_tokens * turn.half * 4
            step.half, step.interleaved, step.eps = turn.half, turn.interleaved, turn.eps
            step.q_norm, step.q_norm_bytes = ffi.cast(_FLOATS, turn.q_norm), args.d * 4
            step.k_norm, step.k_norm_bytes = ffi.cast(_FLOATS, turn.k_norm), args.d * 4
        self._kernels.call("hetero_attention_step", pool.native, args, step)
        del pages

    def _place(self, table: Table, first: int, n_tokens: int, out: int) -> Any:
        args = self._args
        args.n_tokens, args.first, args.n_pages = n_tokens, first, len(table)
        args.out, args.out_bytes = ffi.cast(_FLOATS, out), n_tokens * args.heads * args.e * 4
        args.pages = pages = ffi.from_buffer(_TABLE, table)
        return pages
