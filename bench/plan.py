"""What `hetero plan` predicts against what `hetero bench` measures here. `make bench-plan` runs it.

The rates come from one fresh probe of the same minutes, nothing is calibrated by earlier runs, and the user's own
history is left alone. The machine should be quiet: the probe measures what is free of it. Ends with 1 if an error is
larger than --within.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SYNTHETIC = (("M", "Q4_0"), ("M", "Q8_0"), ("M", "Q4_K_M"), ("D", "Q4_0"), ("D", "BF16"))
_DECODE = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one model: predicted range, and measured."""

    model: str
    what: str
    low: float
    likely: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """How far the prediction is above the measurement, as a share of it."""
        return self.likely / self.measured - 1


def rows_of(model: str, plan: Mapping[str, Any], bench: Mapping[str, Any], prefill: int) -> list[Row]:
    """The figures of `plan --json` beside those of `bench --json`; a figure that was skipped is left out."""
    rows = []
    for what, key in ((f"prefill {prefill}", "prefill_tps"), (f"decode {_DECODE}", "decode_tps")):
        predicted, measured = plan[key], bench[key]
        if measured is not None:
            values = (predicted["low"], predicted["likely"], predicted["high"], measured["median"])
            rows.append(Row(model, what, *values))
    memory, peak = plan["total_bytes"] / 1e6, bench["peak_rss_bytes"] / 1e6
    return [*rows, Row(model, "memory, MB", memory, memory, memory, peak)]


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = ["| model | what | predicted (low to high) | measured | error |", "|---|---|---|---|---|"]
    for r in rows:
        span = "" if r.low == r.high else f" ({r.low:.4g} to {r.high:.4g})"
        lines.append(f"| {r.model} | {r.what} | {r.likely:.4g}{span} | {r.measured:.4g} | {r.error:+.0%} |")
    return "\n".join(lines)


def worst(rows: Sequence[Row]) -> float:
    """The largest error of a rate, either way."""
    return max((abs(r.error) for r in rows if "memory" not in r.what), default=0.0)


def _hetero(env: Mapping[str, str], *args: str) -> Any:
    command = [sys.executable, "-m", "hetero.cli", *args]
    done = subprocess.run(command, env=dict(env), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"hetero {' '.join(args)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def _measure(env: Mapping[str, str], model: str, prefill: int, repeat: int) -> list[Row]:
    print(f"measuring {model}", file=sys.stderr)
    sizes = ("--prefill", str(prefill), "--decode", str(_DECODE), "--repeat", str(repeat))
    # The plan of this very benchmark: same context, same tokens in it.
    plan = _hetero(env, "bench", model, *sizes, "--dry-run", "--json")
    return rows_of(Path(model).name, plan, _hetero(env, "bench", model, *sizes, "--json"), prefill)


def main(args: Sequence[str] | None = None) -> int:
    """Probe, predict, measure, and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-plan", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", default="", help="models, separated by spaces; none: five are made")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--within", type=float, default=0.15, help="the largest error that passes")
    asked = parser.parse_args(args)
    models = asked.models.split()
    if not models:
        from bench.synthetic import make

        models = [str(make(name, fmt, ROOT / "build")) for name, fmt in SYNTHETIC]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, model in enumerate(models):
            # A state of its own for each, so that no run calibrates the next.
            env = os.environ | {"XDG_CACHE_HOME": folder, "XDG_STATE_HOME": f"{folder}/{number}"}
            _hetero(env, "probe", "--fresh", "--json")
            rows += _measure(env, model, asked.prefill, asked.repeat)
    print(table(rows))
    return int(worst(rows) > asked.within)


if __name__ == "__main__":
    sys.exit(main())
