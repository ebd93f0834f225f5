"""Matrices that files keep on top of each other in one tensor: q, k and v, or gate and up of a dense MLP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hetero.machine.types import ModelError
from hetero.models.families.common import Expected
from hetero.models.formats import row_bytes
from hetero.models.matrices import Found, RowRange, Rows

_OTHER = "the file and its configuration do not belong together; try another upload of this model"
_PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def split_joint(
    found: Mapping[str, Found], expected: Mapping[str, Expected], files: tuple[Path, ...]
) -> dict[str, Found]:
    """`found` with every joint tensor taken apart whose parts the family expects; their rows follow one another.

    Raises ModelError where the rows are not those of the parts.
    """
    out: dict[str, Found] = {}
    for name, tensor in found.items():
        parts = {} if name in expected else _parts(name, expected)
        if not parts:
            out[name] = tensor
            continue
        _check(tensor, parts, files)
        first = 0
        for part, count in parts.items():
            out[part] = _cut(tensor, first, count)
            first += count
    return out


def _parts(name: str, expected: Mapping[str, Expected]) -> dict[str, int]:
    """Names and rows of the parts of a joint tensor in their order; empty for others."""
    stem, _, kind = name.rpartition(".")
    prefix, _, joint = stem.rpartition(".")
    names = [f"{prefix}.{part}.{kind}" for part in _PARTS.get(joint, ())]
    return {n: expected[n].shape[0] for n in names} if all(n in expected for n in names) else {}


def _check(tensor: Found, parts: Mapping[str, int], files: tuple[Path, ...]) -> None:
    stored, total = tensor.matrices[0].stored, sum(parts.values())
    if len(tensor.shape) > 2 or tensor.shape[0] != total:
        rows = " + ".join(map(str, parts.values()))
        raise ModelError(
            f"{files[stored.file]}: tensor {stored.name!r} has shape {list(tensor.shape)}; expected {rows} rows", _OTHER
        )


def _cut(tensor: Found, first: int, count: int) -> Found:
    inner = tensor.matrices[0]
    if len(tensor.shape) == 1:
        return Found((count,), (Rows(inner.stored, 1, count, first * row_bytes(inner.format, 1)),))
    return Found((count, tensor.shape[1]), (RowRange(inner, first, count),))
