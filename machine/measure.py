"""Measures what `machine.probe` cannot read from files: memory, arithmetic, disk and PCIe rates. Takes seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hetero.machine.disk import DiskRates, measure_disk
from hetero.machine.measure_cpu import CpuMeter, Effort, across_nodes, knee, own_nodes, thread_counts
from hetero.machine.pcie import measure_pcie
from hetero.machine.types import HardwareError, Machine, Rates
from hetero.machine.units import size_text

Progress = Callable[[int, int, str], None]
"""(steps done, all steps, what is measured now)."""

_CACHES = 8
"""The memory that is read is at least so many times the caches, where there is room."""
_ENOUGH_CACHES = 4
"""From here on the caches hardly matter."""
_MEMORY_SHARE = 0.25


def measure(
    machine: Machine,
    folder: Path | None,
    progress: Progress = lambda done, total, what: None,
    effort: Effort = Effort(),
) -> Rates:
    """The rates of this computer, which `machine` describes; the disk is that of `folder` (None: not measured).

    What cannot be measured is None and told in the notes.
    """
    steps = _Steps(progress, machine)
    notes = _busy_notes(machine)
    rates = Rates(notes=("no rates of memory and arithmetic: there are no kernels to measure with",))
    if machine.isa_tier is not None:
        size = memory_to_read(machine, effort.set_bytes)
        try:
            rates = _measure_cpu(machine, machine.isa_tier, replace(effort, set_bytes=size), steps)
        except (MemoryError, HardwareError) as error:  # a limit on address space or threads
            rates = Rates(notes=(f"no rates of memory and arithmetic: {error or 'out of memory'}",))
    disk = DiskRates()
    if folder is not None:
        disk = measure_disk(folder, effort.disk_bytes, lambda: steps.begin("disk"))
    pcie = None
    if machine.gpus:
        steps.begin("PCIe")
        pcie = measure_pcie()
    notes += rates.notes + ((disk.note,) if disk.note else ())
    return replace(rates, ssd_read=disk.read, ssd_write=disk.write, pcie=pcie, notes=notes)


def memory_to_read(machine: Machine, wanted: int) -> int:
    """Bytes to read over: `wanted`, or more where the caches are large, within a quarter of the usable memory."""
    return min(max(wanted, _CACHES * machine.cache_bytes), int(machine.memory_bytes * _MEMORY_SHARE))


def _measure_cpu(machine: Machine, tier: str, effort: Effort, steps: _Steps) -> Rates:
    steps.begin("memory")
    meter = CpuMeter(machine.cpus, tier, effort)
    stream, gather = [], []
    for threads in thread_counts(len(machine.cpus)):
        steps.begin(f"memory, {threads} of {len(machine.cpus)} threads")
        linear, random = meter.memory(threads)
        stream.append(linear)
        gather.append(random)
    steps.begin("arithmetic")
    int8, f32 = meter.arithmetic("int8"), meter.arithmetic("f32")
    steps.begin("kernels")
    kernels = meter.kernels()
    set_bytes = meter.set_bytes
    del meter  # its memory, before that of the nodes
    nodes = own_nodes(machine)
    if nodes:
        steps.begin("NUMA nodes")
    return Rates(
        stream_read=tuple(stream),
        gather_read=tuple(gather),
        node_reads=tuple(across_nodes(nodes, tier, effort)) if nodes else (),
        knee_threads=knee(gather),
        int8_ops=int8,
        f32_flops=f32,
        kernels=kernels,
        set_bytes=set_bytes,
        piece_bytes=effort.piece_bytes,
        notes=_cache_notes(machine, set_bytes),
    )


class _Steps:
    """Counts the parts of the measurement for whoever shows progress."""

    def __init__(self, progress: Progress, machine: Machine) -> None:
        self._progress, self._done = progress, 0
        cpu = len(thread_counts(len(machine.cpus))) + 3 + bool(own_nodes(machine))
        self._total = (cpu if machine.isa_tier else 0) + 2 + bool(machine.gpus)

    def begin(self, what: str) -> None:
        self._progress(self._done, self._total, what)
        self._done += 1


def _busy_notes(machine: Machine) -> tuple[str, ...]:
    """A warning that others use the machine: rates are then what they leave."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        return ()
    if load < 0.25 * machine.visible_cpus + 0.5:
        return ()
    return (f"measured while others used the machine (load {load:.1f}, {machine.visible_cpus} CPUs): rates may be low",)


def _cache_notes(machine: Machine, set_bytes: int) -> tuple[str, ...]:
    if set_bytes >= _ENOUGH_CACHES * machine.cache_bytes:
        return ()
    sizes = f"{size_text(set_bytes)} were read, caches hold {size_text(machine.cache_bytes)}"
    return (f"memory rates may be too high: {sizes}",)
