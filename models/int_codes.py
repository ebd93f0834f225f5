"""Matrices stored as integers of 4 or 8 bits with scales per group or row: compressed-tensors, GPTQ and AWQ.

They give the kernels' I4_G, I8_G and U4_G: w = (q - 8) * s, q * s or (q - z) * s, codes and scales as they are in the
file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hetero.machine.types import ModelError
from hetero.models.codes import AWQ_ORDER, Bytes, word_codes
from hetero.models.float_codes import DAMAGED
from hetero.models.formats import StoredTensor, plain_to_f32, stored_item
from hetero.models.matrices import Read, window
from hetero.native.repack import awq_codes, join_rows, transposed

_SCALES = {"BF16": "", "F16": "_F16", "F32": "_F32"}
SIGN = np.uint8(0x80)
"""What turns a byte from 128 up into a signed one from 0 up."""


def int_format(bits: int, group: int, k: int, scale: str, zeros: bool = False) -> str:
    """The kernels' format for groups of `group` inputs; longer groups are cut into several of 128."""
    block = next(b for b in (128, 64, 32) if group % b == 0 and k % b == 0)
    return f"{'U' if zeros else 'I'}{bits}_{block}" + _SCALES[scale]


@dataclass(frozen=True, slots=True)
class Int:
    """What they have in common: a matrix of `n` rows and `k` inputs in groups of `group`."""

    path: Path
    stored: StoredTensor
    scale: StoredTensor
    zero: StoredTensor | None
    n: int
    k: int
    group: int
    symmetric: bool
    """All zero points are in the middle (and are checked to be where the file has some)."""
    bits: int

    @property
    def format(self) -> str:
        return int_format(self.bits, self.group, self.k, self.scale.format, not self.symmetric)

    @property
    def centre(self) -> int:
        return 1 << (self.bits - 1)

    def _joined(self, codes: Bytes, scales: Bytes, zeros: Bytes | None, start: int) -> Bytes:
        """Raw rows of codes in reading order [m, bytes] (8 bits: signed), scales [m, groups, item] and zero points
        [m, groups]; rows count from `start` in errors."""
        self._check(codes, scales, zeros, start)
        return join_rows(self.format, self.k, self.group, codes, scales, None if self.symmetric else zeros)

    def _check(self, codes: Bytes, scales: Bytes, zeros: Bytes | None, start: int) -> None:
        """Raises ModelError for groups that would silently vanish and for zero points that ought not to be there."""
        if self.symmetric and zeros is not None and (zeros != self.centre).any():
            row, group = np.argwhere(zeros != self.centre)[0]
            assert self.zero is not None
            why = "as quantization_config says the weights are symmetric"
            if self.bits == 8:
                why = "as this version reads codes of 8 bits only where they are symmetric"
            raise ModelError(
                f"{self.path}: tensor {self.zero.name!r}: the zero point of group {group} of row {start + int(row)} is "
                f"{zeros[row, group]}; expected {self.centre}, {why}",
                "config.json and weights do not belong together; download all of them again from one place",
            )
        empty = plain_to_f32(np.ascontiguousarray(scales).reshape(-1), self.scale.format) == 0
        per_group = self.group * self.bits // 8
        for row, group in np.argwhere(empty.reshape(scales.shape[:2])):
            part = codes[row, group * per_group : (group + 1) * per_group]
            zero = self.centre if zeros is None else int(zeros[row, group])
            if (part != (zero * 17 if self.bits == 4 else 0)).any():
                raise ModelError(
                    f"{self.path}: tensor {self.scale.name!r}: the scale of group {group} of row {start + int(row)} is "
                    f"0, but the codes in {self.stored.name!r} are not {zero}",
                    DAMAGED,
                )


