"""One model's runs with the memory's rates measured between them, in one process: JSON on stdout. For `bench.plan`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero.cli import history
from hetero.cli.runs import Sizes, Turns
from hetero.engine import Engine
from hetero.machine.measure import memory_to_read
from hetero.machine.measure_cpu import CpuMeter, Effort
from hetero.machine.probe import probe

_EFFORT = Effort(set_bytes=256 << 20, samples=3, seconds=3600.0)


def measure(model: Path, sizes: Sizes, repeat: int) -> dict[str, Any]:
    """Peak memory of a first run, then `repeat` turns: reads of memory, a prompt, reads, an answer, reads.

    Reads are those of `hetero probe`: bytes/s of linear and of expert-sized random reads by all threads. Those before
    and after a run are averaged for it.
    """
    context = max(sizes.prefill, 1 + sizes.decode) + 1
    with contextlib.closing(Engine.load(model, device="cpu", context=context)) as engine:
        loaded = history.process_bytes("VmRSS")
        turns = Turns(engine, sizes)
        turns.prefill()
        turns.decode()
        peak = history.process_bytes("VmHWM")
        parts = history.memory_parts(engine.plan, engine.held_bytes(), loaded, peak)
        machine = probe(device="cpu")
        cpus = engine.plan.cpus
        meter = CpuMeter(cpus, engine.plan.isa_tier, _of(memory_to_read(machine, _EFFORT.set_bytes)))
        found: dict[str, list[dict[str, float]]] = {"prefill": [], "decode": []}
        before = _reads(meter, len(cpus))
        for _ in range(repeat):
            for what, run in (("prefill", turns.prefill), ("decode", turns.decode)):
                rate = run()
                after = _reads(meter, len(cpus))
                found[what].append({"tps": rate} | {name: (before[name] + after[name]) / 2 for name in before})
                before = after
    memory = [{"part": p.part, "predicted": p.predicted_bytes, "measured": p.measured_bytes} for p in parts]
    return {"turns": found, "peak_bytes": peak, "memory": memory}


def _of(set_bytes: int) -> Effort:
    return Effort(set_bytes=set_bytes, samples=_EFFORT.samples, seconds=_EFFORT.seconds)


def _reads(meter: CpuMeter, threads: int) -> dict[str, float]:
    stream, gather = meter.memory(threads)
    return {"stream": stream.rate.value, "gather": gather.rate.value}


def main(args: Sequence[str] | None = None) -> int:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m bench.plan_worker", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args(args)
    print(json.dumps(measure(asked.model, Sizes(asked.prefill, asked.decode, 0), asked.repeat)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
