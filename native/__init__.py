"""CPU kernels: packed weight formats, instruction-set tiers, a thread pool and the matrix products of a model.

The names are looked up when first used: asking for the tiers alone must not import numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero.native.formats import FORMATS, FormatInfo, down_offset, expert_bytes, packed_bytes, row_bytes
    from hetero.native.kernels import ExpertBank, Kernels, PackedMatrix, Pool
    from hetero.native.memory import allocate
    from hetero.native.tiers import TIERS, choose_tier, cpu_tiers

_HOMES = {
    "formats": ("FORMATS", "FormatInfo", "down_offset", "expert_bytes", "packed_bytes", "row_bytes"),
    "kernels": ("ExpertBank", "Kernels", "PackedMatrix", "Pool"),
    "memory": ("allocate",),
    "tiers": ("TIERS", "choose_tier", "cpu_tiers"),
}

__all__ = [
    "FORMATS",
    "TIERS",
    "ExpertBank",
    "FormatInfo",
    "Kernels",
    "PackedMatrix",
    "Pool",
    "allocate",
    "choose_tier",
    "cpu_tiers",
    "down_offset",
    "expert_bytes",
    "packed_bytes",
    "row_bytes",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
