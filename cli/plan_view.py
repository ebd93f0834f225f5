"""A plan on one screen: whether it fits, what goes where, how fast it is and why, and what would help."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from hetero.cli import output, wording
from hetero.machine.advice import Case, Change, Facts, advice, facts, remedy
from hetero.machine.traffic import with_formats
from hetero.machine.types import Estimate, LedgerLine, Machine, Plan, Term
from hetero.machine.units import size_text

_ANSWER = 2000
_BAR = {"experts": "█#", "dense": "▓=", "kv cache": "▒-", "": "▪+", "free": "·."}
"""How parts look in a bar, and in one for terminals without these characters."""


def show(case: Case, plan: Plan, as_json: bool, *, inputs: Mapping[str, Any], explain: bool = False) -> None:
    """Print the plan, or one JSON object of schema `hetero.plan`; `inputs` are what the command line said."""
    if as_json:
        output.json_result("hetero.plan", plan_body(case, plan, inputs))
        return
    changes = advice(case, plan)
    fix = "" if plan.fits else remedy(case)
    known = facts(case.index)
    _head(case, plan, known)
    _bars(plan, case.machine)
    _ledger(plan.ledger)
    _placement(case, plan)
    _speeds(plan)
    if known.is_dense:
        _dense_words(case, plan, known)
    _advice(changes, fix)
    if explain:
        _explain(case, plan)
    if plan.fits:
        lines("check", f"hetero bench {_bench_model(inputs)} {_bench_options(case, plan)}")
    for text in plan.notes:
        output.note(text)


def _bench_model(inputs: Mapping[str, Any]) -> str:
    """What `hetero bench` can open; a card, an address or a bare config.json has no weights to run."""
    path = Path(str(inputs.get("model", "")))
    return shlex.quote(str(path)) if os.path.exists(path) and path.suffix != ".json" else "MODEL (once it is here)"


def show_briefly(plan: Plan) -> None:
    """Whether it fits, and how fast, in one line each."""
    room = f"{size_text(plan.total_bytes)} of {size_text(plan.memory_bytes)}"
    lines("here", f"{'fits' if plan.fits else 'does not fit'}, {room}")
    if plan.prefill is not None and plan.decode is not None:
        rates = [f"{wording.rate(e.low)} to {wording.rate(e.high)} tok/s" for e in (plan.prefill, plan.decode)]
        lines("speed", f"prefill {rates[0]}, decode {rates[1]}")


def plan_body(case: Case, plan: Plan, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All of the plan under stable keys."""
    changes = advice(case, plan)
    fix = "" if plan.fits else remedy(case)
    request = dataclasses.asdict(case.request)
    del request["force"]
    return {
        "model": case.index.name,
        "fits": plan.fits,
        "prefill_tps": _estimate_body(plan.prefill),
        "decode_tps": _estimate_body(plan.decode),
        "ledger": [dataclasses.asdict(line) for line in plan.ledger],
        "total_bytes": plan.total_bytes,
        "memory_bytes": plan.memory_bytes,
        "missing": dict(plan.missing),
        "placement": dataclasses.asdict(plan.placement) | {"hot_experts": _hot_body(plan)},
        "advice": {"fit": fix, "faster": [dataclasses.asdict(change) for change in changes]},
        "parameters": dataclasses.asdict(facts(case.index)),
        "isa_tier": plan.isa_tier,
        "cpus": list(plan.cpus),
        "threads": plan.threads,
        "context": plan.context,
        "kv_dtype": plan.kv_dtype,
        "prefill_chunk": plan.prefill_chunk,
        "notes": list(plan.notes),
        "inputs": {**inputs, "request": request},
    }


