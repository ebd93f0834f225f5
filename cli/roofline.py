"""`hetero bench --roofline`: what each stage makes of the machine's memory bandwidth and arithmetic."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hetero.cli import output, session, wording
from hetero.cli.runs import Sizes, Turns
from hetero.machine.ceilings import Ceilings, measure_ceilings
from hetero.machine.ledger import KV_BYTES
from hetero.machine.types import UsageError
from hetero.models.stages import STAGES, Demand, Step, demands

if TYPE_CHECKING:
    from hetero.engine import Engine
    from hetero.engine.timing import Stopwatch

REST = "rest"
"""Routing, residuals, sampling and Python: what no stage's operation took."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One run: seconds in all and by stage, and what each stage had to do in them."""

    what: str
    tokens: int
    seconds: float
    stages: Mapping[str, float]
    work: Mapping[str, Demand]

    def rest(self) -> float:
        """Seconds outside of all stages."""
        return max(0.0, self.seconds - sum(self.stages.values()))


@dataclass(frozen=True, slots=True)
class Share:
    """What a stage made of the ceiling that binds it: `of` 1.0 is as fast as this machine can be."""

    of: float
    bound: str


def share(work: Demand, seconds: float, ceilings: Ceilings) -> Share | None:
    """The larger of its least times for memory and arithmetic, over the time it took; None where there was none."""
    if seconds <= 0 or not (work.bytes or work.ops):
        return None
    read, compute = work.bytes / ceilings.read, ceilings.seconds(work.ops)
    return Share(max(read, compute) / seconds, "memory" if read >= compute else "arithmetic")


def roofline(engine: Engine, prepared: session.Prepared, sizes: Sizes, repeat: int, as_json: bool) -> None:
    """Measure ceilings and stages and report them. UsageError where the dense parts are not on the CPU."""
    plan = prepared.plan
    if plan.placement.dense != "cpu":
        raise UsageError(f"--roofline judges the CPU, the dense parts are on {plan.placement.dense}", "--device cpu")
    before = measure_ceilings(plan.cpus, plan.isa_tier)
    phases = measure(engine, sizes, repeat)
    ceilings = _higher(before, measure_ceilings(plan.cpus, plan.isa_tier))
    if as_json:
        body: dict[str, Any] = {"model": prepared.index.name, "isa_tier": plan.isa_tier, "threads": plan.threads}
        body |= {"ceilings": dataclasses.asdict(ceilings), "phases": [_figures(phase, ceilings) for phase in phases]}
        output.json_result("hetero.bench-roofline", body)
        return
    output.result(prepared.summary())
    output.result(_ceilings_line(ceilings))
    for phase in phases:
        output.result("")
        _table(phase, ceilings)


def measure(engine: Engine, sizes: Sizes, repeat: int) -> list[Phase]:
    """The median run of each phase, after one to warm up."""
    phases = []
    with engine.timed() as watch:
        turns = _Watched(engine, sizes, watch)
        if sizes.prefill:
            phases.append(_median(turns.timed_prefill, repeat))
        if sizes.decode:
            phases.append(_median(turns.timed_decode, repeat))
    return phases


