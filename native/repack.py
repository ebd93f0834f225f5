"""Quantised matrices from the ways in which checkpoints store them to raw rows: codes reordered, joined with scales.

The interpreter's lock is free meanwhile. The best tier's library does it; all give the same bytes.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from hetero.native.formats import format_info, row_bytes
from hetero.native.kernels import Kernels
from hetero.native.library import ffi
from hetero.native.tiers import choose_tier

Bytes = npt.NDArray[np.uint8]


@functools.cache
def _kernels() -> Kernels:
    return Kernels(choose_tier(None))


def join_rows(fmt: str, k: int, group: int, codes: Bytes, scales: Bytes, extra: Bytes | None = None) -> Bytes:
    """Raw rows, uint8 [n, row_bytes], of `k` inputs of a format of whole codes of 4 or 8 bits.

    codes: [n, bytes] in reading order, the low nibble first. scales: bytes of [n, k / group] items of the format's type
    (NVFP4_F32: [n, k / 16] e4m3). extra: a byte of zero point per group, or of NVFP4_F32 a float32's bytes per row.
    ValueError where lengths do not fit.
    """
    n = len(codes)
    rows = np.empty((n, row_bytes(fmt, k)), np.uint8)
    arguments = []
    for part in (codes, scales, extra if extra is not None else np.empty(0, np.uint8), rows):
        arguments += [ffi.from_buffer("uint8_t[]", part), part.nbytes]
    if n:
        _kernels().call("hetero_join_rows", format_info(fmt).code, n, k, group, *arguments)
    return rows


def transposed(lines: Bytes, item: int, step: int = 1) -> Bytes:
    """Columns 0, `step`, ... of items of 2 or 4 bytes as rows, uint8 [columns, len(lines) * item].

    `lines` is uint8 [lines, bytes]; its lines may lie apart.
    """
    count, columns = len(lines), -(-lines.shape[1] // (item * step))
    stride = lines.strides[0] if count > 1 else item
    out = np.empty((columns, count * item), np.uint8)
    used = (count - 1) * stride + ((columns - 1) * step + 1) * item
    address = ffi.cast("uint8_t *", lines.__array_interface__["data"][0])
    to = ffi.from_buffer("uint8_t[]", out)
    _kernels().call("hetero_transpose", item, count, columns, stride // item, step, address, used, to, out.nbytes)
    return out


def awq_codes(words: Bytes, k: int, n: int) -> Bytes:
    """AWQ's words, bytes of [k, n / 8] of them, to codes in reading order, uint8 [n, k / 2]."""
    out = np.empty((n, k // 2), np.uint8)
    buffers = (ffi.from_buffer("uint32_t[]", words), words.nbytes, ffi.from_buffer("uint8_t[]", out), out.nbytes)
    _kernels().call("hetero_awq_codes", n, k, *buffers)
    return out
