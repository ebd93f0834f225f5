"""`hetero plan --history`: how far estimates were off, and the scale that follows from it."""

from __future__ import annotations

import datetime
from dataclasses import asdict

from hetero.cli import history, output
from hetero.machine.units import size_text


def show(as_json: bool) -> None:
    """Print every recorded run with its errors, or one JSON object."""
    found = history.runs()
    if as_json:
        output.json_result("hetero.plan.history", {"runs": [asdict(run) for run in found]})
        return
    if not found:
        output.result("no runs recorded yet: hetero bench and hetero chat record what was predicted and measured")
        return
    rows = []
    for run in found[-30:]:
        day = datetime.datetime.fromtimestamp(run.when).strftime("%m-%d %H:%M")
        memory = _error(run.measured_bytes, run.predicted_bytes)
        speeds = [
            _speed(run.predicted_prefill, run.measured_prefill),
            _speed(run.predicted_decode, run.measured_decode),
        ]
        size = "" if run.measured_bytes is None else f"{size_text(run.measured_bytes)} {memory}"
        rows.append((day, run.model, size, *speeds))
    output.table(rows, headers=("when", "model", "memory", "prefill", "decode"), right=(2, 3, 4))
    output.note("measured, and how far it is from what was predicted; tokens/s and bytes")


def _speed(predicted: float | None, measured: float | None) -> str:
    return "" if measured is None else f"{measured:.4g} {_error(measured, predicted)}"


def _error(measured: float | None, predicted: float | None) -> str:
    return "" if not measured or not predicted else f"({measured / predicted - 1:+.0%})"
