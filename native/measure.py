"""Measurements of memory and arithmetic by a tier's own threads, for estimates of speed."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from hetero.native.kernels import Bytes, Kernels, Pool, _array, _pointer, _target
from hetero.native.library import ffi

PIECE_STEP = 128
"""Pieces to read are whole multiples of so many bytes."""
Kind = Literal["int8", "f32", "maddubs", "madd"]
"""int8 added up in int32, float32, int8 added up in int16 (what the unit gives at most), int16 added up in int32."""
_KINDS: dict[Kind, int] = {"int8": 0, "f32": 1, "maddubs": 2, "madd": 3}  # HETERO_MEASURE_* of hetero.h


def fill(kernels: Kernels, pool: Pool, data: Bytes) -> None:
    """Write all of `data` (uint8 [n]), each worker one share, so that its pages lie in that worker's NUMA node."""
    _target("data", data, np.uint8)
    kernels.call("hetero_measure_fill", pool.native, _pointer("uint8_t[]", data), data.nbytes)


def read_seconds(kernels: Kernels, pool: Pool, data: Bytes, offsets: npt.NDArray[np.int64], piece: int) -> float:
    """Seconds to read `piece` bytes at each of `offsets` (int64 [n]) of `data`, shared out among the workers.

    ValueError for pieces that are no multiple of PIECE_STEP or not within `data`.
    """
    _array("data", data, np.uint8)
    _array("offsets", offsets, np.int64)
    seconds = ffi.new("double *")
    where = (_pointer("uint8_t[]", data), data.nbytes, _pointer("int64_t[]", offsets), len(offsets))
    kernels.call("hetero_measure_read", pool.native, *where, piece, seconds)
    return float(seconds[0])


def compute(kernels: Kernels, pool: Pool, kind: Kind, rounds: int) -> tuple[float, float]:
    """`rounds` of multiply-adds in registers on every worker: (multiplications plus additions, seconds)."""
    operations, seconds = ffi.new("double *"), ffi.new("double *")
    kernels.call("hetero_measure_compute", pool.native, _KINDS[kind], rounds, operations, seconds)
    return float(operations[0]), float(seconds[0])
