"""Matrices stored as 4-bit integers with scales per group: compressed-tensors, GPTQ and AWQ.

They give the kernels' I4_G and U4_G: w = (q - 8) * s or (q - z) * s, codes and scales as they are in the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hetero.machine.types import ModelError
from hetero.models.codes import AWQ_ORDER, Bytes, block_order, joined, word_codes
from hetero.models.float_codes import DAMAGED
from hetero.models.formats import StoredTensor, plain_to_f32
from hetero.models.matrices import Read, window

_CENTRE = 8


def int4_format(group: int, k: int, scale: StoredTensor, zeros: bool) -> str:
    """The kernels' format for groups of `group` inputs; longer groups are cut into several of 128."""
    block = next(b for b in (128, 64, 32) if group % b == 0 and k % b == 0)
    return f"{'U4' if zeros else 'I4'}_{block}" + ("_F16" if scale.format == "F16" else "")


@dataclass(frozen=True, slots=True)
class Int4:
    """What the three have in common: a matrix of `n` rows and `k` inputs in groups of `group`."""

    path: Path
    stored: StoredTensor
    scale: StoredTensor
    zero: StoredTensor | None
    n: int
    k: int
    group: int
    symmetric: bool
    """All zero points are 8 (and are checked to be where the file has some)."""

    @property
    def format(self) -> str:
        return int4_format(self.group, self.k, self.scale, not self.symmetric)

    def _raw_rows(self, codes: Bytes, scales: Bytes, zeros: Bytes | None) -> Bytes:
        """Raw rows of blocks' codes [m, k/32, 16], scales [m, groups, 2] and zero points [m, groups]."""
        count, block = codes.shape[0], int(self.format.split("_")[1])
        repeat, blocks = self.group // block, self.k // block
        head = 2 if self.symmetric else 4
        out = np.zeros((count, blocks, head + block // 2), dtype=np.uint8)
        out[:, :, :2] = np.repeat(scales, repeat, axis=1)
        if not self.symmetric:
            assert zeros is not None
            out[:, :, 2] = np.repeat(zeros, repeat, axis=1)
        out[:, :, head:] = codes.reshape(count, blocks, -1)
        return out.reshape(count, -1)

    def _check(self, codes: Bytes, scales: Bytes, zeros: Bytes | None, start: int) -> None:
        """Raises ModelError for groups that would silently vanish and for zero points that ought not to be there."""
        if self.symmetric and zeros is not None and (zeros != _CENTRE).any():
            row, group = np.argwhere(zeros != _CENTRE)[0]
            assert self.zero is not None
            raise ModelError(
                f"{self.path}: tensor {self.zero.name!r}: the zero point of group {group} of row {start + int(row)} is "
                f"{zeros[row, group]}; expected {_CENTRE}, as quantization_config says the weights are symmetric",
                "config.json and weights do not belong together; download all of them again from one place",
            )
        empty = plain_to_f32(np.ascontiguousarray(scales).reshape(-1), self.scale.format) == 0
        for row, group in np.argwhere(empty.reshape(scales.shape[:2])):
            part = codes.reshape(codes.shape[0], -1)[row, group * self.group // 2 : (group + 1) * self.group // 2]
            zero = _CENTRE if zeros is None else int(zeros[row, group])
            if (part != zero * 17).any():
                raise ModelError(
                    f"{self.path}: tensor {self.scale.name!r}: the scale of group {group} of row {start + int(row)} is "
                    f"0, but the codes in {self.stored.name!r} are not {zero}",
                    DAMAGED,
                )


@dataclass(frozen=True, slots=True)
class PackedInt4(Int4):
    """compressed-tensors' pack-quantized: words along the inputs; zero points packed along the rows."""

    shape: StoredTensor | None

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        self._check_shape(read)
        count, groups = stop - start, self.k // self.group
        raw = np.empty((count, self.k // 2), dtype=np.uint8)
        read(self.stored, start * self.k // 2, raw)
        codes = block_order(raw, 32).reshape(count, -1, 16)
        scales = window(read, self.scale, 2, groups, start * groups, count, 0, groups)
        zeros = self._zeros(read, start, stop, groups)
        self._check(codes, scales, zeros, start)
        return self._raw_rows(codes, scales, zeros)

    def _zeros(self, read: Read, start: int, stop: int, groups: int) -> Bytes | None:
        if self.zero is None:
            return None
        first, last = start // 8, -(-stop // 8)
        words = window(read, self.zero, 4, groups, first * groups, last - first, 0, groups).view("<u4")[:, :, 0]
        by_row = word_codes(np.ascontiguousarray(words.T)).T  # [8 * (last - first), groups]
        return np.ascontiguousarray(by_row[start - 8 * first : stop - 8 * first])

    def _check_shape(self, read: Read) -> None:
        """The shape that is stored beside the words is that of the words."""
        if self.shape is None:
            return
        raw = np.empty(self.shape.n_bytes, dtype=np.uint8)
        read(self.shape, 0, raw)
        found = raw.view("<i8" if self.shape.format == "I64" else "<i4").tolist()
        if found != [self.n, self.k]:
            raise ModelError(
                f"{self.path}: tensor {self.shape.name!r} is {found}; expected {[self.n, self.k]}, the shape of "
                f"{self.stored.name!r}",
                DAMAGED,
            )


@dataclass(frozen=True, slots=True)
class Gptq(Int4):
    """GPTQ: words along the inputs of transposed matrices; `offset` is added to zero points (1 in format 1)."""

    groups: StoredTensor | None
    """g_idx, which must number the groups in order."""
    offset: int

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        self._check_groups(read)
        count = stop - start
        words = window(read, self.stored, 4, self.n, 0, self.k // 8, start, count).view("<u4")[:, :, 0]
        raw = np.ascontiguousarray(words.T).view(np.uint8)  # [count, k / 2] in reading order
        codes = block_order(raw, 32).reshape(count, -1, 16)
        scales = _scales_of_columns(read, self, start, count)
        first, last = start // 8, -(-stop // 8)
        assert self.zero is not None
        packed = window(read, self.zero, 4, self.n // 8, 0, self.k // self.group, first, last - first)
        zeros = word_codes(np.ascontiguousarray(packed.view("<u4")[:, :, 0]))[:, start - 8 * first : stop - 8 * first]
        zeros = np.ascontiguousarray(zeros.T) + np.uint8(self.offset)
        self._check(codes, scales, zeros, start)
        return self._raw_rows(codes, scales, zeros)

    def _check_groups(self, read: Read) -> None:
        if self.groups is None:
            return
        raw = np.empty(self.groups.n_bytes, dtype=np.uint8)
        read(self.groups, 0, raw)
        if (raw.view("<i4") != np.arange(self.k) // self.group).any():
            raise ModelError(
                f"{self.path}: tensor {self.groups.name!r} permutes the inputs; expected groups of {self.group} in "
                "order",
                "use a version of this model that was quantised without act-order (desc_act false), or a GGUF one",
            )


@dataclass(frozen=True, slots=True)
class Awq(Int4):
    """AWQ (GEMM): words along the outputs of transposed matrices, eight outputs to a word in an order of its own."""

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        count = stop - start
        inside = slice(start % 8, start % 8 + count)
        codes = joined(np.ascontiguousarray(self._outputs(read, self.stored, self.k, start, stop)[:, inside].T))
        scales = _scales_of_columns(read, self, start, count)
        assert self.zero is not None
        zeros = self._outputs(read, self.zero, self.k // self.group, start, stop)[:, inside]
        zeros = np.ascontiguousarray(zeros.T)
        self._check(codes, scales, zeros, start)
        return self._raw_rows(codes, scales, zeros)

    def _outputs(self, read: Read, stored: StoredTensor, lines: int, start: int, stop: int) -> Bytes:
        """Codes uint8 [lines, outputs] of the words that hold outputs [start, stop)."""
        first, last = start // 8, -(-stop // 8)
        words = window(read, stored, 4, self.n // 8, 0, lines, first, last - first).view("<u4")[:, :, 0]
        return word_codes(words, AWQ_ORDER)


def _scales_of_columns(read: Read, matrix: Int4, start: int, count: int) -> Bytes:
    """Scales [count, groups, 2 bytes] of a transposed matrix."""
    lines = window(read, matrix.scale, 2, matrix.n, 0, matrix.k // matrix.group, start, count)
    return np.ascontiguousarray(lines.transpose(1, 0, 2))
