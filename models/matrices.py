"""Where a matrix of the model lies in a file, and how its raw rows are read from there with bounded memory.

Files hold experts one by one, stacked, or with gate and up in one tensor; a `Matrix` is one of them, whatever the file
has. Reading goes through a function, so that nothing here knows about open files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hetero.models.formats import FORMATS, StoredTensor
from hetero.models.iquants import FOREIGN, kept_format, repack, stored_row_bytes
from hetero.native.repack import transposed

Bytes = npt.NDArray[np.uint8]
Read = Callable[[StoredTensor, int, Bytes], None]
"""Fills the buffer with the tensor's bytes from an offset inside it; raises ModelError or TierError."""


class Matrix(Protocol):
    """One matrix of `n` rows of `k` values, read as raw rows of `format`."""

    @property
    def stored(self) -> StoredTensor:
        """The tensor in the file that an error should name."""

    @property
    def format(self) -> str: ...

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        """Raw rows [start, stop) as uint8 [stop - start, row_bytes]."""


@dataclass(frozen=True, slots=True)
class Found:
    """A tensor of the model as files hold it: its shape, and one matrix or one per expert (or per run of experts)."""

    shape: tuple[int, ...]
    matrices: tuple[Matrix, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that each lie in one piece, the first at byte `offset` of the tensor and the next `step` rows further on.

    Those of formats that kernels do not compute with are repacked as they are read.
    """

    stored: StoredTensor
    n: int
    k: int
    offset: int = 0
    step: int = 1

    @property
    def format(self) -> str:
        return kept_format(self.stored.format)

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        stored = self.stored.format
        size = stored_row_bytes(stored, self.k)
        raw = spaced(read, self.stored, self.offset + start * self.step * size, size, stop - start, self.step)
        return repack(stored, raw)[1] if stored in FOREIGN else raw


@dataclass(frozen=True, slots=True)
class Integers:
    """Rows of I32 or I64, read as float32, which holds whole numbers up to 2^24 exactly."""

    stored: StoredTensor
    n: int
    k: int

    @property
    def format(self) -> str:
        return "F32"

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        item = 4 if self.stored.format == "I32" else 8
        raw = spaced(read, self.stored, start * self.k * item, self.k * item, stop - start, 1)
        return raw.view(f"<i{item}").astype(np.float32).view(np.uint8)


@dataclass(frozen=True, slots=True)
class Derived:
    """What a matrix made of another one has of it; a subclass says how many rows it has and gives them."""

    inner: Matrix

    @property
    def stored(self) -> StoredTensor:
        return self.inner.stored

    @property
    def format(self) -> str:
        return self.inner.format

    @property
    def k(self) -> int:
        return self.inner.k


@dataclass(frozen=True, slots=True)
class RowRange(Derived):
    """`n` rows of another matrix, from row `first` on."""

    first: int
    n: int

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        return self.inner.rows(read, self.first + start, self.first + stop)


_NEAR = 4
"""Pieces that take at least a quarter of the bytes from one to the next are read with what lies between: many small
reads take longer."""


def spaced(read: Read, stored: StoredTensor, offset: int, size: int, count: int, step: int) -> Bytes:
    """Pieces of `size` bytes, `step` pieces apart, from byte `offset` on; uint8 [count, size], contiguous."""
    return np.ascontiguousarray(_pieces(read, stored, offset, size, count, size * step))


def window(
    read: Read, stored: StoredTensor, item: int, width: int, first: int, lines: int, start: int, count: int
) -> Bytes:
    """A rectangle of items of `item` bytes, lines of `width` items apart, as uint8 [lines, count, item].

    It begins at item `start` of the line that begins at item `first` of the tensor.
    """
    pieces = _pieces(read, stored, (first + start) * item, count * item, lines, width * item)
    return pieces.reshape(lines, count, item)


def _pieces(read: Read, stored: StoredTensor, offset: int, size: int, count: int, stride: int) -> Bytes:
    """`count` pieces of `size` bytes, `stride` bytes apart: uint8 [count, size], a view where they are near."""
    if stride <= _NEAR * size and count:
        near = np.empty(count * stride, dtype=np.uint8)
        read(stored, offset, near[: (count - 1) * stride + size])
        return near.reshape(count, stride)[:, :size]
    out = np.empty((count, size), dtype=np.uint8)
    for i in range(count):
        read(stored, offset + i * stride, out[i])
    return out


@dataclass(frozen=True, slots=True)
class Columns:
    """A transposed matrix of a plain type: row r and column c at item `first + c * width + r * step` of the tensor."""

    stored: StoredTensor
    n: int
    k: int
    first: int
    width: int
    step: int = 1

    @property
    def format(self) -> str:
        return self.stored.format

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        item = FORMATS[self.format].n_bytes
        span = (stop - start - 1) * self.step + 1 if stop > start else 0
        lines = window(read, self.stored, item, self.width, self.first, self.k, start * self.step, span)
        if stop == start:
            return np.empty((0, self.k * item), dtype=np.uint8)
        return transposed(lines.reshape(self.k, -1), item, self.step)


@dataclass(frozen=True, slots=True)
class Spread:
    """Rows of a plain type whose values are spread: row r and column c at item `first + r * width + c * step`."""

    stored: StoredTensor
    n: int
    k: int
    first: int
    width: int
    step: int

    @property
    def format(self) -> str:
        return self.stored.format

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        item = FORMATS[self.format].n_bytes
        span = (self.k - 1) * self.step + 1
        lines = window(read, self.stored, item, self.width, self.first + start * self.width, stop - start, 0, span)
        return np.ascontiguousarray(lines[:, :: self.step]).reshape(stop - start, -1)


@dataclass(frozen=True, slots=True)
class PairedHeads(Derived):
    """A matrix (or, with n = 1, a bias) whose heads of `d` rows lie as llama.cpp's converter permutes q and k."""

    d: int

    @property
    def n(self) -> int:
        return self.inner.n

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        d = self.d
        if self.n == 1:  # a bias: its values are what is permuted
            values = self.inner.rows(read, 0, 1).reshape(self.k, -1)
            return values[_unpermuted(0, self.k, d)].reshape(1, -1)[start:stop]
        # Whole heads are read, as a head's rows are interleaved.
        first, last = start // d * d, -(-stop // d) * d
        return self.inner.rows(read, first, last)[_unpermuted(start, stop, d) - first]


def _unpermuted(start: int, stop: int, d: int) -> npt.NDArray[np.int64]:
    """Where rows [start, stop) of the Hugging Face order lie in a GGUF file whose heads hold rope pairs.

    llama.cpp's converter stores head rows as [d/2, 2] where Hugging Face has [2, d/2].
    """
    row = np.arange(start, stop, dtype=np.int64)
    head, inside = row // d, row % d
    return head * d + inside % (d // 2) * 2 + inside // (d // 2)