@dataclass(frozen=True, slots=True)
class PackedInt(Int):
    """compressed-tensors' pack-quantized: words along the inputs; zero points packed along the rows."""

    shape: StoredTensor | None

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        self._check_shape(read)
        count, groups, item = stop - start, self.k // self.group, stored_item(self.scale)
        row_bytes = self.k * self.bits // 8
        codes = np.empty((count, row_bytes), dtype=np.uint8)
        read(self.stored, start * row_bytes, codes)
        if self.bits == 8:
            codes ^= SIGN
        scales = window(read, self.scale, item, groups, start * groups, count, 0, groups)
        return self._joined(codes, scales, self._zeros(read, start, stop, groups), start)

    def _zeros(self, read: Read, start: int, stop: int, groups: int) -> Bytes | None:
        if self.zero is None:
            return None
        per_word = 32 // self.bits
        first, last = start // per_word, -(-stop // per_word)
        words = window(read, self.zero, 4, groups, first * groups, last - first, 0, groups).view("<u4")[:, :, 0]
        by_row = word_codes(np.ascontiguousarray(words.T), self.bits).T  # [per_word * (last - first), groups]
        return np.ascontiguousarray(by_row[start - per_word * first : stop - per_word * first])

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
class Gptq(Int):
    """GPTQ: words along the inputs of transposed matrices; `offset` is added to zero points (1 in format 1)."""

    groups: StoredTensor | None
    """g_idx, which must number the groups in order."""
    offset: int

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        self._check_groups(read)
        count, per_word = stop - start, 32 // self.bits
        words = window(read, self.stored, 4, self.n, 0, self.k // per_word, start, count)
        codes = transposed(words.reshape(len(words), -1), 4)
        if self.bits == 8:
            codes ^= SIGN
        scales = _scales_of_columns(read, self, start, count)
        first, last = start // per_word, -(-stop // per_word)
        assert self.zero is not None
        packed = window(read, self.zero, 4, self.n // per_word, 0, self.k // self.group, first, last - first)
        zeros = word_codes(np.ascontiguousarray(packed).view("<u4")[:, :, 0], self.bits)
        zeros = zeros[:, start - per_word * first : stop - per_word * first]
        zeros = np.ascontiguousarray(zeros.T) + np.uint8(self.offset)
        return self._joined(codes, scales, zeros, start)

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
class Awq(Int):
    """AWQ (GEMM): words along the outputs of transposed matrices, eight outputs to a word in an order of its own."""

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        count, first, last = stop - start, start // 8, -(-stop // 8)
        inside = slice(start - 8 * first, start - 8 * first + count)
        words = np.ascontiguousarray(window(read, self.stored, 4, self.n // 8, 0, self.k, first, last - first))
        codes = np.ascontiguousarray(awq_codes(words, self.k, 8 * (last - first))[inside])
        scales = _scales_of_columns(read, self, start, count)
        assert self.zero is not None
        packed = window(read, self.zero, 4, self.n // 8, 0, self.k // self.group, first, last - first)
        zeros = word_codes(np.ascontiguousarray(packed).view("<u4")[:, :, 0], 4, AWQ_ORDER)
        return self._joined(codes, scales, np.ascontiguousarray(zeros[:, inside].T), start)


@dataclass(frozen=True, slots=True)
class SignedInt(Int):
    """compressed-tensors' int-quantized: signed bytes as they are, with a scale per row or group."""

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        count, groups, item = stop - start, self.k // self.group, stored_item(self.scale)
        codes = np.empty((count, self.k), dtype=np.uint8)
        read(self.stored, start * self.k, codes)
        scales = window(read, self.scale, item, groups, start * groups, count, 0, groups)
        return self._joined(codes, scales, None, start)


def _scales_of_columns(read: Read, matrix: Int, start: int, count: int) -> Bytes:
    """Scales [count, groups, 2 bytes] of a transposed matrix."""
    lines = window(read, matrix.scale, 2, matrix.n, 0, matrix.k // matrix.group, start, count)
    return np.ascontiguousarray(lines.transpose(1, 0, 2))
