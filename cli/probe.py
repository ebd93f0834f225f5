"""`hetero probe`: what this computer has, what of it can be used, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from hetero.cli import options, output
from hetero.machine.types import UsageError


def probe(
    quick: Annotated[bool, typer.Option("--quick", help="Only look; measure nothing.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again instead of showing kept rates.")] = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Show the CPU, its kernels, memory and GPUs, what limits them, and how fast they are.

    The first run measures for some seconds and keeps the rates. `--json` writes the file that `plan --machine` reads.
    """
    from hetero.cli import probe_view
    from hetero.cli.rates import with_known_rates, with_measured_rates
    from hetero.machine.probe import probe as look
    from hetero.machine.serialize import to_json

    if quick and fresh:
        raise UsageError("--quick measures nothing and --fresh measures again", "give one of the two")
    machine = look(quick=quick)
    machine = with_known_rates(machine) if quick else with_measured_rates(machine, fresh)
    if json:
        output.json_object(to_json(machine))
    else:
        probe_view.show(machine)