def _estimate_body(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else dataclasses.asdict(found)


def _hot_body(plan: Plan) -> dict[str, Any] | None:
    return None if plan.hot_experts is None else dataclasses.asdict(plan.hot_experts)


def width() -> int:
    """Columns of the screen; 80 for a reader that has none."""
    return max(30, min(output.width(sys.stdout), 80))


def lines(label: str, text: str) -> None:
    """A labelled paragraph that folds under itself."""
    indent = 11
    rows = textwrap.wrap(text, width() - indent, break_long_words=True, break_on_hyphens=False) or [""]
    _put(f"{label:<{indent - 1}}", "bold", f" {rows[0]}")
    for row in rows[1:]:
        output.result(" " * indent + row)


def _put(painted: str, style: output.Style, rest: str, before: str = "") -> None:
    """A line with one part in a style; the rest is cleaned, as it may come from a file."""
    head, tail = wording.clean(before), wording.clean(rest)
    output.write(head + output.paint(wording.clean(painted), style, sys.stdout) + tail + "\n")


def _head(case: Case, plan: Plan, known: Facts) -> None:
    verdict = (
        output.paint("fits", "green", sys.stdout) if plan.fits else output.paint("does not fit", "red", sys.stdout)
    )
    one = f"{wording.amount(known.total)} parameters, {wording.amount(known.active)} used by a token"
    formats = sorted({i.format for i in with_formats(case.index, case.request.experts, case.request.dense).tensors})
    shown = [f for f in formats if f != "F32"] or formats
    lines("model", f"{case.index.name}: {one}, {' and '.join(shown)}")
    lines("machine", machine_text(case.machine, plan))
    verdict, style = ("fits", "green") if plan.fits else ("does not fit", "red")
    _put(verdict, cast(output.Style, style), f", context {plan.context:,} tokens", "verdict    ")


def machine_text(machine: Machine, plan: Plan) -> str:
    """The machine in one line."""
    parts = [machine.cpu_model, wording.plural(plan.threads, "thread"), plan.isa_tier]
    parts += [f"{name} {size_text(free)}" for name, free in zip(machine.gpus, machine.gpu_memory_bytes, strict=False)]
    return ", ".join([*parts, f"{size_text(machine.memory_bytes)} of memory"])


def _room(plan: Plan, machine: Machine, device: str) -> int | None:
    if device == "cpu":
        return plan.memory_bytes
    return machine.gpu_memory_bytes[0] if machine.gpu_memory_bytes else None


def _bars(plan: Plan, machine: Machine) -> None:
    plain = not _draws_blocks()
    for device in dict.fromkeys(line.device for line in plan.ledger):
        lines = [line for line in plan.ledger if line.device == device]
        used = sum(line.bytes for line in lines)
        room = _room(plan, machine, device) or used
        whole = max(used, room, 1)
        tail = f" {size_text(used)} of {size_text(room)}"
        cells = max(6, width() - 11 - len(tail))
        bar = ""
        for line in lines:
            kind = line.part.partition(",")[0] if line.part.partition(",")[0] in _BAR else ""
            bar += _BAR[kind][plain] * round(cells * line.bytes / whole)
        bar = (bar[:cells]).ljust(cells, _BAR["free"][plain])
        _put(bar, "cyan" if used <= room else "red", tail, f"{device:<11}")


def _draws_blocks() -> bool:
    return "utf" in (getattr(sys.stdout, "encoding", "") or "").lower()


def _ledger(ledger: Sequence[LedgerLine]) -> None:
    plain = not _draws_blocks()
    rows: list[tuple[str, ...]] = []
    for line in ledger:
        kind = line.part.partition(",")[0]
        rows.append((_BAR.get(kind, _BAR[""])[plain], line.part, line.device, size_text(line.bytes), line.source))
    rows.append(("", "total", "", size_text(sum(line.bytes for line in ledger)), ""))
    output.table(rows, headers=("", "part", "device", "bytes", "source"), right=(3,))


def _placement(case: Case, plan: Plan) -> None:
    device = plan.placement.dense
    where = f"{device}: attention, norms, router, shared experts, head, KV cache ({plan.kv_dtype})"
    if case.index.n_experts:
        missed = dict(plan.missing).get("cpu", 0)
        experts = sum(line.bytes for line in plan.ledger if line.part == "experts")
        share = 0 if not experts else min(1.0, missed / experts)
        source = "all in memory" if not share else f"{1 - share:.0%} in memory, {share:.0%} from the disk"
        where += f"; cpu: {case.index.n_experts} experts a layer, {case.index.top_k} used, {source}"
    if plan.hot_experts is not None:
        hot = plan.hot_experts
        where += f"; spare {device} memory would hold {hot.share:.0%} of the experts ({size_text(hot.bytes)})"
    lines("placement", where)


def _speeds(plan: Plan) -> None:
    if plan.prefill is None or plan.decode is None:
        return
    rows = []
    for name, found in (("prefill", plan.prefill), ("decode", plan.decode)):
        figures = (wording.rate(found.low), wording.rate(found.likely), wording.rate(found.high))
        rows.append((name, *figures, f"{found.bound} (at most {wording.rate(found.ceiling)})"))
    output.table(rows, headers=("tok/s", "low", "likely", "high", "bound by"), right=(1, 2, 3))
    lines("a token", breakdown(plan.decode))
    spans = [_ANSWER / rate / 60 for rate in (plan.decode.high, plan.decode.likely, plan.decode.low)]
    lines("an answer", f"{_ANSWER:,} tokens take {_minutes(spans[1])} ({_minutes(spans[0])} to {_minutes(spans[2])})")


def breakdown(found: Estimate) -> str:
    """`50 ms = experts 34 + dense 12 + ...`, in milliseconds of the likely case, largest first."""
    parts: dict[str, float] = {}
    for t in found.terms:
        parts[t.name] = parts.get(t.name, 0.0) + t.likely * 1e3
    ordered = sorted(parts.items(), key=lambda item: -item[1])
    total = sum(parts.values())
    shown = (f"{name} {_milliseconds(ms)}" for name, ms in ordered if ms >= 0.005 * total)
    return f"{_milliseconds(total)} ms = " + " + ".join(shown)


def _milliseconds(value: float) -> str:
    """Two digits of what is short, all of what is long, never an exponent."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _minutes(value: float) -> str:
    return f"{value:.1f} min" if value >= 1 else f"{value * 60:.0f} s" if value < 1 / 6 else f"{value:.1f} min"


def _dense_words(case: Case, plan: Plan, known: Facts) -> None:
    from hetero.cli.plan_more import moe_of_equal_memory

    text = "this is a dense model: every parameter is read for every token"
    assert plan.decode is not None
    other = moe_of_equal_memory(case, plan)
    if other is not None:
        title, rate = other
        text += f", which gives {wording.rate(plan.decode.likely)} tok/s; {title} of no more memory decodes at "
        text += f"{wording.rate(rate)}"
    lines("note", text)


def _advice(changes: Sequence[Change], fix: str) -> None:
    if fix:
        lines("to fit", fix)
    if changes:
        best = changes[0]
        lines("faster", f"{best.what}: decode {wording.rate(best.decode_tps)} tok/s ({best.option})")


def _bench_options(case: Case, plan: Plan) -> str:
    depth = case.request.depth
    assert plan.prefill is not None
    depth = plan.context // 2 if depth is None else depth
    text = f"--prefill {plan.prefill.tokens} --decode 64 --depth {max(0, depth - 32)}"
    if case.request.device != "auto":
        text += f" --device {case.request.device}"
    return text + (f" --threads {case.request.threads}" if case.request.threads else "")


def _explain(case: Case, plan: Plan) -> None:
    assert plan.prefill is not None
    assert plan.decode is not None
    for name, found in (("prefill", plan.prefill), ("decode", plan.decode)):
        output.result("")
        what = "one token" if found.tokens == 1 else f"{found.tokens:,} tokens"
        lines(name, f"tokens/s = {what} over the sum of these times; low and high use the worst and best shares")
        for t in found.terms:
            lines("", _term_text(t))
    if case.request.calibration != (1.0, 1.0):
        before, after = case.request.calibration
        lines("calibrated", f"by earlier runs here: prefill x {before:.2f}, decode x {after:.2f} (--no-calibration)")
    output.result("")


def _term_text(t: Term) -> str:
    return f"{t.name} on {t.device}: {t.likely * 1e3:.3g} ms ({t.fast * 1e3:.3g} to {t.slow * 1e3:.3g}) = {t.formula}"
