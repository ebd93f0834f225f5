"""What `hetero plan` predicts against what models do here. `make bench-plan` runs it.

Kernels are measured by one fresh probe at the start. The rate of memory, which a shared machine changes from one second
to the next, is measured by the probe's own reads before and after every run of a model, in the same process: the
prediction for a run is `hetero plan`'s likely value with the kernels of the one and the reads of the other. The median
of the runs is set beside the median of their predictions. Nothing is calibrated by earlier runs, and the user's own
history is left alone. Ends with 1 if an error is larger than --within.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hetero.machine.plan import plan
from hetero.machine.serialize import from_json
from hetero.machine.types import Machine, Measured, ModelIndex, PlanRequest, RateAt
from hetero.models.describe import describe

ROOT = Path(__file__).resolve().parent.parent
SYNTHETIC = (("M", "Q4_0"), ("M", "Q8_0"), ("M", "Q4_K_M"), ("D", "Q4_0"), ("D", "BF16"))
_DECODE = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one model: predicted, measured, and the reads in GB/s between which it was (0: no matter)."""

    model: str
    what: str
    predicted: float
    measured: float
    slowest: float = 0.0
    fastest: float = 0.0

    @property
    def error(self) -> float:
        """How far the prediction is above the measurement, as a share of it."""
        return self.predicted / self.measured - 1


def rows_of(index: ModelIndex, machine: Machine, name: str, found: Mapping[str, Any], prefill: int) -> list[Row]:
    """The figures of one model: medians of its runs beside the medians of what is predicted for each of them."""
    rows = []
    for what, label in (("prefill", f"prefill {prefill}"), ("decode", f"decode {_DECODE}")):
        turns = found["turns"][what]
        predicted = [predict(index, machine, turn, prefill)[what == "decode"] for turn in turns]
        reads = [turn["gather"] / 1e9 for turn in turns]
        middle = statistics.median(predicted), statistics.median(turn["tps"] for turn in turns)
        rows.append(Row(name, label, *middle, min(reads), max(reads)))
    planned = sum(part["predicted"] for part in found["memory"])
    return [*rows, Row(name, "memory, MB", planned / 1e6, found["peak_bytes"] / 1e6)]


def predict(index: ModelIndex, machine: Machine, reads: Mapping[str, float], prefill: int) -> tuple[float, float]:
    """Likely prefill and decode of `machine` if its memory is read at these rates."""
    assert machine.rates is not None
    stream, gather = (RateAt(len(machine.cpus), Measured(reads[kind], "B/s")) for kind in ("stream", "gather"))
    rates = replace(machine.rates, stream_read=(stream,), gather_read=(gather,))
    context = max(prefill, 1 + _DECODE) + 1
    request = PlanRequest("cpu", context=context, force=True, depth=1 + _DECODE // 2, prompt=prefill)
    made = plan(index, replace(machine, rates=rates), request)
    assert made.prefill is not None
    assert made.decode is not None
    return made.prefill.likely, made.decode.likely


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = ["| model | what | predicted | measured | error | reads, GB/s |", "|---|---|---|---|---|---|"]
    for r in rows:
        span = f"{r.slowest:.0f} to {r.fastest:.0f}" if r.slowest else ""
        lines.append(f"| {r.model} | {r.what} | {r.predicted:.4g} | {r.measured:.4g} | {r.error:+.0%} | {span} |")
    return "\n".join(lines)


def worst(rows: Sequence[Row]) -> float:
    """The largest error of a rate, either way."""
    return max((abs(r.error) for r in rows if "memory" not in r.what), default=0.0)


def _json_of(env: Mapping[str, str], *args: str) -> Any:
    done = subprocess.run([sys.executable, *args], env=dict(env), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(args)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def main(args: Sequence[str] | None = None) -> int:
    """Probe, measure, predict, and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-plan", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", default="", help="models, separated by spaces; none: five are made")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--within", type=float, default=0.15, help="the largest error that passes")
    parser.add_argument("--keep", type=Path, help="write the machine and every run to this file")
    asked = parser.parse_args(args)
    models = asked.models.split()
    if not models:
        from bench.synthetic import make

        models = [str(make(name, fmt, ROOT / "build")) for name, fmt in SYNTHETIC]
    rows: list[Row] = []
    kept: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"XDG_CACHE_HOME": folder, "XDG_STATE_HOME": folder}
        kept["machine"] = _json_of(env, "-m", "hetero.cli", "probe", "--fresh", "--json")
        machine = from_json(kept["machine"])
        for model in models:
            print(f"measuring {model}", file=sys.stderr)
            sizes = ("--prefill", str(asked.prefill), "--decode", str(_DECODE), "--repeat", str(asked.repeat))
            kept[model] = found = _json_of(env, "-m", "bench.plan_worker", model, *sizes)
            rows += rows_of(describe(model), machine, Path(model).name, found, asked.prefill)
            if asked.keep is not None:
                asked.keep.write_text(json.dumps(kept), encoding="utf-8")
    print(table(rows))
    return int(worst(rows) > asked.within)


if __name__ == "__main__":
    sys.exit(main())
