"""A machine on the screen: what there is, what of it is usable and why, how fast it is, and what that means."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from hetero.cli import output, wording
from hetero.machine.types import Gpu, HugePages, Machine, Measured, Node, RateAt, Rates
from hetero.machine.units import size_text

Row = tuple[str, str, str]

_ACTIVE = 3e9
"""Parameters that one token uses in a model of about 30 B, by which the rates are explained."""
_BYTES_PER_PARAMETER = 4.5 / 8
"""Of 4-bit codes with a 16-bit scale for every 32."""
_MODEL_SHARE = 0.9
_BAR = 16
_BAR_ROOM = 64
"""Columns from which on there are bars."""


def show(machine: Machine) -> None:
    """Print a machine as tables on stdout, its notes on stderr."""
    output.table([*_facts(machine), *_gpus(machine)], styles={0: "bold", 2: "dim"})
    if machine.rates is not None:
        output.result("")
        _show_memory(machine.rates)
        rows = list(_speeds(machine.rates))
        if rows:
            output.result("")
            output.table(rows, styles={0: "bold", 2: "dim"})
    output.result("")
    output.table([(line,) for line in _meaning(machine)])
    for text in machine.notes:
        if machine.gpu_reason and text.startswith(machine.gpu_reason):
            output.warning(text)
        elif text != machine.isa_reason:  # the table has it
            output.note(text)


def _facts(machine: Machine) -> Iterator[Row]:
    yield "CPU", machine.cpu_model, "file"
    yield "cores", machine.cpu_reason, "file"
    yield "", _core_kinds(machine), "file"
    yield "ISA tier", _with_reason(machine.isa_tier or "none", machine.isa_reason), "file"
    for tier in machine.tiers:
        # a reason against all tiers stands in the line above
        refused = "no" if machine.isa_reason.startswith(tier.reason) else f"no: {tier.reason}"
        text = "in use" if tier.name == machine.isa_tier else "usable" if tier.usable else refused
        yield f"  {tier.name}", text, "file"
    yield "memory", machine.memory_reason, "file"
    yield "NUMA", _nodes(machine), machine.nodes[0].source if machine.nodes else "file"
    if machine.huge_pages is not None:
        yield "huge pages", _huge_pages(machine.huge_pages), "file"
    if machine.hypervisor:
        yield "runs on", _hypervisor(machine.hypervisor), "file"
    yield "disk", f"{size_text(machine.disk_free_bytes)} free here", "file"


def _core_kinds(machine: Machine) -> str:
    parts = [wording.plural(machine.sockets, "socket"), wording.plural(machine.physical_cores, "core")]
    slow = machine.physical_cores - machine.performance_cores
    if slow:
        parts[-1] += f" ({machine.performance_cores} performance, {slow} efficiency)"
    if machine.threads_per_core > 1:
        parts.append(f"SMT with {machine.threads_per_core} threads a core")
    if machine.cache_bytes:
        parts.append(f"{size_text(machine.cache_bytes)} of last-level cache")
    return ", ".join(parts)


def _nodes(machine: Machine) -> str:
    nodes = machine.nodes
    if len(nodes) < 2:
        return "one node"
    sizes = {(len(node.cpus), round(node.memory_bytes / (1 << 30))) for node in nodes}
    if len(sizes) == 1:
        text = f"{len(nodes)} nodes of {_node(nodes[0])}"
    else:
        text = f"{len(nodes)} nodes: " + "; ".join(f"{node.id}: {_node(node)}" for node in nodes)
    return text + (f"; {machine.clustering}" if machine.clustering else "")


def _node(node: Node) -> str:
    return f"{wording.plural(len(node.cpus), 'CPU')} and {size_text(node.memory_bytes)}"


def _huge_pages(pages: HugePages) -> str:
    text = f"transparent: {pages.transparent or 'not in this kernel'}"
    if pages.total:
        text += f"; pool of {pages.total} pages of {size_text(pages.page_bytes)}, {pages.free} free (not used)"
    return text


def _hypervisor(name: str) -> str:
    return "a virtual machine" if name == "unknown" else name


def _gpus(machine: Machine) -> Iterator[Row]:
    if not machine.devices:
        yield "GPU", machine.gpu_reason or "none", "file"
    for gpu in machine.devices:
        yield "GPU", _gpu(gpu), gpu.source
        if gpu.pcie_bytes_per_s is not None:
            yield "  PCIe", _rate(gpu.pcie_bytes_per_s), gpu.pcie_bytes_per_s.source


def _gpu(gpu: Gpu) -> str:
    text = f"{gpu.name}, {size_text(gpu.memory_free)} of {size_text(gpu.memory_total)} free"
    if gpu.compute_capability:
        text += f", compute capability {gpu.compute_capability}"
    if not gpu.usable:
        return f"{text}; cannot be used: {gpu.reason}"
    return f"{text}; not used: {gpu.reason}" if gpu.reason else text


def _show_memory(rates: Rates) -> None:
    """Reads by thread count, with bars where there is room."""
    rows = _reads(rates)
    if not rows:
        return
    best = max(gather.rate.value for _, gather in rows)
    roomy = output.width(sys.stdout) >= _BAR_ROOM
    block = "█" if _is_unicode() else "#"
    lines = []
    for stream, gather in rows:
        mark = " (knee)" if gather.threads == rates.knee_threads else ""
        bar = (block * max(1, round(_BAR * gather.rate.value / best)),) if roomy else ()
        cells = (f"{wording.plural(gather.threads, 'thread')}{mark}", _rate_text(stream.rate), _rate(gather.rate), *bar)
        lines.append((*cells, gather.rate.source))
    headers = ("memory reads", "linear", "experts", *(("",) if roomy else ()), "")
    output.table(lines, headers=headers, right=(1, 2), styles={len(headers) - 1: "dim"})


def _reads(rates: Rates) -> list[tuple[RateAt, RateAt]]:
    """The thread counts worth showing: one, half, the knee and all."""
    pairs = list(zip(rates.stream_read, rates.gather_read, strict=False))
    if not pairs:
        return []
    most = pairs[-1][1].threads
    half = min((gather.threads for _, gather in pairs), key=lambda n: abs(n - most / 2))
    chosen = {1, half, rates.knee_threads, most}
    return [pair for pair in pairs if pair[1].threads in chosen]


def _speeds(rates: Rates) -> Iterator[Row]:
    yield from _node_speeds(rates.node_reads)
    for name, measured in (
        ("int8", rates.int8_ops),
        ("float32", rates.f32_flops),
        ("SSD reads", rates.ssd_read),
        ("SSD writes", rates.ssd_write),
    ):
        if measured is not None:
            yield name, _rate(measured), measured.source
    if output.is_verbose():
        for kernel in rates.kernels:
            name = f"{kernel.format} x {wording.plural(kernel.tokens, 'token')}"
            yield name, _rate(kernel.rate), kernel.rate.source


def _node_speeds(reads: Sequence[RateAt]) -> Iterator[Row]:
    for name, of in (("local", True), ("remote", False)):
        values = [at.rate for at in reads if (at.cpu_node == at.memory_node) == of]
        if values:
            low, high = (_figure(pick(value.value for value in values) / 1e9) for pick in (min, max))
            shown = high if low == high else f"{low} to {high}"
            yield f"{name} node", f"{shown} GB/s with all cores of a node", values[0].source


def _meaning(machine: Machine) -> Iterator[str]:
    """What the figures come to, for a model that many know."""
    parameters = machine.memory_bytes * _MODEL_SHARE / _BYTES_PER_PARAMETER / 1e9
    yield f"Room for a model of about {parameters:,.0f} B parameters at 4 bits."
    rates = machine.rates
    if rates is None:
        yield "Not measured yet: `hetero probe` without --quick does, in some seconds."
        return
    if rates.gather_read:
        best = max(at.rate.value for at in rates.gather_read)
        tokens = best / (_ACTIVE * _BYTES_PER_PARAMETER)
        at_most = f"at most {wording.rate(tokens)} tok/s for 3 B active parameters at 4 bits."
        yield f"Reads experts at {_figure(best / 1e9)} GB/s: {at_most}"
    if rates.int8_ops is not None:
        prompt = rates.int8_ops.value / (2 * _ACTIVE)
        at_most = f"at most {wording.rate(prompt)} tok/s of prompt for the same model."
        yield f"Multiplies {_rate_text(rates.int8_ops)}: {at_most}"
    threads = len(machine.cpus)
    if 0 < rates.knee_threads < threads:
        yield f"{rates.knee_threads} of {threads} threads already reach 95 % of the memory's rate."
    if rates.ssd_read is not None:
        yield f"A model of 20 GB loads from the cache folder's disk in {20e9 / rates.ssd_read.value:,.0f} s or more."


def _rate(measured: Measured) -> str:
    sign = "±" if _is_unicode() else "+-"
    spread = f" {sign}{50 * measured.spread:.0f} %" if measured.samples > 1 else ""
    return _rate_text(measured) + spread


def _rate_text(measured: Measured) -> str:
    value = measured.value / 1e9
    if measured.unit == "op/s" and value >= 1000:
        return f"{_figure(value / 1000)} Top/s"
    return f"{_figure(value)} G{measured.unit}"


def _figure(value: float) -> str:
    """Three digits, never an exponent."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _is_unicode() -> bool:
    return "utf" in (sys.stdout.encoding or "").lower()


def _with_reason(fact: str, reason: str) -> str:
    return f"{fact} ({reason})" if reason else fact
