"""Experts stored all in one tensor, gate and up together: which part of it is which expert's matrix.

The layout is what the family declares; shapes only check it, as a square matrix looks the same in every layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hetero.machine.types import ModelError
from hetero.models.families.common import FusedExperts
from hetero.models.formats import StoredTensor, row_bytes
from hetero.models.matrices import Columns, Matrix, Rows, Spread

Parts = dict[str, tuple[tuple[int, ...], tuple[Matrix, ...]]]
"""Shape and matrices (one per expert, or one for all biases) of `gate` and `up`, or of `down`."""
_OTHER = "the file and its configuration do not belong together; try another upload of this model"


def fused_weights(t: StoredTensor, part: str, layout: FusedExperts, path: Path) -> Parts:
    """The experts' matrices in a stack `gate_up` or `down`. Raises ModelError for a shape that cannot be one."""
    if len(t.shape) != 3:
        raise _shape(t, "[experts, rows, columns]", path)
    experts, n, k = (t.shape[0], t.shape[2], t.shape[1]) if layout.transposed else t.shape
    parts: Parts = {}
    for name, (first, step, count) in _split(t, part, n, layout, path).items():
        matrices: list[Matrix] = []
        for e in range(experts):
            if layout.transposed:
                matrices.append(Columns(t, count, k, e * n * k + first, n, step))
            else:
                matrices.append(Rows(t, count, k, (e * n + first) * row_bytes(t.format, k), step))
        parts[name] = ((experts, count, k), tuple(matrices))
    return parts


def fused_biases(t: StoredTensor, part: str, layout: FusedExperts, path: Path) -> Parts:
    """The experts' biases, [E, rows] each, in a stack [E, rows of gate and up]. Raises ModelError."""
    if len(t.shape) != 2:
        raise _shape(t, "[experts, rows]", path)
    experts, n = t.shape
    parts: Parts = {}
    for name, (first, step, count) in _split(t, part, n, layout, path).items():
        parts[name] = ((experts, count), (Spread(t, experts, count, first, n, step),))
    return parts


def _shape(t: StoredTensor, expected: str, path: Path) -> ModelError:
    return ModelError(f"{path}: tensor {t.name!r} has shape {list(t.shape)}; expected {expected}", _OTHER)


def _split(t: StoredTensor, part: str, n: int, layout: FusedExperts, path: Path) -> Mapping[str, tuple[int, int, int]]:
    """(first row, step, count) of each matrix in the `n` rows of one expert."""
    if part == "down":
        return {"down": (0, 1, n)}
    if n % 2:
        raise ModelError(f"{path}: tensor {t.name!r} has {n} rows of gate and up; expected an even number", _OTHER)
    half = n // 2
    if layout.interleaved:
        return {"gate": (0, 2, half), "up": (1, 2, half)}
    return {"gate": (0, 1, half), "up": (half, 1, half)}
