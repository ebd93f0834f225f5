"""Which instruction sets this CPU and this build have, and which one to use."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
from dataclasses import dataclass

from hetero.machine.types import HardwareError, TierStatus, UsageError
from hetero.native.library import ffi, library_path, open_library

TIERS = ("generic", "avx2", "avx512", "amx")
NO_KERNELS = "no native kernels: no C++ compiler was found at install"
NO_KERNELS_HINT = "install g++ (Debian: apt install g++) and run pip install again"
TIER_HINT = "unset HETERO_ISA, or name a tier that hetero probe shows as usable"

_XCR0_YMM = 0x6
_XCR0_ZMM = 0xE6
_XCR0_TILES = 0x60000


@dataclass(frozen=True, slots=True)
class CpuLeaves:
    """What CPUID, XGETBV and the kernel say: the fields of `hetero_cpu` in hetero.h, and whether AMX really runs."""

    is_x86: int = 0
    leaf1_ecx: int = 0
    leaf7_ebx: int = 0
    leaf7_ecx: int = 0
    leaf7_edx: int = 0
    leaf7_1_eax: int = 0
    max_palette: int = 0
    amx_permitted: int = 0
    xcr0: int = 0
    amx_runs: int = 1
    """0 where the first tile instruction, tried in a child process, ends it."""


# Per tier the CPU features it needs: (name, field of CpuLeaves, bit).
_FEATURES: dict[str, tuple[tuple[str, str, int], ...]] = {
    "generic": (),
    "avx2": (("avx2", "leaf7_ebx", 5), ("fma", "leaf1_ecx", 12), ("f16c", "leaf1_ecx", 29)),
    "avx512": (
        ("avx512f", "leaf7_ebx", 16),
        ("avx512bw", "leaf7_ebx", 30),
        ("avx512dq", "leaf7_ebx", 17),
        ("avx512vl", "leaf7_ebx", 31),
        ("avx512_vnni", "leaf7_ecx", 11),
    ),
    "amx": (
        ("amx_tile", "leaf7_edx", 24),
        ("amx_bf16", "leaf7_edx", 22),
        ("amx_int8", "leaf7_edx", 25),
        ("avx512_bf16", "leaf7_1_eax", 5),
    ),
}
_STATE = {"generic": 0, "avx2": _XCR0_YMM, "avx512": _XCR0_ZMM, "amx": _XCR0_TILES}
_ON_TOP_OF = {"amx": "avx512", "avx512": "avx2"}  # a tier also uses the instructions of these


def missing(tier: str, cpu: CpuLeaves) -> str:
    """Why this CPU cannot run `tier`, as the rest of "this CPU ..."; empty if it can."""
    if tier != "generic" and not cpu.is_x86:
        return "is not x86-64"
    for name, field, bit in _FEATURES[tier]:
        if not getattr(cpu, field) >> bit & 1:
            return f"lacks {name}"
    if cpu.xcr0 & _STATE[tier] != _STATE[tier]:
        return f"has {tier}, but the operating system does not enable it"
    if tier == "amx" and cpu.max_palette < 1:
        return "has amx, but no tile palette (a hypervisor hides it)"
    if tier == "amx" and not cpu.amx_permitted:
        return "has amx, but Linux does not permit it (it needs 5.16 or newer)"
    if tier == "amx" and not cpu.amx_runs:
        return "has amx by its own account, but the first tile instruction fails"
    return missing(_ON_TOP_OF[tier], cpu) if tier in _ON_TOP_OF else ""


def decide(cpu: CpuLeaves, built: frozenset[str]) -> tuple[TierStatus, ...]:
    """The state of every known tier, worst first: pure, so that it can be tested on recorded CPUs."""
    statuses = []
    for tier in TIERS:
        lack = missing(tier, cpu)
        if lack:
            reason = f"this CPU {lack}"
        elif tier not in built:
            reason = f"hetero was built without {tier} kernels"
        else:
            reason = "built, and this CPU runs it"
        statuses.append(TierStatus(tier, tier in built, tier in built and not lack, reason))
    return tuple(statuses)


def _built() -> frozenset[str]:
    return frozenset(tier for tier in TIERS if library_path(tier))


def read_cpu() -> CpuLeaves:
    """This CPU's leaves, read by the generic library. OSError where that is missing."""
    record = ffi.new("hetero_cpu *")
    library = open_library("generic")
    library.hetero_cpu_read(record)
    cpu = CpuLeaves(**{name: int(getattr(record, name)) for name, _ in ffi.typeof("hetero_cpu").fields})
    # Tried only where all else says yes: anywhere else the child would die, which audit logs report.
    return cpu if missing("amx", cpu) else dataclasses.replace(cpu, amx_runs=library.hetero_amx_runs())


@functools.cache
def cpu_tiers() -> tuple[TierStatus, ...]:
    """The state of every known tier on this machine, worst first. Never fails."""
    if not _built():
        return tuple(TierStatus(tier, False, False, NO_KERNELS) for tier in TIERS)
    try:
        return decide(read_cpu(), _built())
    except OSError as error:
        return tuple(TierStatus(tier, False, False, f"the generic kernels do not load: {error}") for tier in TIERS)


def choose_tier(requested: str | None = None) -> str:
    """The tier to use: `requested`, else HETERO_ISA, else the best usable one.

    Raises UsageError for a name that is no tier; HardwareError when the tier is not built or beyond this CPU, or when
    there are no kernels.
    """
    wanted = requested or os.environ.get("HETERO_ISA") or None
    source = "tier " if requested else "HETERO_ISA="
    if wanted is not None and wanted not in TIERS:
        raise UsageError(f"{source}{wanted}: no such tier, expected one of {', '.join(TIERS)}", TIER_HINT)
    tiers = {status.name: status for status in cpu_tiers()}
    usable = [status.name for status in tiers.values() if status.usable]
    if not usable:
        raise HardwareError(tiers["generic"].reason, NO_KERNELS_HINT)
    if wanted is None:
        return usable[-1]
    if wanted not in usable:
        raise HardwareError(f"{source}{wanted}: {tiers[wanted].reason} ({platform.machine()})", TIER_HINT)
    return wanted