class _Watched(Turns):
    """Turns that leave the time of each stage."""

    def __init__(self, engine: Engine, sizes: Sizes, watch: Stopwatch) -> None:
        super().__init__(engine, sizes)
        self._watch, self._sizes = watch, sizes
        self._chunk = engine.plan.prefill_chunk
        self._model, self._value_bytes = engine.model, KV_BYTES[engine.plan.kv_dtype]

    def decode_begins(self) -> None:
        self._watch.clear()

    def timed_prefill(self) -> Phase:
        """Read the prompt, in the chunks that the plan says."""
        self._watch.clear()
        began = time.perf_counter()
        self.prefill()
        seconds, total = time.perf_counter() - began, len(self.prompt)
        steps = [Step(min(self._chunk, total - at), at, 0) for at in range(0, total, self._chunk)]
        steps[-1] = dataclasses.replace(steps[-1], sampled=1)
        work = _sum([self._demands(step) for step in steps])
        return Phase(f"prefill {total:,}", total, seconds, dict(self._watch.seconds), work)

    def timed_decode(self) -> Phase:
        """Write tokens; the work of a step is that in the middle."""
        count = self._sizes.decode
        seconds = count / self.decode()
        middle = self._demands(Step(1, len(self.start) + count // 2, 1))
        return Phase(f"decode {count:,}", count, seconds, dict(self._watch.seconds), _sum([middle] * count))

    def _demands(self, step: Step) -> dict[str, Demand]:
        return demands(self._model.index, self._model.config, step, self._value_bytes)


def _median(run: Callable[[], Phase], repeat: int) -> Phase:
    phases = [run() for _ in range(repeat + 1)][1:]
    return sorted(phases, key=lambda phase: phase.seconds)[len(phases) // 2]


def _sum(parts: list[dict[str, Demand]]) -> dict[str, Demand]:
    out = {stage: Demand() for stage in STAGES}
    for part in parts:
        for stage, work in part.items():
            out[stage].bytes += work.bytes
            for fmt, ops in work.ops.items():
                out[stage].add(0, fmt, ops)
    return out


def _higher(a: Ceilings, b: Ceilings) -> Ceilings:
    """Of two measurements, what the machine has shown it can do."""
    pairs = zip(dataclasses.astuple(a), dataclasses.astuple(b), strict=True)
    return Ceilings(*(max(pair) for pair in pairs))


def _ceilings_line(c: Ceilings) -> str:
    rates = (("int8 in int16", c.maddubs), ("int8 in int32", c.int8), ("int16", c.madd), ("float32", c.f32))
    arithmetic = ", ".join(f"{name} {value / 1e9:,.0f}" for name, value in rates)
    return f"ceilings: memory {c.read / 1e9:.1f} GB/s; GOPS {arithmetic}"


def _table(phase: Phase, ceilings: Ceilings) -> None:
    rows = []
    whole, stages = Demand(), [stage for stage in STAGES if phase.work[stage].bytes or phase.stages[stage]]
    for stage in sorted(stages, key=lambda stage: -phase.stages[stage]):
        work, seconds = phase.work[stage], phase.stages[stage]
        rows.append(_row(stage, work, seconds, phase, share(work, seconds, ceilings)))
        whole.bytes += work.bytes
        for fmt, ops in work.ops.items():
            whole.add(0, fmt, ops)
    rows.append(_row(REST, Demand(), phase.rest(), phase, None))
    rows.append(_row("all", whole, phase.seconds, phase, share(whole, phase.seconds, ceilings)))
    title = f"{phase.what}: {wording.rate(phase.tokens / phase.seconds)} tok/s"
    headers = (title, "time", "us/token", "MB/token", "GB/s", "Mop/token", "GOPS", "of ceiling", "bound by")
    output.table(rows, headers=headers, right=range(1, 8))


def _row(name: str, work: Demand, seconds: float, phase: Phase, found: Share | None) -> tuple[str, ...]:
    time_share, each = seconds / phase.seconds, seconds / phase.tokens
    cells = [name, f"{time_share:.1%}", f"{each * 1e6:,.1f}"]
    if seconds <= 0 or found is None:
        return (*cells, *[""] * 6)
    cells += [f"{work.bytes / phase.tokens / 1e6:,.2f}", f"{work.bytes / seconds / 1e9:.1f}"]
    cells += [f"{work.all_ops / phase.tokens / 1e6:,.1f}", f"{work.all_ops / seconds / 1e9:,.1f}"]
    return (*cells, f"{found.of:.0%}", found.bound)


def _figures(phase: Phase, ceilings: Ceilings) -> dict[str, Any]:
    stages = {}
    for stage in STAGES:
        work, seconds = phase.work[stage], phase.stages[stage]
        found = share(work, seconds, ceilings)
        stages[stage] = {"seconds": seconds, "bytes": work.bytes, "operations": work.ops}
        stages[stage] |= {"of_ceiling": found and found.of, "bound": found and found.bound}
    body = {"what": phase.what, "tokens": phase.tokens, "seconds": phase.seconds}
    return body | {"stages": stages, "rest_seconds": phase.rest()}
