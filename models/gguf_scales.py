"""GGUF's NVFP4 tensors with a scale tensor beside them: a float32 for the whole matrix, or one for each expert.

llama.cpp's converter writes `blk.N.ffn_up_exps.scale` where the source's weights had a second scale, and an
`.input_scale` for activations, which are not quantised that way here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hetero.machine.types import ModelError
from hetero.models.codes import Bytes
from hetero.models.float_codes import nvfp4_format, nvfp4_rows, whole_scale
from hetero.models.formats import StoredTensor, row_bytes
from hetero.models.matrices import Derived, Found, Matrix, Read, Rows

_OTHER = "use another upload of this model"
_SCALE, _INPUT_SCALE, _WEIGHT = ".scale", ".input_scale", ".weight"


def scales_apart(stored: Sequence[StoredTensor]) -> tuple[list[StoredTensor], dict[str, StoredTensor]]:
    """All tensors but scales of weights and activations; and the former by the names of their weights."""
    names = {t.name for t in stored}
    kept, scales = [], {}
    for t in stored:
        stem, kind = next(((t.name.removesuffix(k), k) for k in (_INPUT_SCALE, _SCALE) if t.name.endswith(k)), ("", ""))
        if not kind or stem + _WEIGHT not in names:
            kept.append(t)
        elif kind == _SCALE:
            scales[stem + _WEIGHT] = t
    return kept, scales


def with_scales(
    found: Mapping[str, Found], scales: Mapping[str, StoredTensor], files: tuple[Path, ...]
) -> dict[str, Found]:
    """`found` with the scales, by the raw names of their weights, joined to these. Raises ModelError."""
    return {name: _scaled(tensor, scales.get(tensor.matrices[0].stored.name), files) for name, tensor in found.items()}


def _scaled(tensor: Found, scale: StoredTensor | None, files: tuple[Path, ...]) -> Found:
    if scale is None:
        return tensor
    path, stored = files[scale.file], tensor.matrices[0].stored
    experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
    if stored.format != "NVFP4":
        raise ModelError(
            f"{path}: tensor {scale.name!r} is a scale of {stored.name!r}, which is {stored.format}; this version "
            "reads such scales of NVFP4",
            _OTHER,
        )
    if scale.format != "F32" or scale.shape != (experts,):
        raise ModelError(
            f"{path}: tensor {scale.name!r} has shape {list(scale.shape)} and type {scale.format}; expected "
            f"{[experts]} and F32",
            _OTHER,
        )
    matrices = tensor.matrices if len(tensor.matrices) == experts else _by_expert(tensor, experts)
    return Found(tensor.shape, tuple(ScaledNvfp4(m, path, scale, e) for e, m in enumerate(matrices)))


def _by_expert(tensor: Found, experts: int) -> tuple[Matrix, ...]:
    """The matrices of a stack that is one run of rows."""
    stored, (_, n, k) = tensor.matrices[0].stored, tensor.shape
    return tuple(Rows(stored, n, k, e * n * row_bytes(stored.format, k)) for e in range(experts))


@dataclass(frozen=True, slots=True)
class ScaledNvfp4(Derived):
    """ggml's NVFP4 rows under number `index` of a scale tensor; gives NVFP4_F32: w = code * (scale * whole)."""

    path: Path
    scale: StoredTensor
    index: int

    @property
    def format(self) -> str:
        return nvfp4_format(self.k)

    @property
    def n(self) -> int:
        return self.inner.n

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        count = stop - start
        blocks = self.inner.rows(read, start, stop).reshape(count, -1, 36)
        scales = blocks[:, :, :4] & np.uint8(0x7F)  # ggml ignores the sign, and takes NaN for 0
        scales[scales == 0x7F] = 0
        halves = blocks[:, :, 4:].reshape(count, -1, 1, 8)  # byte j has codes j and j + 8 of 16
        codes = np.concatenate([halves & np.uint8(15), halves >> np.uint8(4)], axis=2).reshape(count, -1, 2)
        joined = codes[:, :, 0] | codes[:, :, 1] << np.uint8(4)
        whole = whole_scale(read, self.path, self.scale, self.index, self.stored)
        return nvfp4_rows(self.k, joined, scales.reshape(count, -1), whole)
