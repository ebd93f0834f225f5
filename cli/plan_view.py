"""A plan on the screen: what goes where, how many bytes it needs, and whether that fits."""

from __future__ import annotations

import dataclasses

from hetero.cli import output, wording
from hetero.machine.types import Machine, ModelIndex, Plan
from hetero.machine.units import size_text


def show(index: ModelIndex, machine: Machine, plan: Plan, as_json: bool) -> None:
    """Print the plan as tables, or as one JSON object of schema `hetero.plan`."""
    if as_json:
        body = dataclasses.asdict(plan)
        body |= {"model": index.name, "threads": plan.threads, "total_bytes": plan.total_bytes}
        output.json_result("hetero.plan", body)
        return
    verdict = "fits" if plan.fits else "does not fit"
    output.table(
        [
            ("model", f"{index.name} ({index.architecture})"),
            ("dense part", plan.placement.dense),
            ("experts", plan.placement.experts if index.n_experts else "none"),
            ("context", wording.plural(plan.context, "token") + f", KV cache in {plan.kv_dtype}"),
            ("CPU", f"{wording.plural(plan.threads, 'thread')}, ISA tier {plan.isa_tier}"),
            ("memory", f"{size_text(plan.total_bytes)} of {size_text(plan.memory_bytes)}: {verdict}"),
        ]
    )
    output.result("")
    lines = [(line.device, line.part, size_text(line.bytes), str(line.source)) for line in plan.ledger]
    output.table(
        [*lines, ("", "total", size_text(plan.total_bytes), "")],
        headers=("device", "part", "bytes", "source"),
        right=(2,),
    )
    for text in plan.notes:
        output.note(text)
