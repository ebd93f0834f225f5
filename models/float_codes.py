"""Matrices stored as FP8 or FP4 codes with scales, read as the kernels' raw rows without changing a code or a scale.

Sources of the formulae: FP8 in blocks, DeepSeek-V3 (arXiv 2412.19437, section 3.3); e2m1 and e8m0, OCP Microscaling
Formats 1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hetero.machine.types import ModelError
from hetero.models.codes import E8M0_NAN, Bytes, Floats, scales_to_f32
from hetero.models.formats import SAFETENSORS_BITS, StoredTensor
from hetero.models.matrices import Read, spaced
from hetero.native.repack import join_rows

FP8_BLOCK = 128
DAMAGED = "download the file again; its content is damaged"
_NAN = 0x7F
"""e4m3 has no infinities; its two NaNs have every bit set but the sign."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Scales: a row of `columns`, each for `width` inputs, serves `height` rows of weights (0: all of them)."""

    stored: StoredTensor
    columns: int
    width: int
    height: int
    first: int = 0
    """Item of the scale tensor where the matrix's scales begin."""

    def of(self, read: Read, rows: npt.NDArray[np.int64], blocks: int) -> Floats:
        """Scales float32 [len(rows), blocks], one per row and block of 128 inputs."""
        item = SAFETENSORS_BITS[self.stored.format] // 8
        at = rows // self.height if self.height else np.zeros_like(rows)
        low, high = (int(at.min()), int(at.max()) + 1) if len(at) else (0, 0)
        raw = np.empty((high - low) * self.columns * item, dtype=np.uint8)
        read(self.stored, (self.first + low * self.columns) * item, raw)
        scales = scales_to_f32(raw, self.stored.format).reshape(-1, self.columns)
        if self.width > FP8_BLOCK:
            scales = np.repeat(scales, -(-self.width // FP8_BLOCK), axis=1)[:, :blocks]
        return scales[at - low]


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """e4m3 codes in rows (as `matrices.Rows`) under a grid of scales; gives FP8_E4M3: w = code * scale."""

    path: Path
    stored: StoredTensor
    scale: Grid
    n: int
    k: int
    first: int = 0
    """Row of the tensor that is row 0 here."""
    step: int = 1
    inside: int = 0
    """Row of the grid's matrix that is row 0 here."""

    @property
    def format(self) -> str:
        return "FP8_E4M3"

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        blocks = -(-self.k // FP8_BLOCK)
        count = stop - start
        codes = spaced(read, self.stored, (self.first + start * self.step) * self.k, self.k, count, self.step)
        at = self.inside + np.arange(start, stop, dtype=np.int64) * self.step
        scales = np.ascontiguousarray(self.scale.of(read, at, blocks))
        self._check(codes, scales, start)
        return join_rows(self.format, self.k, FP8_BLOCK, codes, scales.view(np.uint8))

    def _check(self, codes: Bytes, scales: Floats, start: int) -> None:
        if (scales != 0).all():
            return
        for row, block in np.argwhere(scales == 0):
            part = codes[row, block * FP8_BLOCK : (block + 1) * FP8_BLOCK]
            if (part & _NAN).any():
                raise zero_scale(self.path, self.stored, self.scale.stored, start + int(row), int(block))


def zero_scale(path: Path, stored: StoredTensor, scale: StoredTensor, row: int, block: int) -> ModelError:
    """A block whose scale is zero though its codes are not: it would silently vanish."""
    return ModelError(
        f"{path}: tensor {scale.name!r}: the scale of block {block} of row {row} is 0, but the codes in "
        f"{stored.name!r} are not",
        DAMAGED,
    )


@dataclass(frozen=True, slots=True)
class Mxfp4Rows:
    """e2m1 codes, two to a byte in reading order, with an e8m0 scale per 32; gives ggml's MXFP4."""

    path: Path
    stored: StoredTensor
    scale: StoredTensor
    n: int
    k: int
    first: int = 0
    step: int = 1

    @property
    def format(self) -> str:
        return "MXFP4"

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        count, blocks, first = stop - start, self.k // 32, self.first + start * self.step
        codes = spaced(read, self.stored, first * self.k // 2, self.k // 2, count, self.step)
        scales = spaced(read, self.scale, first * blocks, blocks, count, self.step)
        if (scales == E8M0_NAN).any():
            row, block = np.argwhere(scales == E8M0_NAN)[0]
            raise ModelError(
                f"{self.path}: tensor {self.scale.name!r}: the scale of block {block} of row {start + int(row)} is NaN",
                DAMAGED,
            )
        return join_rows(self.format, self.k, 32, codes, scales)


@dataclass(frozen=True, slots=True)
class Mxfp8Rows:
    """e4m3 codes with an e8m0 scale per 32; gives BF16, which has all of their values, in twice the space."""

    path: Path
    stored: StoredTensor
    scale: StoredTensor
    n: int
    k: int

    @property
    def format(self) -> str:
        return "BF16"

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        count, blocks = stop - start, self.k // 32
        codes = spaced(read, self.stored, start * self.k, self.k, count, 1)
        raw = spaced(read, self.scale, start * blocks, blocks, count, 1)
        scales = scales_to_f32(raw, self.scale.format).reshape(count, blocks, 1)
        exact = (_E4M3[codes].reshape(count, blocks, 32) * scales).view(np.uint32)
        self._check(exact, start)
        halves: Bytes = (exact >> np.uint32(16)).astype(np.uint16).view(np.uint8).reshape(count, -1)
        return halves

    def _check(self, exact: npt.NDArray[np.uint32], start: int) -> None:
        """float32 holds every product, down to 2^-136, bfloat16 not all of them; NaNs are found by whoever packs."""
        lost = exact & np.uint32(0xFFFF) != 0
        if lost.any():
            row, block, _ = np.argwhere(lost)[0]
            raise ModelError(
                f"{self.path}: tensor {self.scale.name!r}: the scale of block {block} of row {start + int(row)} makes "
                "weights smaller than any bfloat16",
                DAMAGED,
            )


def _e4m3_values() -> Floats:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = np.where(exponent == 0, mantissa / 512, (8 + mantissa) * 2.0 ** (exponent - 10))
    magnitude[code & _NAN == _NAN] = np.nan
    return np.where(code & 0x80, -magnitude, magnitude).astype(np.float32)


_E4M3 = _e4m3_values()


@dataclass(frozen=True, slots=True)
class Nvfp4Rows:
    """e2m1 codes, two to a byte, with an e4m3 scale per 16 and a float32 for the whole matrix; gives NVFP4_F32.

    w = code * (scale * whole), or code * (scale / whole) where `divides`; the kernels tell them apart by a minus sign.
    """

    path: Path
    stored: StoredTensor
    scale: StoredTensor
    whole: StoredTensor
    divides: bool
    n: int
    k: int

    @property
    def format(self) -> str:
        return nvfp4_format(self.k)

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        count, groups = stop - start, self.k // 16
        codes = spaced(read, self.stored, start * self.k // 2, self.k // 2, count, 1)
        scales = spaced(read, self.scale, start * groups, groups, count, 1)
        if (scales >= _NAN).any():
            row, group = np.argwhere(scales >= _NAN)[0]
            raise ModelError(
                f"{self.path}: tensor {self.scale.name!r}: the scale of group {group} of row {start + int(row)} is "
                "NaN or negative",
                DAMAGED,
            )
        whole = whole_scale(read, self.path, self.whole, 0, self.stored)
        return nvfp4_rows(self.k, codes, scales, -whole if self.divides else whole)


def nvfp4_format(k: int) -> str:
    """The kernels' format for rows of `k` inputs, a multiple of 64, under a float32."""
    return f"NVFP4_F32_{_nvfp4_block(k)}"


def _nvfp4_block(k: int) -> int:
    return next(block for block in (256, 128, 64) if k % block == 0)


def nvfp4_rows(k: int, codes: Bytes, scales: Bytes, whole: float) -> Bytes:
    """Raw rows of NVFP4_F32 of codes [n, k / 2] in reading order, e4m3 scales [n, k / 16] and a factor (-: divisor)."""
    extra = np.full(len(codes), whole, dtype=np.float32).view(np.uint8)
    return join_rows(nvfp4_format(k), k, _nvfp4_block(k), codes, scales, extra)


def whole_scale(read: Read, path: Path, scale: StoredTensor, index: int, weights: StoredTensor) -> float:
    """Number `index` of a tensor of float32 scales of whole matrices. Raises ModelError unless it is positive."""
    raw = np.empty(4, dtype=np.uint8)
    read(scale, 4 * index, raw)
    whole = float(raw.view("<f4")[0])
    if not 0 < whole < np.inf:
        raise ModelError(
            f"{path}: tensor {scale.name!r} holds {whole}; expected a positive number, the scale of all of "
            f"{weights.name!r}",
            DAMAGED,
        )
    return whole
