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
from hetero.models.codes import E8M0_NAN, Bytes, Floats, block_order, scales_to_f32
from hetero.models.formats import SAFETENSORS_BITS, StoredTensor
from hetero.models.matrices import Read, spaced

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
        out = np.zeros((count, blocks, 4 + FP8_BLOCK), dtype=np.uint8)
        out[:, :, :4] = scales.view(np.uint8).reshape(count, blocks, 4)
        whole = self.k // FP8_BLOCK
        out[:, :whole, 4:] = codes[:, : whole * FP8_BLOCK].reshape(count, whole, FP8_BLOCK)
        if whole < blocks:
            out[:, whole, 4 : 4 + self.k % FP8_BLOCK] = codes[:, whole * FP8_BLOCK :]
        return out.reshape(count, -1)

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
        out = np.empty((count, blocks, 17), dtype=np.uint8)
        out[:, :, 0] = scales
        out[:, :, 1:] = block_order(codes, 32).reshape(count, blocks, 16)
        return out.reshape(count, -1)
