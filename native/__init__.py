"""CPU kernels: packed weight formats, instruction-set tiers, a thread pool and the matrix products of a model."""

from hetero.native.formats import FORMATS, FormatInfo, down_offset, expert_bytes, packed_bytes, row_bytes
from hetero.native.kernels import ExpertBank, Kernels, PackedMatrix, Pool
from hetero.native.memory import allocate
from hetero.native.tiers import TIERS, choose_tier, cpu_tiers

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
