"""The rates of a machine that an estimate divides by: measured where there are measurements, else assumed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hetero.machine import assumptions as assumed
from hetero.machine.types import KernelRate, Machine, Measured, RateAt, Rates, Source, UsageError
from hetero.native.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Speed:
    """A rate in units per second and where it comes from, in words."""

    value: float
    source: Source
    origin: str


@dataclass(frozen=True, slots=True)
class Speeds:
    """All rates of one plan: bytes/s of reads and links, operations/s of units."""

    gather: Speed
    stream: Speed
    int8: Speed
    f32: Speed
    ssd: Speed
    gpu_read: Speed
    gpu_ops: Speed
    pcie: Speed
    tiles: bool
    """Whether `int8` is the rate of bf16 tiles, which need full tiles and serve every format."""
    kernels: tuple[KernelRate, ...] = ()
    """Rates of whole matrix products by format and tokens, where they were measured."""
    cache_bytes: int = assumed.CACHE_BYTES
    """All last-level caches."""

    def product(self, fmt: str, tokens: float) -> Speed | None:
        """The measured rate of a format's products with `tokens` tokens, between the two nearest counts."""
        same = FORMATS[fmt].kernel if fmt in FORMATS else fmt
        known = sorted((k for k in self.kernels if k.format == same), key=lambda k: k.tokens)
        if not known:
            return None
        below = [k for k in known if k.tokens <= tokens] or known[:1]
        above = [k for k in known if k.tokens >= tokens] or known[-1:]
        low, high = below[-1], above[0]
        span = math.log(high.tokens / low.tokens)
        part = math.log(max(tokens, low.tokens) / low.tokens) / span if span else 0.0
        value = low.rate.value + part * (high.rate.value - low.rate.value)
        return Speed(value, low.rate.source, f"{fmt} kernel, {tokens:.0f} tokens")


def speeds(machine: Machine, threads: int) -> Speeds:
    """The rates with `threads` worker threads."""
    rates = machine.rates
    _check(rates)
    tier = machine.isa_tier if machine.isa_tier in assumed.INT8_PER_CYCLE else "generic"
    stream = _read(rates.stream_read if rates else (), threads, machine, "stream reads")
    gather = _read(rates.gather_read if rates else (), threads, machine, "expert-sized random reads")
    if rates and not rates.gather_read and rates.stream_read:
        gather = Speed(stream.value, stream.source, stream.origin)
    share = threads / max(1, len(machine.cpus))
    clock = assumed.TILE_CLOCK if tier == "amx" else assumed.CLOCK
    read, ops = _gpu_data(machine)
    return Speeds(
        gather=gather,
        stream=stream,
        int8=_ops(rates.int8_ops if rates else None, share, threads, assumed.INT8_PER_CYCLE[tier], clock),
        f32=_ops(rates.f32_flops if rates else None, share, threads, assumed.F32_PER_CYCLE[tier], assumed.CLOCK),
        ssd=_known(rates.ssd_read if rates else None, assumed.SSD_READ, "an NVMe drive"),
        gpu_read=read,
        gpu_ops=ops,
        pcie=_known(_pcie(machine), assumed.CONSUMER_PCIE, "PCIe 4"),
        tiles=tier == "amx",
        kernels=_scaled(rates.kernels, share) if rates else (),
        cache_bytes=machine.cache_bytes or assumed.CACHE_BYTES,
    )


def _check(rates: Rates | None) -> None:
    """Refuses rates of zero, which a machine file may hold and nothing could be divided by."""
    if rates is None:
        return
    every = [r.rate for r in (*rates.stream_read, *rates.gather_read)] + [k.rate for k in rates.kernels]
    every += [r for r in (rates.int8_ops, rates.f32_flops, rates.ssd_read, rates.pcie) if r is not None]
    if any(not 0 < rate.value < math.inf for rate in every):
        raise UsageError("the machine has a rate of 0", "measure it again: hetero probe --fresh")
    if any(r.threads < 1 for r in (*rates.stream_read, *rates.gather_read)) or any(k.tokens < 1 for k in rates.kernels):
        raise UsageError("the machine has a rate of no threads or no tokens", "measure it again: hetero probe --fresh")


def _scaled(kernels: tuple[KernelRate, ...], share: float) -> tuple[KernelRate, ...]:
    """Fewer threads than those that were measured compute as much less."""
    if share >= 1.0:
        return kernels
    return tuple(replace(k, rate=replace(k.rate, value=k.rate.value * share)) for k in kernels)


def _read(measured: tuple[RateAt, ...], threads: int, machine: Machine, what: str) -> Speed:
    whole = sorted((r for r in measured if r.cpu_node is None and r.memory_node is None), key=lambda r: r.threads)
    if not whole:
        value = min(assumed.READ_PER_CORE * threads, assumed.READ_MOST * max(1, machine.sockets))
        return Speed(value, "assumed", f"{assumed.READ_PER_CORE / 1e9:g} GB/s a thread; hetero probe measures it")
    fitting = [r for r in whole if r.threads <= threads]
    best = max(fitting, key=lambda r: r.rate.value) if fitting else whole[0]
    scale = 1.0 if fitting else threads / best.threads
    rate = best.rate
    return Speed(rate.value * scale, rate.source, f"{what}, {best.threads} threads")


def _ops(measured: Measured | None, share: float, threads: int, per_cycle: float, clock: float) -> Speed:
    if measured is not None:
        return Speed(measured.value * min(1.0, share), measured.source, "multiply-adds in registers")
    return Speed(threads * clock * per_cycle, "assumed", f"{threads} cores x {clock / 1e9:g} GHz x {per_cycle:g}")


def _known(measured: Measured | None, fallback: float, what: str) -> Speed:
    if measured is None:
        return Speed(fallback, "assumed", what)
    return Speed(measured.value, measured.source, "given" if measured.source == "assumed" else "hetero probe")


def _pcie(machine: Machine) -> Measured | None:
    """A link that was said or seen on the device, else the one that `hetero probe` measured."""
    on_device = machine.devices[0].pcie_bytes_per_s if machine.devices else None
    known = on_device or (machine.rates.pcie if machine.rates else None)
    return known if known and known.value > 0 else None


def _gpu_data(machine: Machine) -> tuple[Speed, Speed]:
    name = machine.gpus[0] if machine.gpus else ""
    found = next((key for key in assumed.GPUS if key in name), "")
    read, ops = assumed.GPUS.get(found, assumed.CONSUMER_GPU)
    origin = f"data sheet of the {found}" if found else "a consumer GPU"
    return Speed(read, "assumed", origin), Speed(ops, "assumed", origin)
