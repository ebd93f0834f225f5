"""Attention over a paged KV cache, and what is done per head before and after it, on plain addresses.

These calls happen several times per layer and token, so a call keeps its C struct and only changes what is new.
Addresses come with shapes that the caller vouches for; lengths are derived from them and checked in C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.native.formats import format_info
from hetero.native.kernels import Kernels, PackedMatrix, Pool
from hetero.native.library import ffi

Table = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Store:
    """One layer's cached values: `address` of [n_slots, groups, width] in `kv_format` (F32, F16 or BF16)."""

    address: int
    n_slots: int
    groups: int
    width: int
    kv_format: str

    @property
    def bytes(self) -> int:
        return self.n_slots * self.groups * self.width * (4 if self.kv_format == "F32" else 2)


class PagedAttention:
    """Causal attention of `heads` query heads over one layer's stores; a None `values` reads MLA's latent."""

    def __init__(
        self, kernels: Kernels, keys: Store, values: Store | None, heads: int, value_width: int, page: int, scale: float
    ) -> None:
        self._kernels, self._keys, self._values, self._page = kernels, keys, values, page
        args = ffi.new("hetero_attention_args *")
        args.kv_format = format_info(keys.kv_format).code
        args.heads, args.groups, args.d, args.e = heads, keys.groups, keys.width, value_width
        args.page, args.n_slots, args.scale = page, keys.n_slots, scale
        args.k, args.k_bytes = ffi.cast("uint8_t *", keys.address), keys.bytes
        if values is not None:
            args.v, args.v_bytes = ffi.cast("uint8_t *", values.address), values.bytes
        self._args: Any = args

    def append(self, table: Table, first: int, n_tokens: int, keys: int, values: int = 0) -> None:
        """Store float32 `keys` (and `values`) [n_tokens, groups, width] at addresses, as positions first.. ."""
        self._append(self._keys, table, first, n_tokens, keys)
        if self._values is not None:
            self._append(self._values, table, first, n_tokens, values)

    def _append(self, store: Store, table: Table, first: int, n_tokens: int, source: int) -> None:
        width = store.groups * store.width
        self._kernels.call(
            "hetero_kv_append",
            self._args.kv_format,
            ffi.cast("float *", source),
            n_tokens * width * 4,
            n_tokens,
            width,
            first,
            ffi.from_buffer("int32_t[]", table),
            len(table),
            self._page,
            ffi.cast("uint8_t *", store.address),
            store.bytes,
        )

    def attend(self, pool: Pool, table: Table, first: int, n_tokens: int, q: int, out: int) -> None:
        """out float32 [n_tokens, heads, value_width] for q float32 [n_tokens, heads, width] at positions first.. ."""
        args = self._args
        args.n_tokens, args.first, args.n_pages = n_tokens, first, len(table)
        args.q, args.q_bytes = ffi.cast("float *", q), n_tokens * args.heads * args.d * 4
        args.out, args.out_bytes = ffi.cast("float *", out), n_tokens * args.heads * args.e * 4
        args.pages = pages = ffi.from_buffer("int32_t[]", table)
        self._kernels.call("hetero_attention", pool.native, args)
        del pages  # alive until here: the struct does not keep it


def linear_heads(kernels: Kernels, pool: Pool, matrix: PackedMatrix, heads: int, tokens: int, x: int, out: int) -> None:
    """Each of `heads` equal parts of a matrix times its own input: x float32 [heads, T, k], out [heads, T, n / heads].

    n / heads must be a multiple of 16: ValueError otherwise.
    """
    kernels.call(
        "hetero_linear_heads",
        pool.native,
        matrix.native,
        heads,
        ffi.cast("float *", x),
        heads * tokens * matrix.k * 4,
        tokens,
        ffi.cast("float *", out),
        tokens * matrix.n * 4,
    )


def norm_rope(
    kernels: Kernels,
    pool: Pool,
    x: int,
    shape: tuple[int, int, int],
    x_stride: int,
    out: int,
    *,
    weight: int = 0,
    eps: float = 0.0,
    cos: int = 0,
    sin: int = 0,
    half: int = 0,
    interleaved: bool = False,
) -> None:
    """RMS norm of each head of x float32 [T, heads, d] by `weight` [d], then rotation by cos and sin [T, half].

    Rows of x lie `x_stride` floats apart; `out` is [T, heads, d]. Weight 0: no norm. half 0: no rotation.
    """
    tokens, heads, d = shape
    args = ffi.new("hetero_rope_args *")
    args.n_tokens, args.heads, args.d, args.half, args.x_stride = tokens, heads, d, half, x_stride
    args.interleaved, args.eps = interleaved, eps
    args.x, args.x_bytes = ffi.cast("float *", x), ((tokens - 1) * x_stride + heads * d) * 4 if tokens else 0
    args.weight, args.weight_bytes = ffi.cast("float *", weight), d * 4
    args.cos, args.sin, args.table_bytes = ffi.cast("float *", cos), ffi.cast("float *", sin), tokens * half * 4
    args.out, args.out_bytes = ffi.cast("float *", out), tokens * heads * d * 4
    kernels.call("hetero_norm_rope", pool.native, args)
