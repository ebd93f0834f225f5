"""`hetero bench --compare A B`: two models in turns, so that what else the machine does meets both alike."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from hetero.cli import output, session, wording
from hetero.cli.runs import Sizes, Turns
from hetero.machine.types import HardwareError, PlanRequest
from hetero.machine.units import size_text


@dataclass(frozen=True, slots=True)
class Pair:
    """Tokens per second of A and of B, run by run."""

    what: str
    a: tuple[float, ...]
    b: tuple[float, ...]

    def ratio(self) -> float:
        """Of the medians, above 1 where A is faster."""
        return statistics.median(self.a) / statistics.median(self.b)

    def ratios(self) -> list[float]:
        """Of the runs side by side."""
        return [a / b for a, b in zip(self.a, self.b, strict=True)]


def compare(models: tuple[str, str], request: PlanRequest, sizes: Sizes, repeat: int, as_json: bool) -> None:
    """Load both, run them in turns and report. HardwareError when both together do not fit."""
    both = [session.prepare(model, request) for model in models]
    needed, memory = sum(one.plan.total_bytes for one in both), both[0].plan.memory_bytes
    if needed > memory and not request.force:
        found = f"both models need {size_text(needed)}, this machine has {size_text(memory)}"
        raise HardwareError(found, "bench them one after the other, or give a smaller --context")
    with ExitStack() as stack:
        turns = []
        for one in both:
            engine = one.load(keep=False)
            stack.callback(engine.close)
            turns.append(Turns(engine, sizes))
        pairs = measure(turns[0], turns[1], sizes, repeat)
    _report(both, pairs, as_json)


def measure(a: Turns, b: Turns, sizes: Sizes, repeat: int) -> list[Pair]:
    """Runs of both, who goes first changing each time; the first of each is not counted."""
    kinds = {f"prefill {sizes.prefill:,}": Turns.prefill} if sizes.prefill else {}
    if sizes.decode:
        kinds[f"decode {sizes.decode:,}" + (f" after {sizes.depth:,}" if sizes.depth else "")] = Turns.decode
    samples: dict[str, tuple[list[float], list[float]]] = {what: ([], []) for what in kinds}
    status = output.StatusLine()
    for turn in range(repeat + 1):
        status.show(f"run {turn} of {repeat}" if turn else "warming up")
        for what, run in kinds.items():
            for side in (0, 1) if turn % 2 else (1, 0):
                samples[what][side].append(run((a, b)[side]))
    status.clear()
    return [Pair(what, tuple(mine[1:]), tuple(other[1:])) for what, (mine, other) in samples.items()]


def _report(both: Sequence[session.Prepared], pairs: Sequence[Pair], as_json: bool) -> None:
    if as_json:
        sides = [{"model": one.index.name, "path": str(one.path)} for one in both]
        body: dict[str, Any] = {"a": sides[0], "b": sides[1], "isa_tier": both[0].plan.isa_tier}
        body |= {"threads": both[0].plan.threads, "runs": [_figures(pair) for pair in pairs]}
        output.json_result("hetero.bench-compare", body)
        return
    for letter, one in zip("AB", both, strict=True):
        output.result(f"{letter}: {one.summary()}")
    rows = []
    for pair in pairs:
        ratios = pair.ratios()
        spread = f"{min(ratios):.2f} to {max(ratios):.2f} in {wording.plural(len(ratios), 'pair')}"
        rows.append((pair.what, _side(pair.a), _side(pair.b), f"{pair.ratio():.2f}", spread))
    output.table(rows, headers=("tok/s", "A", "B", "A / B", "side by side"), right=(3,))


def _side(samples: Sequence[float]) -> str:
    middle, low, high = (wording.rate(value) for value in (statistics.median(samples), min(samples), max(samples)))
    return f"{middle} ({low} to {high})"


def _figures(pair: Pair) -> dict[str, Any]:
    return {"what": pair.what, "a_tps": list(pair.a), "b_tps": list(pair.b), "ratio": pair.ratio()}
