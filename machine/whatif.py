"""A machine that is only described: by a few figures, on top of one that was probed or on none."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hetero.machine import assumptions as assumed
from hetero.machine.types import Gpu, Machine, Measured, RateAt, Rates, TierStatus, UsageError
from hetero.machine.units import size_text

TIERS = ("generic", "avx2", "avx512", "amx")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What the user says of a machine; None: not said. Sizes are bytes, rates bytes/s."""

    ram: int | None = None
    vram: int | None = None
    bandwidth: float | None = None
    pcie: float | None = None
    isa: str | None = None
    cores: int | None = None
    sockets: int | None = None
    ssd: float | None = None
    ram_speed: int | None = None
    channels: int | None = None
    gpu: str | None = None

    @property
    def given(self) -> bool:
        """Whether anything was said."""
        return self != WhatIf()


def imagine(base: Machine, what: WhatIf, built: tuple[str, ...] = TIERS) -> Machine:
    """`base` with the described parts in place of its own; rates that no longer hold are dropped.

    `built` are the tiers whose kernels this hetero has. Raises UsageError for figures that contradict each other.
    """
    _check(base, what)
    machine = _with_cpu(base, what, built)
    if what.ram is not None:
        text = f"{size_text(what.ram)} of memory (given)"
        machine = replace(machine, memory_bytes=what.ram, memory_total_bytes=what.ram, memory_reason=text)
    if what.vram is not None or what.gpu is not None:
        machine = _with_gpu(machine, what)
    elif what.pcie is not None:
        machine = replace(machine, devices=tuple(replace(d, pcie_bytes_per_s=_said(what.pcie)) for d in base.devices))
    return replace(machine, rates=_rates(machine, what))


def _check(base: Machine, what: WhatIf) -> None:
    if what.isa is not None and what.isa not in TIERS:
        raise UsageError(f"unknown ISA tier {what.isa!r}", f"one of {', '.join(TIERS)}")
    if (what.ram_speed is None) != (what.channels is None):
        lacking = "--channels" if what.channels is None else "--ram-speed"
        raise UsageError(f"--ram-speed and --channels belong together; {lacking} is missing", f"add {lacking} N")
    if what.bandwidth is not None and what.ram_speed is not None:
        raise UsageError("--bandwidth contradicts --ram-speed and --channels", "give one of the two")
    if what.vram == 0 and what.gpu:
        raise UsageError("--gpu names a GPU and --vram 0 says there is none", "leave one of the two out")
    if what.pcie is not None and (what.vram == 0 or (not what.vram and not base.gpus)):
        raise UsageError("--pcie without a GPU means nothing", "add --vram SIZE")
    if what.sockets is not None and what.cores is not None and what.cores < what.sockets:
        raise UsageError(f"{what.cores} cores cannot fill {what.sockets} sockets", "--cores counts those of a socket")


def _with_cpu(base: Machine, what: WhatIf, built: tuple[str, ...]) -> Machine:
    if what.cores is None and what.sockets is None and what.isa is None:
        return base
    sockets = what.sockets or base.sockets
    cores = sockets * what.cores if what.cores else len(base.cpus)
    isa = what.isa or base.isa_tier
    machine = replace(base, isa_tier=isa, sockets=sockets)
    if what.isa is not None:
        reason = "given" if isa in built else "given; this version has no kernels for it yet"
        machine = replace(machine, tiers=(TierStatus(what.isa, isa in built, True, reason),), isa_reason=reason)
    if what.cores is None and what.sockets is None:
        return machine
    text = f"{cores} cores (given)"
    described = f"{sockets} x {cores // sockets} cores" if sockets > 1 else f"{cores} cores"
    return replace(
        machine,
        cpus=tuple(range(cores)),
        spare_cpus=(),
        visible_cpus=cores,
        cpu_reason=text,
        physical_cores=cores,
        performance_cores=cores,
        cpu_model=f"a CPU of {described} (given)",
        nodes=(),
    )


def _with_gpu(machine: Machine, what: WhatIf) -> Machine:
    if what.vram == 0:
        return replace(machine, gpus=(), gpu_memory_bytes=(), devices=(), gpu_reason="none (given)")
    name = what.gpu or (machine.gpus[0] if machine.gpus and what.vram is None else "a consumer GPU")
    size = what.vram or (machine.gpu_memory_bytes[0] if machine.gpu_memory_bytes else 24 << 30)
    pcie = _said(what.pcie) if what.pcie is not None else None
    device = Gpu(name, size, size, "", pcie, True, "given", "assumed")
    text = f"{name}, {size_text(size)} (given)"
    return replace(machine, gpus=(name,), gpu_memory_bytes=(size,), devices=(device,), gpu_reason=text)


def _rates(machine: Machine, what: WhatIf) -> Rates | None:
    """Rates said or kept. Other cores or another tier make measured ones of this CPU meaningless."""
    other_cpu = what.cores is not None or what.sockets is not None
    rates = machine.rates or Rates()
    if other_cpu:
        rates = Rates(ssd_read=rates.ssd_read)
    if other_cpu or what.isa is not None:
        rates = replace(rates, int8_ops=None, f32_flops=None, kernels=())
    bandwidth = _bandwidth(machine, what)
    if bandwidth is not None:
        # A rate that was said is taken as what reads reach; a data sheet's is that of the best case.
        gather = bandwidth.value * (1.0 if what.bandwidth is not None else assumed.GATHER_SHARE)
        at = RateAt(len(machine.cpus), bandwidth)
        gathered = (replace(at, rate=_said(gather)),)
        rates = replace(rates, stream_read=(at,), gather_read=gathered, node_reads=(), knee_threads=0)
    if what.ssd is not None:
        rates = replace(rates, ssd_read=_said(what.ssd))
    return None if rates == Rates() else rates


def _bandwidth(machine: Machine, what: WhatIf) -> Measured | None:
    """Said outright, or from the memory's data sheet: what all cores read of it, and what a second socket adds."""
    if what.bandwidth is not None:
        return _said(what.bandwidth)
    if what.ram_speed is None or what.channels is None:
        return None
    socket = what.ram_speed * 1e6 * 8 * what.channels * assumed.SPEC_SHARE
    return _said(socket * (1 + assumed.SECOND_SOCKET * (machine.sockets - 1)))


def _said(rate: float) -> Measured:
    return Measured(rate, "B/s", "assumed")


BLANK = Machine(
    cpu_model="a CPU (given)",
    cpus=tuple(range(16)),
    visible_cpus=16,
    cpu_reason="16 cores (assumed)",
    memory_bytes=64 << 30,
    memory_total_bytes=64 << 30,
    memory_reason="64 GiB of memory (assumed)",
    tiers=(),
    isa_tier="avx2",
)
"""A desktop to start from where nothing is known of the local machine."""
