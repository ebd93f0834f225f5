"""Bytes of packed weights in every format that can be planned: those the kernels know, and some they do not yet."""

from __future__ import annotations

import math

from hetero.machine.types import UsageError
from hetero.native.formats import EXPERT_ALIGNMENT, FORMATS
from hetero.native.formats import expert_bytes as _native_expert_bytes
from hetero.native.formats import packed_bytes as _native_packed_bytes

PLANNED = {"FP8": 8.0, "INT4": 4.5}
"""Bits of a weight, scales included, of what a config.json only names: e4m3 with a scale per 128 x 128, and 4 bits with
a 16-bit scale per 32."""
_SHORT = {"q2": "Q2_K", "q3": "Q3_K", "q4": "Q4_0", "q5": "Q5_K", "q6": "Q6_K", "q8": "Q8_0"}
PLAIN = ("F32", "F16", "BF16")


def format_name(text: str) -> str:
    """The format that `q4`, `q4_k` or `BF16` names. Raises UsageError for others."""
    name = _SHORT.get(text.lower(), text.upper())
    if name not in FORMATS and name not in PLANNED:
        known = ", ".join([*_SHORT, *FORMATS, *PLANNED])
        raise UsageError(f"unknown weight format {text!r}", f"one of {known}")
    return name


def runs(fmt: str) -> bool:
    """Whether this version has kernels for the format."""
    return fmt in FORMATS


def bits(fmt: str) -> float:
    """Bits that one packed weight takes, scales included."""
    return FORMATS[fmt].bits_per_weight if fmt in FORMATS else PLANNED[fmt]


def source_bytes(fmt: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor as files hold it."""
    if fmt not in FORMATS:
        return math.ceil(math.prod(shape) * PLANNED[fmt] / 8)
    info = FORMATS[fmt]
    return math.prod(shape[:-1]) * -(-shape[-1] // info.block_k) * info.block_bytes


def matrix_bytes(fmt: str, n: int, k: int) -> int:
    """Packed bytes of [n, k]; ValueError where the format's blocks do not divide k."""
    return _native_packed_bytes(fmt, n, k) if fmt in FORMATS else math.ceil(n * k * PLANNED[fmt] / 8)


def expert_bytes(gate: str, up: str, down: str, hidden: int, inter: int) -> int:
    """Packed bytes of one expert, a whole number of pages."""
    if gate in FORMATS and up in FORMATS and down in FORMATS:
        return _native_expert_bytes(gate, up, down, hidden, inter)
    parts = matrix_bytes(gate, inter, hidden) + matrix_bytes(up, inter, hidden) + matrix_bytes(down, hidden, inter)
    return -(-parts // EXPERT_ALIGNMENT) * EXPERT_ALIGNMENT
