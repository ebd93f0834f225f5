"""What was predicted and what came of it, kept in the user's state folder, one JSON object a line."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from hetero.cli.xdg import folder, private_dir, private_file
from hetero.machine.types import Machine, Plan, PlanRequest

_FILE = "predictions.jsonl"
_MOST_BYTES = 256 << 10
_RECENT = 9
_WORKING = "working memory"
_FILLED = ("kv cache", "recurrent states")
"""Parts that take memory only as runs fill them."""
_COUNTED = {name: name for name in ("experts", "dense", "small", *_FILLED)} | {"dense, packed": "dense"}
_SANE = (0.2, 5.0)
"""Ratios beyond these are a broken run, not an error of the estimate."""


@dataclass(frozen=True, slots=True)
class Run:
    """One load or benchmark: what the plan said and what was measured; None: not part of this run."""

    when: float
    command: str
    model: str
    machine: str
    device: str
    threads: int
    context: int
    predicted_bytes: int | None = None
    measured_bytes: int | None = None
    predicted_prefill: float | None = None
    measured_prefill: float | None = None
    predicted_decode: float | None = None
    measured_decode: float | None = None


def run_of(command: str, model: str, machine: Machine, plan: Plan, **figures: Any) -> Run:
    """A run under a plan, to be recorded; `figures` are Run's predicted and measured ones."""
    head = (time.time(), command, model, machine_key(machine), plan.placement.dense, plan.threads, plan.context)
    return Run(*head, **figures)


def machine_key(machine: Machine) -> str:
    """What of a machine makes its rates; calibration stays on it."""
    gpu = machine.gpus[0] if machine.gpus else "no GPU"
    return f"{machine.cpu_model}, {len(machine.cpus)} cores, {machine.isa_tier}, {gpu}"


def record(run: Run) -> None:
    """Append a run, and drop the oldest half of a file that has grown long. A full disk loses it silently."""
    try:
        path = private_file(private_dir("state") / _FILE)
        line = json.dumps({"version": 1, **asdict(run)}) + "\n"
        with path.open("a", encoding="utf-8") as file:
            file.write(line)
        if path.stat().st_size > _MOST_BYTES:
            _shorten(path)
    except OSError:
        return  # an estimate's history is not worth failing a command for


def _shorten(path: Path) -> None:
    kept = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    temporary = private_file(path.with_name(f"{path.name}.{os.getpid()}"))
    temporary.write_text("".join(kept[len(kept) // 2 :]), encoding="utf-8")
    temporary.replace(path)


def runs() -> list[Run]:
    """All recorded runs, oldest first; lines that are damaged are passed over."""
    try:
        text = (folder("state") / _FILE).read_text(encoding="utf-8", errors="replace")
    except (OSError, RuntimeError):
        return []
    return list(_parsed(text.splitlines()))


def _parsed(lines: Sequence[str]) -> Iterator[Run]:
    names = {field.name for field in fields(Run)}
    for line in lines:
        try:
            data = json.loads(line)
            numbers = [data[n] for n in names if n.startswith(("predicted", "measured")) and data[n] is not None]
            if data.pop("version") == 1 and all(isinstance(n, int | float) and n > 0 for n in numbers):
                yield Run(**data)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue


def ratios(found: Sequence[Run], machine: Machine, device: str) -> tuple[float, float, int]:
    """Median measured over predicted tokens/s of recent runs here, for prefill and decode, and of how many."""
    here = [r for r in found if r.machine == machine_key(machine) and r.device == device]
    read = _recent([_ratio(r.measured_prefill, r.predicted_prefill) for r in here])
    written = _recent([_ratio(r.measured_decode, r.predicted_decode) for r in here])
    middle = [statistics.median(values) if values else 1.0 for values in (read, written)]
    return middle[0], middle[1], max(len(read), len(written))


def _recent(values: Sequence[float | None]) -> list[float]:
    return [v for v in values if v is not None and _SANE[0] <= v <= _SANE[1]][-_RECENT:]


def _ratio(measured: float | None, predicted: float | None) -> float | None:
    return measured / predicted if measured and predicted else None


def calibrated(request: PlanRequest, machine: Machine) -> PlanRequest:
    """The request with the scale of earlier runs on this machine."""
    device = "cuda" if machine.gpus and request.device != "cpu" else "cpu"
    prefill, decode, _ = ratios(runs(), machine, device)
    return replace(request, calibration=(prefill, decode))


def process_bytes(field: str) -> int:
    """A figure of this process from /proc: VmRSS (memory it holds) or VmHWM (the most it ever held).

    Not getrusage: its figure is inherited from the process that started this one.
    """
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the ledger: what the plan said, and what was found."""

    part: str
    predicted_bytes: int
    measured_bytes: int


def memory_parts(plan: Plan, held: Mapping[str, int], loaded: int, peak: int) -> list[Part]:
    """The ledger of this process's memory beside what it held: after loading `loaded` bytes, `peak` in all.

    Weights and cache are counted by their arrays. What else was there after loading is the framework, and what the runs
    added beyond the cache are activations, attention's working memory and what belongs to them. A small cache lies in
    the heap, where it is written when it is made; a large one takes memory as it is filled.
    """
    from hetero.native.memory import LARGEST_KEPT

    predicted: dict[str, int] = {}
    for line in plan.ledger:
        if line.device == "cpu":
            name = _COUNTED.get(line.part, line.part if line.part == "framework" else _WORKING)
            predicted[name] = predicted.get(name, 0) + line.bytes
    weights = sum(size for part, size in held.items() if part not in _FILLED)
    filled = sum(size for part, size in held.items() if part in _FILLED)
    early = filled if filled < LARGEST_KEPT else 0
    measured = dict(held) | {"framework": loaded - weights - early, _WORKING: peak - loaded - filled + early}
    return [Part(part, size, max(0, measured.get(part, 0))) for part, size in predicted.items()]


def loaded_bytes(plan: Plan) -> int:
    """Of a plan's ledger, what is in this process's memory right after loading: all but what a run fills."""
    parts = ("experts", "dense", "dense, packed", "small", "framework")
    return sum(line.bytes for line in plan.ledger if line.device == "cpu" and line.part in parts)
