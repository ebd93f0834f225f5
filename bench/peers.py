"""hetero against llama.cpp, ik_llama.cpp and kt-kernel on this machine, in turns. `make bench-peers` runs it.

A peer is measured when it is named. Each lives in a virtual environment or build of its own:

llama.cpp     PEER_PYTHON=VENV/bin/python, after (about 15 minutes on two cores)
              python3 -m venv VENV && CMAKE_ARGS=-DGGML_NATIVE=ON VENV/bin/pip install llama-cpp-python
ik_llama.cpp  IK_BENCH=build/bin/llama-bench of a native build (cmake -DGGML_NATIVE=ON)
kt-kernel     KT_PYTHON=VENV/bin/python, after VENV/bin/pip install torch numpy gguf typer rich pyyaml httpx click
              psutil safetensors, and VENV/bin/pip install --no-deps kt-kernel; only its expert layer, as nothing
              more of it runs on a CPU

On a machine with other work, NICE="chrt -r 10" (as root) gives both sides real-time priority; for kt-kernel, whose
threads spin, NICE="nice -n -20".
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report
from bench.report import Record
from bench.shapes import MODELS, Layer
from bench.worker import Worker, WorkerFailed

ROOT = Path(__file__).resolve().parent.parent
KT_FORMATS = ("Q4_0", "Q4_K", "Q8_0")
_KT_TOKENS = (1, 8, 64, 512)
_KT_SECONDS = 1.0
_SEED = 1


@dataclass(frozen=True)
class Options:
    """The command line, checked."""

    models: tuple[Path, ...]
    peer_python: str
    ik_bench: str
    kt_python: str
    threads: int
    repeat: int
    prefill: int
    decode: int
    nice: tuple[str, ...]
    markdown: Path
    json: Path
    notes: tuple[str, ...]


def parse(argv: Sequence[str]) -> Options:
    """Read the arguments; SystemExit with a sentence for what cannot be done."""
    parser = argparse.ArgumentParser(
        prog="make bench-peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="", help="GGUF files, with spaces between; without any, M and D are made")
    parser.add_argument("--peer-python", default="", help="a Python with llama-cpp-python")
    parser.add_argument("--ik-bench", default="", help="ik_llama.cpp's llama-bench")
    parser.add_argument("--kt-python", default="", help="a Python with kt-kernel")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeat", type=int, default=7, help="pairs of runs, at least 5")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--nice", default="", help='a command before every engine, such as "chrt -r 10"')
    parser.add_argument("--markdown", type=Path, default=ROOT / "docs/benchmarks.md")
    parser.add_argument("--json", type=Path, default=ROOT / "docs/benchmarks.json")
    parser.add_argument("--note", action="append", default=[], help="a sentence for the page")
    args = parser.parse_args(argv)
    if not (args.peer_python or args.ik_bench or args.kt_python):
        parser.error("no peer is named; make bench-peers ARGS=--help tells how to make one")
    if args.repeat < 5:
        parser.error(f"--repeat is {args.repeat}; medians of fewer than 5 runs say little")
    models = tuple(Path(name).resolve() for name in args.models.split())
    for path in (*models, *(Path(name) for name in (args.peer_python, args.ik_bench, args.kt_python) if name)):
        if not path.exists():
            parser.error(f"{path} does not exist")
    nice = tuple(shlex.split(args.nice))
    if args.kt_python and nice[:1] == ("chrt",):
        parser.error('threads of kt-kernel wait by spinning and starve each other under chrt; use "nice -n -20"')
    peers = (args.peer_python, args.ik_bench, args.kt_python)
    sizes = (args.threads, args.repeat, args.prefill, args.decode)
    return Options(models, *peers, *sizes, nice, args.markdown, args.json, tuple(args.note))


def main(argv: Sequence[str]) -> int:
    """Measure, then write both files after each model, so that a failure loses nothing."""
    options = parse(argv)
    try:
        for records in _measure_all(options):
            _write(options, records)
            _say(records)
    except WorkerFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _write(options: Options, records: Sequence[Record]) -> None:
    merged = report.merge(report.load(options.json), records)
    report.save(merged, options.json)
    options.markdown.write_text(report.render(merged, options.json.name, options.notes), encoding="utf-8")


def _say(records: Sequence[Record]) -> None:
    for record in records:
        print(f"{record.model}: {record.what}: {record.ratio():.2f} x {record.peer}", file=sys.stderr)


def _measure_all(options: Options) -> Iterator[list[Record]]:
    models = options.models
    if (options.peer_python or options.ik_bench) and not models:
        from bench.synthetic import make

        models = tuple(make(name, "Q4_0", ROOT / "build") for name in MODELS)
    for path in models if options.peer_python or options.ik_bench else ():
        yield _measure_model(options, path)
    for fmt in KT_FORMATS if options.kt_python else ():
        yield _measure_layer(options, fmt)


Sample = Callable[[], float]


def in_turns(own: Sample, other: Sample, bandwidth: Sample, repeat: int) -> tuple[list[float], ...]:
    """Samples of both, who goes first changing each time, and the bandwidth before each pair; one pair warms up."""
    mine, theirs, rates = [], [], []
    for turn in range(repeat + 1):
        rates.append(bandwidth())
        if turn % 2:
            mine.append(own())
            theirs.append(other())
        else:
            theirs.append(other())
            mine.append(own())
    return mine[1:], theirs[1:], rates[1:]


def _measure_model(options: Options, path: Path) -> list[Record]:
    context = max(options.prefill, options.decode + 1) + 8
    sizes = ["--threads", str(options.threads), "--context", str(context)]
    records = []
    with ExitStack() as stack:
        own = _start(stack, options, "hetero", [sys.executable, "-m", "bench.hetero_worker", str(path), *sizes])
        about = own.ask("about")
        draw = random.Random(_SEED)
        ids = [draw.randrange(about["tokens"]) for _ in range(options.prefill)]
        setup = describe(options, about["tier"])
        runs = {f"prefill {options.prefill}": (options.prefill, {"ids": ids})}
        runs[f"decode {options.decode}"] = (options.decode, {"ids": ids[:1], "tokens": options.decode})
        others: list[tuple[dict[str, str], Callable[..., float]]] = []
        if options.peer_python:
            command = [options.peer_python, "-m", "bench.llamacpp_worker", str(path), *sizes]
            peer = _start(stack, options, "llama.cpp", command)
            others.append((peer.ask("about"), lambda do, **arguments: peer.ask(do, **arguments)))
        if options.ik_bench:
            ik = IkBench(options, path)
            others.append((ik.about(), ik.ask))
        for named, ask in others:
            for what, (count, arguments) in runs.items():
                do = what.split()[0]
                mine, theirs, rates = in_turns(
                    lambda do=do, arguments=arguments, count=count: count / own.ask(do, **arguments),
                    lambda do=do, arguments=arguments, count=count, ask=ask: count / ask(do, **arguments),
                    lambda: own.ask("bandwidth"),
                    options.repeat,
                )
                place = (setup, _commit(), path.name, named["name"], named["version"], what, "tok/s")
                records.append(Record(*place, tuple(mine), tuple(theirs), tuple(rates)))
    return records


class IkBench:
    """ik_llama.cpp by its llama-bench: each sample is a run of its own, as it has no other way in."""

    def __init__(self, options: Options, path: Path) -> None:
        flags = ["-m", str(path), "-t", str(options.threads), "-r", "1", "-o", "json", "-rtr", "1", "-fmoe", "1"]
        self._command = [*options.nice, options.ik_bench, *flags]
        self._commit = ""

    def about(self) -> dict[str, str]:
        """Name and commit of the build; runs it once."""
        self._run(["-p", "0", "-n", "1"])
        return {"name": "ik_llama.cpp", "version": f"{self._commit}, -rtr 1 -fmoe 1"}

    def ask(self, do: str, ids: Sequence[int], tokens: int = 0) -> float:
        """Seconds of one run of that many (its own random) tokens."""
        sizes = ["-p", str(len(ids)), "-n", "0"] if do == "prefill" else ["-p", "0", "-n", str(tokens)]
        return (len(ids) if do == "prefill" else tokens) / self._run(sizes)

    def _run(self, sizes: list[str]) -> float:
        done = subprocess.run([*self._command, *sizes], capture_output=True, text=True, check=False)
        try:
            result = json.loads(done.stdout)[0]
            self._commit = result["build_commit"]
            return float(result["avg_ts"])
        except (ValueError, LookupError) as error:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise WorkerFailed(f"llama-bench ended with code {done.returncode}: {last[0]}") from error


def _measure_layer(options: Options, fmt: str) -> list[Record]:
    """kt-kernel's expert layer of the M shape in one format; its weights are random, hetero's constant."""
    layer: Layer = MODELS["M"].routed
    sizes = [fmt, "--threads", str(options.threads), "--layer", str(layer)]
    records = []
    with ExitStack() as stack:
        own = _start(stack, options, "hetero", [sys.executable, "-m", "bench.hetero_worker", *sizes])
        peer = _start(stack, options, "kt-kernel", [options.kt_python, "-m", "bench.kt_worker", *sizes])
        setup, version = describe(options, own.ask("about")["tier"]), peer.ask("about")["version"]
        for tokens in _KT_TOKENS:
            arguments: dict[str, Any] = {"tokens": tokens, "seconds": _KT_SECONDS}
            mine, theirs, rates = in_turns(
                lambda a=arguments: 1e3 * own.ask("layer", **a),
                lambda a=arguments: 1e3 * peer.ask("layer", **a),
                lambda: own.ask("bandwidth"),
                options.repeat,
            )
            place = (setup, _commit(), f"one M layer, {fmt}", "kt-kernel", version, f"{tokens} tokens", "ms")
            records.append(Record(*place, tuple(mine), tuple(theirs), tuple(rates)))
    return records


def _start(stack: ExitStack, options: Options, name: str, command: Sequence[str]) -> Worker:
    print(f"loading {name}", file=sys.stderr)
    log = Path(tempfile.gettempdir()) / f"hetero-bench-{name}.log"
    worker = Worker(name, [*options.nice, *command], str(log))
    stack.callback(worker.close)
    return worker


def describe(options: Options, tier: str) -> str:
    """Machine, tier, threads and priority in one line."""
    parts = [_cpu_model(), f"hetero's tier {tier}", f"{options.threads} threads"]
    return ", ".join([*parts, f"both sides under `{' '.join(options.nice)}`"] if options.nice else parts)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def _commit() -> str:
    """The commit that is measured, with a plus where kernels or engine differ from it."""
    try:
        head = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
        changed = subprocess.check_output(
            ["git", "status", "--short", "native", "engine", "models"], cwd=ROOT, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if any(not line.startswith("??") for line in changed.splitlines()) else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
