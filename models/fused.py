"""Experts stored all in one tensor, gate and up together: which part of it is which expert's matrix.

The layout is what the family declares; shapes only check it, as a square matrix looks the same in every layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from hetero.machine.types import ModelError
from hetero.models.families.common import FusedExperts
from hetero.models.float_codes import Fp8Rows, Mxfp4Rows
from hetero.models.formats import StoredTensor, n_elements
from hetero.models.hints import Hints
from hetero.models.iquants import stored_row_bytes
from hetero.models.matrices import Columns, Matrix, Rows, Spread
from hetero.models.quantisation import Parts as QuantParts
from hetero.models.quantisation import fp8_grid, require

Parts = dict[str, tuple[tuple[int, ...], tuple[Matrix, ...]]]
"""Shape and matrices (one per expert, or one for all biases) of `gate` and `up`, or of `down`."""
_OTHER = "the file and its configuration do not belong together; try another upload of this model"


def fused_weights(t: StoredTensor, part: str, layout: FusedExperts, path: Path) -> Parts:
    """The experts' matrices in a stack `gate_up` or `down`. Raises ModelError for a shape that cannot be one."""
    if len(t.shape) != 3:
        raise wrong_shape(t, "[experts, rows, columns]", path)
    experts, n, k = (t.shape[0], t.shape[2], t.shape[1]) if layout.transposed else t.shape
    parts: Parts = {}
    for name, (first, step, count) in split_rows(t, part, n, layout, path).items():
        matrices: list[Matrix] = []
        for e in range(experts):
            if layout.transposed:
                matrices.append(Columns(t, count, k, e * n * k + first, n, step))
            else:
                matrices.append(Rows(t, count, k, (e * n + first) * stored_row_bytes(t.format, k), step))
        parts[name] = ((experts, count, k), tuple(matrices))
    return parts


def fused_fp8(parts: QuantParts, part: str, layout: FusedExperts, path: Path, hints: Hints) -> Parts:
    """The experts' matrices in a stack of e4m3 codes with scales per expert. Raises ModelError."""
    t = parts["weight"]
    scales = [s for name, s in parts.items() if name != "weight"]
    if len(scales) != 1:
        raise ModelError(f"{path}: tensor {t.name!r} has {len(scales)} tensors of scales; expected one", _OTHER)
    (scale,) = scales
    if len(t.shape) != 3 or layout.transposed:
        raise wrong_shape(t, "[experts, rows, columns] (transposed FP8 experts are not read)", path)
    experts, n, k = t.shape
    if scale.shape[:1] != (experts,):
        raise wrong_shape(scale, f"[{experts}, ...], as {t.name!r} has {experts} experts", path)
    grid = fp8_grid(scale, scale.shape[1:], n, k, path, hints)
    per_expert = n_elements(scale.shape[1:])
    made: Parts = {}
    for name, (first, step, count) in split_rows(t, part, n, layout, path).items():
        rows = (
            Fp8Rows(path, t, replace(grid, first=e * per_expert), count, k, e * n + first, step, first)
            for e in range(experts)
        )
        made[name] = ((experts, count, k), tuple(rows))
    return made


def fused_mxfp4(parts: QuantParts, part: str, layout: FusedExperts, path: Path) -> Parts:
    """The experts' matrices in `blocks` [E, rows, k / 32, 16] and `scales` [E, rows, k / 32]. Raises ModelError."""
    blocks, scales = parts["blocks"], parts.get("scales")
    require(blocks, path, None, ("U8",))
    if len(blocks.shape) != 4 or blocks.shape[3] != 16:
        raise wrong_shape(blocks, "[experts, rows, blocks, 16]", path)
    if scales is None:
        raise ModelError(f"{path}: tensor {blocks.name!r} has no scales beside it", _OTHER)
    require(scales, path, blocks.shape[:3], ("U8", "F8_E8M0"))
    experts, n, k = blocks.shape[0], blocks.shape[1], 32 * blocks.shape[2]
    made: Parts = {}
    for name, (first, step, count) in split_rows(blocks, part, n, layout, path).items():
        rows = (Mxfp4Rows(path, blocks, scales, count, k, e * n + first, step) for e in range(experts))
        made[name] = ((experts, count, k), tuple(rows))
    return made


def fused_biases(t: StoredTensor, part: str, layout: FusedExperts, path: Path) -> Parts:
    """The experts' biases, [E, rows] each, in a stack [E, rows of gate and up]. Raises ModelError."""
    if len(t.shape) != 2:
        raise wrong_shape(t, "[experts, rows]", path)
    experts, n = t.shape
    parts: Parts = {}
    for name, (first, step, count) in split_rows(t, part, n, layout, path).items():
        parts[name] = ((experts, count), (Spread(t, experts, count, first, n, step),))
    return parts


def wrong_shape(t: StoredTensor, expected: str, path: Path) -> ModelError:
    return ModelError(f"{path}: tensor {t.name!r} has shape {list(t.shape)}; expected {expected}", _OTHER)


def split_rows(
    t: StoredTensor, part: str, n: int, layout: FusedExperts, path: Path
) -> Mapping[str, tuple[int, int, int]]:
    """(first row, step, count) of each matrix in the `n` rows of one expert."""
    if part != "gate_up":
        return {part: (0, 1, n)}
    if n % 2:
        raise ModelError(f"{path}: tensor {t.name!r} has {n} rows of gate and up; expected an even number", _OTHER)
    half = n // 2
    if layout.interleaved:
        return {"gate": (0, 2, half), "up": (1, 2, half)}
    return {"gate": (0, 1, half), "up": (half, 1, half)}
