"""`hetero bench`: how fast a model reads and writes here, as medians of repeated runs."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.cli import history, options, output, session, wording
from hetero.machine.types import PlanRequest, UsageError
from hetero.machine.units import size_text

if TYPE_CHECKING:
    from hetero.engine import Engine

_SEED = 1


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
    threads: options.Threads = None,
    device: options.Device = "auto",
    context: options.Context = None,
    kv_dtype: options.KvDtype = "auto",
    force: options.Force = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
    log_file: options.LogFile = None,
) -> None:
    """Measure tokens per second."""
    if not prefill and not decode:
        raise UsageError("--prefill and --decode are both 0", "give at least one of them a number of tokens")
    need = max(prefill, max(depth, 1) + decode) + 1
    if context is not None and context < need:
        raise UsageError(f"--context {context} is too small: these runs need {need}", f"leave it out, or give {need}")
    request = PlanRequest(device, threads, context or need, kv_dtype, force or dry_run)
    request = replace(request, depth=max(depth, 1) + decode // 2, prompt=prefill or None)
    prepared = session.prepare(model, request)
    if dry_run:
        return session.show_plan(prepared, json)
    if prepared.is_demo:
        session.note_demo()
    with contextlib.closing(prepared.load(keep=False)) as engine:
        runs = _measure(engine, prefill, decode, depth, repeat)
    _record(prepared, runs)
    _report(prepared, runs, (prefill, decode, depth), json)


@dataclass(frozen=True, slots=True)
class Runs:
    """Tokens per second of each repeat; empty where skipped."""

    prefill: tuple[float, ...]
    decode: tuple[float, ...]


def _measure(engine: Engine, prefill: int, decode: int, depth: int, repeat: int) -> Runs:
    draw = random.Random(_SEED)
    tokens = engine.text.n_tokens
    prompt = [draw.randrange(tokens) for _ in range(prefill)]
    start = [draw.randrange(tokens) for _ in range(max(depth, 1))]
    read: list[float] = []
    written: list[float] = []
    status = output.StatusLine()
    for turn in range(repeat + 1):
        status.show(f"run {turn} of {repeat}" if turn else "warming up")
        if prefill:
            read.append(_prefill_tps(engine, prompt))
        if decode:
            written.append(_decode_tps(engine, start, decode))
    status.clear()
    return Runs(tuple(read[1:]), tuple(written[1:]))


def _prefill_tps(engine: Engine, prompt: Sequence[int]) -> float:
    """Prompt tokens per second until the first token is there; no earlier run's KV cache is used."""
    from hetero.engine import Sampling

    began = time.perf_counter()
    for _ in engine.generate(prompt, Sampling(max_tokens=1, ignore_eos=True), reuse=False):
        pass
    return len(prompt) / (time.perf_counter() - began)


def _decode_tps(engine: Engine, start: Sequence[int], count: int) -> float:
    """Tokens per second over `count` steps of one token each, counted from the token that prefill yields."""
    from hetero.engine import Sampling, Token

    times: list[float] = []
    for event in engine.generate(start, Sampling(max_tokens=count + 1, ignore_eos=True)):
        if isinstance(event, Token):
            times.append(time.perf_counter())
    return (len(times) - 1) / (times[-1] - times[0])


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


def _report(prepared: session.Prepared, runs: Runs, sizes: tuple[int, int, int], as_json: bool) -> None:
    prefill, decode, depth = sizes
    plan, peak = prepared.plan, peak_rss_bytes()
    if as_json:
        body: dict[str, Any] = {"model": prepared.index.name, "prefill": prefill, "decode": decode, "depth": depth}
        body |= {"prefill_tps": _figures(runs.prefill), "decode_tps": _figures(runs.decode), "peak_rss_bytes": peak}
        body |= {"isa_tier": plan.isa_tier, "threads": plan.threads, "device": plan.placement.dense}
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
