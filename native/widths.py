"""Formats by the names that users give them, and bytes of tensors in them."""

from __future__ import annotations

import math

from hetero.machine.types import UsageError
from hetero.native.formats import FORMATS

_SHORT = {"fp8": "FP8_E4M3", "int4": "I4_32"}
_SHORT |= {"q2": "Q2_K", "q3": "Q3_K", "q4": "Q4_0", "q5": "Q5_K", "q6": "Q6_K", "q8": "Q8_0"}
PLAIN = ("F32", "F16", "BF16")


def format_name(text: str) -> str:
    """The format that `q4`, `q4_k` or `BF16` names. Raises UsageError for others."""
    name = _SHORT.get(text.lower(), text.upper())
    if name not in FORMATS:
        known = ", ".join([*_SHORT, *FORMATS])
        raise UsageError(f"unknown weight format {text!r}", f"one of {known}")
    return name


def bits(fmt: str) -> float:
    """Bits that one packed weight takes, scales included."""
    return FORMATS[fmt].bits_per_weight


def source_bytes(fmt: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor's raw rows."""
    info = FORMATS[fmt]
    return math.prod(shape[:-1]) * -(-shape[-1] // info.block_k) * info.block_bytes
