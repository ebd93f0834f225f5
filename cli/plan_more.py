"""The other answers of `hetero plan`: a curve, the change that reaches a rate, a mixture of experts of equal memory."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import replace

from hetero.cli import output, wording
from hetero.cli.plan_view import width
from hetero.machine import quantities
from hetero.machine.advice import SWEPT, Case, Point, remedy, sweep, target
from hetero.machine.types import HeteroError, Plan, UsageError
from hetero.machine.units import size_text


def show_sweep(case: Case, text: str, as_json: bool) -> bool:
    """Draw decode over one varied quantity; False where no point of it fits. Raises UsageError for a bad range."""
    name, equals, ends = text.partition("=")
    low, dots, high = ends.partition("..")
    if not equals or not dots:
        raise UsageError(f"--sweep is {text!r}; expected NAME=A..B", "such as --sweep context=4k..128k")
    points = sweep(case, name, _value(name, low), _value(name, high))
    if as_json:
        body = {"model": case.index.name, "name": name, "points": [dataclasses.asdict(p) for p in points]}
        output.json_result("hetero.plan.sweep", body)
    else:
        output.result(f"{case.index.name}: tokens/s over {name}")
        _curve(name, points)
    return any(point.fits for point in points)


def _value(name: str, text: str) -> float:
    kind = SWEPT.get(name)
    if kind is None:
        raise UsageError(f"--sweep cannot vary {name!r}", f"one of {', '.join(SWEPT)}")
    what = f"--sweep {name}"
    if kind == "rate":
        return quantities.parse_rate(text, what)
    if kind == "bytes":
        return quantities.parse_bytes(text, what)
    return quantities.parse_tokens(text, what) if kind == "tokens" else quantities.parse_count(text, what)


def _curve(name: str, points: tuple[Point, ...]) -> None:
    most = max(p.decode_tps for p in points)
    mark = "█" if "utf" in (getattr(sys.stdout, "encoding", "") or "").lower() else "#"
    room = max(8, width() - 42)
    rows = []
    for p in points:
        bar = mark * max(1, round(room * p.decode_tps / most))
        state = "" if p.fits else "does not fit"
        rows.append((_shown(name, p.value), wording.rate(p.prefill_tps), wording.rate(p.decode_tps), bar, state))
    output.table(rows, headers=(name, "prefill", "decode", "", ""), right=(0, 1, 2))


def _shown(name: str, value: float) -> str:
    kind = SWEPT[name]
    if kind == "rate":
        return f"{value / 1e9:.3g} GB/s"
    return size_text(int(value)) if kind == "bytes" else f"{value:,.0f}"


def show_target(case: Case, wanted: float, as_json: bool) -> bool:
    """Print the smallest change that reaches `wanted` tokens/s; False where no single one does."""
    made = case.plan()
    assert made.decode is not None
    reached = made.fits and made.decode.likely >= wanted
    changes = () if reached else target(case, wanted)
    if as_json:
        body = {"model": case.index.name, "target_tps": wanted, "reached": reached, "decode_tps": made.decode.likely}
        body |= {"fits": made.fits, "changes": [dataclasses.asdict(change) for change in changes]}
        output.json_result("hetero.plan.target", body)
    elif reached:
        output.result(f"{case.index.name} decodes at {wording.rate(made.decode.likely)} tok/s: nothing need change")
    elif changes:
        now = wording.rate(made.decode.likely) if made.fits else f"nothing, as it does not fit ({remedy(case)})"
        output.result(f"{case.index.name}: {wording.rate(wanted)} tok/s instead of {now}")
        rows = [(c.what, f"{wording.rate(c.decode_tps)} tok/s", c.option) for c in changes]
        output.table(rows, headers=("any one of these, smallest first", "decode", "option"))
    else:
        output.result(f"{case.index.name}: no single change reaches {wording.rate(wanted)} tok/s")
    return reached or bool(changes)


def moe_of_equal_memory(case: Case, plan: Plan) -> tuple[str, float] | None:
    """The largest card with experts that needs no more memory than this plan, and the rate it decodes at."""
    from hetero.models.card import cards

    best: tuple[int, str, float] | None = None
    request = replace(case.request, force=True, context=None, depth=None, threads=case.request.threads)
    for card in cards().values():
        index = card.index
        if not index.n_experts:
            continue
        for fmt in (None, "Q8_0", "Q4_0"):
            try:
                made = Case(index, case.machine, replace(request, experts=fmt, dense=request.dense)).plan()
            except HeteroError:
                continue
            if made.decode is not None and made.total_bytes <= plan.total_bytes and made.fits:
                title = card.title if fmt is None else f"{card.title} with {fmt} experts"
                if best is None or made.total_bytes > best[0]:
                    best = (made.total_bytes, title, made.decode.likely)
                break
    return None if best is None else best[1:]
