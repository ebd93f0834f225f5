"""What a tier's kernels could reach at most on this machine, measured in the run that is judged by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero.machine.measure_cpu import CpuMeter, Effort
from hetero.native import FORMATS

_DOT_PRODUCTS = 0.8
"""A tier whose int8 rate is so near that of maddubs has an instruction for dot products."""
_EFFORT = Effort(set_bytes=256 << 20, samples=5)


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of one tier on all threads: bytes/s of a linear read, and operations/s of each kind of multiply-adds."""

    read: float
    int8: float
    maddubs: float
    madd: float
    f32: float

    def arithmetic(self, fmt: str) -> float:
        """Operations per second of the kind that a format's products are made of."""
        info = FORMATS[fmt]
        if info.plain:
            return self.f32
        if info.code_bits < 8:
            return max(self.int8, self.maddubs)
        # Two products of signed 8-bit codes do not fit into int16, so without dot products they are widened first.
        return self.int8 if self.int8 > _DOT_PRODUCTS * self.maddubs else self.madd

    def seconds(self, ops: Mapping[str, float]) -> float:
        """The least time for so many operations by format."""
        return sum(count / self.arithmetic(fmt) for fmt, count in ops.items())


def measure_ceilings(cpus: Sequence[int], tier: str) -> Ceilings:
    """Takes about a second. MemoryError where there are no 256 MiB."""
    meter = CpuMeter(cpus, tier, _EFFORT)
    read = meter.memory(len(cpus))[0].rate.value
    return Ceilings(read, *(meter.arithmetic(kind).value for kind in ("int8", "maddubs", "madd", "f32")))
