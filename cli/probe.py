"""`hetero probe`: what this computer has, what of it can be used, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from hetero.cli import options, output
from hetero.machine.types import Machine, TierStatus
from hetero.machine.units import size_text


def probe(
    quick: Annotated[bool, typer.Option("--quick", help="Only look; measure nothing.")] = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the CPU, its kernels, memory and GPUs, and what limits them."""
    from hetero.machine.probe import probe as look
    from hetero.machine.serialize import to_json

    machine = look(quick=quick)
    if json:
        output.json_object(to_json(machine))
    else:
        show(machine)


def show(machine: Machine) -> None:
    """Print a machine as a table, its notes as notes."""
    rows = [("CPU", machine.cpu_model), ("ISA tier", _with_reason(machine.isa_tier or "none", machine.isa_reason))]
    rows += [(f"  {tier.name}", _tier(tier)) for tier in machine.tiers]
    rows += [("cores", machine.cpu_reason), ("memory", machine.memory_reason)]
    rows += [("GPU", line) for line in machine.gpus or (_with_reason("none", machine.gpu_reason),)]
    rows.append(("disk", f"{size_text(machine.disk_free_bytes)} free"))
    output.table(rows)
    for text in machine.notes:
        if text != machine.isa_reason:  # the table has it
            output.note(text)


def _tier(tier: TierStatus) -> str:
    state = "usable" if tier.usable else "no"
    return _with_reason(state, tier.reason)


def _with_reason(fact: str, reason: str) -> str:
    return f"{fact} ({reason})" if reason else fact
