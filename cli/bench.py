"""`hetero bench`: how fast a model reads and writes here, as medians of repeated runs."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.cli import compare as in_turns
from hetero.cli import history, options, output, session, wording
from hetero.cli.runs import Sizes, Turns
from hetero.machine.types import PlanRequest, UsageError
from hetero.machine.units import size_text

if TYPE_CHECKING:
    from hetero.engine import Engine


def bench(
    model: options.ModelArgument = None,
    prefill: Annotated[
        int, typer.Option("--prefill", metavar="N", min=0, help="Prompt tokens to read; 0 skips it.")
    ] = 512,
    decode: Annotated[int, typer.Option("--decode", metavar="N", min=0, help="Tokens to write; 0 skips it.")] = 64,
    depth: Annotated[
        int, typer.Option("--depth", metavar="N", min=0, help="Tokens in the context before decoding.")
    ] = 0,
    repeat: Annotated[int, typer.Option("--repeat", "-r", metavar="N", min=1, help="Runs, after one to warm up.")] = 5,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option("--compare", metavar="A B", help="Two models in turns, instead of MODEL.", show_default=False),
    ] = None,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="Each stage's share of what memory and arithmetic of this CPU give.")
    ] = False,
    threads: options.Threads = None,
    device: options.Device = "auto",
    context: options.Context = None,
    kv_dtype: options.KvDtype = "auto",
    deterministic: options.Deterministic = False,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
    log_file: options.LogFile = None,
) -> None:
    """Measure tokens per second."""
    sizes = Sizes(prefill, decode, depth)
    if compare is not None and (model is not None or roofline or dry_run):
        raise UsageError("--compare A B measures just these two", "leave out MODEL, --roofline and --dry-run")
    wanted = PlanRequest(device, threads, context, kv_dtype, force or dry_run, deterministic=deterministic)
    request = _request(wanted, sizes)
    if compare is not None:
        return in_turns.compare(compare, request, sizes, repeat, json)
    prepared = session.prepare(model, request)
    if dry_run:
        return session.show_plan(prepared, json)
    if prepared.is_demo:
        session.note_demo()
    with contextlib.closing(prepared.load(keep=False)) as engine:
        if roofline:
            # Only here, as it imports numpy, for which no other command need wait.
            from hetero.cli import roofline as by_stage

            return by_stage.roofline(engine, prepared, sizes, repeat, json)
        loaded = history.process_bytes("VmRSS")
        runs = _measure(engine, sizes, repeat)
        memory = history.memory_parts(prepared.plan, engine.held_bytes(), loaded, peak_rss_bytes())
        notes = engine.model.notes
    _record(prepared, runs)
    _report(prepared, runs, sizes, memory, notes, json)


def _request(wanted: PlanRequest, sizes: Sizes) -> PlanRequest:
    """`wanted` with the context that the runs need. Raises UsageError."""
    if not sizes.prefill and not sizes.decode:
        raise UsageError("--prefill and --decode are both 0", "give at least one of them a number of tokens")
    before = max(sizes.depth, 1)
    need = max(sizes.prefill, before + sizes.decode) + 1
    context = wanted.context or need
    if context < need:
        text = f"--context {context} is too small: these runs need {need}"
        raise UsageError(text, "leave it out, or measure fewer tokens with --prefill and --decode")
    return replace(wanted, context=context, depth=before + sizes.decode // 2, prompt=sizes.prefill or None)


@dataclass(frozen=True, slots=True)
class Runs:
    """Tokens per second of each repeat; empty where skipped."""

    prefill: tuple[float, ...]
    decode: tuple[float, ...]


def _measure(engine: Engine, sizes: Sizes, repeat: int) -> Runs:
    turns = Turns(engine, sizes)
    read: list[float] = []
    written: list[float] = []
    status = output.StatusLine()
    for turn in range(repeat + 1):
        status.show(f"run {turn} of {repeat}" if turn else "warming up")
        if sizes.prefill:
            read.append(turns.prefill())
        if sizes.decode:
            written.append(turns.decode())
    status.clear()
    return Runs(tuple(read[1:]), tuple(written[1:]))


def peak_rss_bytes() -> int:
    """The most memory this process ever held."""
    return history.process_bytes("VmHWM")


def _record(prepared: session.Prepared, runs: Runs) -> None:
    """Keep predicted and measured for `hetero plan --history`, the estimates without what earlier runs made of them."""
    made, (before, after) = prepared.plan, prepared.request.calibration
    assert made.prefill is not None
    assert made.decode is not None
    prepared.record(
        "bench",
        predicted_bytes=made.total_bytes,
        measured_bytes=peak_rss_bytes(),
        predicted_prefill=made.prefill.likely / before if runs.prefill else None,
        measured_prefill=statistics.median(runs.prefill) if runs.prefill else None,
        predicted_decode=made.decode.likely / after if runs.decode else None,
        measured_decode=statistics.median(runs.decode) if runs.decode else None,
    )


def _report(
    prepared: session.Prepared,
    runs: Runs,
    sizes: Sizes,
    memory: Sequence[history.Part],
    notes: Sequence[str],
    as_json: bool,
) -> None:
    prefill, decode, depth = sizes.prefill, sizes.decode, sizes.depth
    plan, peak = prepared.plan, peak_rss_bytes()
    if as_json:
        body: dict[str, Any] = {"model": prepared.index.name, "prefill": prefill, "decode": decode, "depth": depth}
        body |= {"prefill_tps": _figures(runs.prefill), "decode_tps": _figures(runs.decode), "peak_rss_bytes": peak}
        body |= {"isa_tier": plan.isa_tier, "threads": plan.threads, "device": plan.placement.dense}
        body |= {"memory": [asdict(part) for part in memory], "notes": list(notes)}
        output.json_result("hetero.bench", body)
        return
    output.result(prepared.summary())
    rows = []
    if runs.prefill:
        rows.append((f"prefill {prefill:,}", *_cells(runs.prefill)))
    if runs.decode:
        rows.append((f"decode {decode:,}" + (f" after {depth:,}" if depth else ""), *_cells(runs.decode)))
    output.table([*rows, ("peak memory", size_text(peak), "")], right=(1,))


def _figures(samples: Sequence[float]) -> dict[str, Any] | None:
    return {"median": statistics.median(samples), "samples": list(samples)} if samples else None


def _cells(samples: Sequence[float]) -> tuple[str, str]:
    middle, low, high = (wording.rate(value) for value in (statistics.median(samples), min(samples), max(samples)))
    return f"{middle} tok/s", f"{low} to {high} in {wording.plural(len(samples), 'run')}"
