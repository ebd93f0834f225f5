"""How fast `hetero convert` is against what bounds it, for each way that checkpoints store experts.

`make bench-convert` runs it. For each kind a checkpoint of random codes is made and converted in a process of its own.
Two bounds are measured in the same run: writing and syncing a file of the store's size, and copying the weights while
the kernels' `dequantize` decodes them, on all CPUs. A conversion should reach --share of the lower one and need no more
memory than two layers and 300 MB. Ends with 1 where one does not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.convert_sources import EXPERTS, KINDS, layer_bytes, make
from hetero.models.checkpoint import open_checkpoint
from hetero.models.direct import create, write
from hetero.native import Kernels, allocate, choose_tier

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks-convert.md"
ALLOWED = 300 << 20
_CHUNK = 16 << 20
_CHILD = """
import json, re, sys, time
from pathlib import Path
from hetero.models.convert import convert
from hetero.native import Kernels
started = time.perf_counter()
report = convert(Path(sys.argv[1]), Path(sys.argv[2]), kernels=Kernels(sys.argv[3]), force=True)
seconds = time.perf_counter() - started
peak = int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) << 10  # ru_maxrss is the parent's
print(json.dumps({"seconds": seconds, "peak": peak, "store": report.store_bytes}))
"""


def write_rate(folder: Path, size: int) -> float:
    """Bytes per second of writing and syncing a file of `size` bytes, past the page cache."""
    data = allocate(_CHUNK)
    data[:] = np.random.default_rng(0).integers(0, 256, _CHUNK, dtype=np.uint8)
    path, done = folder / "write.bin", 0
    started, fd = time.perf_counter(), create(path, direct=True)
    while done < size:
        write(fd, data.data, done)
        done += _CHUNK
    os.fsync(fd)
    seconds = time.perf_counter() - started
    os.close(fd)
    path.unlink()
    return done / seconds


def decode_rate(kind: str, source: Path, kernels: Kernels) -> float:
    """Bytes of a checkpoint per second whose raw rows all CPUs copy and dequantise together."""
    with open_checkpoint(source) as c:
        infos = [c.info(f"model.layers.0.mlp.experts.{part}.weight") for part in ("gate", "up", "down")]
        rows = [(info.format, info.shape[-1], c.read_rows(info.name, e)) for info in infos for e in range(EXPERTS)]
        share = sum(info.n_bytes for info in infos) / layer_bytes(kind)

    def work(matrix: tuple[str, int, np.ndarray]) -> int:  # type: ignore[type-arg]
        format, k, raw = matrix
        kernels.dequantize(format, raw.copy(), len(raw), k)
        return raw.nbytes

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        started = time.perf_counter()
        done = sum(pool.map(work, rows))
        return done / (time.perf_counter() - started) / share


@dataclass(frozen=True, slots=True)
class Row:
    """One kind: bytes of its checkpoint and store, rates in bytes of the checkpoint per second, memory."""

    kind: str
    source: int
    store: int
    rate: float
    write: float
    decode: float
    peak: int
    allowed: int

    @property
    def share(self) -> float:
        """How much of the lower bound was reached."""
        return self.rate / min(self.write, self.decode)


def measure(kind: str, size: int, folder: Path, tier: str) -> Row:
    """Make, convert and bound one kind; nothing is left."""
    source = make(kind, size, folder / "source")
    weights = max(path.stat().st_size for path in (folder / "source").iterdir())
    command = [sys.executable, "-c", _CHILD, str(source), str(folder / "store.hetero"), tier]
    try:
        before = write_rate(folder, size)
        runs = []
        for _ in range(2):
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"converting {kind}: {done.stderr}")
            runs.append(json.loads(done.stdout))
            shutil.rmtree(folder / "store.hetero")
        made = min(runs, key=lambda run: run["seconds"])
        writes = max(before, write_rate(folder, made["store"]))
        return Row(
            kind,
            weights,
            made["store"],
            weights / made["seconds"],
            writes * weights / made["store"],
            decode_rate(kind, source, Kernels(tier)),
            max(run["peak"] for run in runs),
            2 * layer_bytes(kind) + ALLOWED,
        )
    finally:
        shutil.rmtree(folder / "source")


def table(rows: Sequence[Row]) -> str:
    """A Markdown table."""
    lines = ["| experts | checkpoint GB | convert MB/s | disk MB/s | decode MB/s | share | peak MB | allowed MB |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|--:|")
    for r in rows:
        rates = " | ".join(f"{rate / 1e6:,.0f}" for rate in (r.rate, r.write, r.decode))
        memory = f"{r.peak / 1e6:,.0f} | {r.allowed / 1e6:,.0f}"
        lines.append(f"| {r.kind} | {r.source / 1e9:.1f} | {rates} | {r.share:.0%} | {memory} |")
    return "\n".join(lines)


def page(rows: Sequence[Row], tier: str) -> str:
    """docs/benchmarks-convert.md."""
    setup = f"{platform.machine()}, {os.cpu_count()} CPUs, tier {tier}"
    about = f"This file is written by `make bench-convert`; do not edit it. {setup}. Rates are bytes of the checkpoint"
    return "\n".join(
        (
            "# Conversion",
            "",
            about,
            "per second. *disk* is writing (past the page cache) and syncing a file of the store's size, before the",
            "conversion or after it, the faster one; *decode* is copying the weights while the kernels' `dequantize`",
            "decodes them on all CPUs; *convert* is the better of two runs, *share* its part of the lower bound.",
            "*peak* is the most memory that the process had; *allowed* are two layers and 300 MB. The checkpoint is in",
            "the page cache. Other programs may run beside it.",
            "",
            *_with_others(table(rows).splitlines(), PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""),
            "",
        )
    )


def _with_others(lines: list[str], page: str) -> list[str]:
    """The table's lines and, of kinds that were not measured now, those that `page` has."""
    kept = {line.split(" | ")[0]: line for line in page.splitlines() if line.startswith("| ")}
    kept |= {line.split(" | ")[0]: line for line in lines[2:]}
    return lines[:2] + [kept[f"| {kind}"] for kind in KINDS if f"| {kind}" in kept]


def main(args: Sequence[str] | None = None) -> int:
    """Measure every kind and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-convert", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--size", type=float, default=8.0, help="GB of a checkpoint")
    parser.add_argument("--large", default="", help="kinds that are measured with 8 GB whatever --size says")
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="where to write")
    parser.add_argument("--kinds", default="", help=f"some of {', '.join(KINDS)}; separated by semicolons")
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("--publish", action="store_true", help="write docs/benchmarks-convert.md")
    asked = parser.parse_args(args)
    tier = choose_tier(None)
    rows = []
    asked.folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for kind in asked.kinds.split(";") if asked.kinds else KINDS:
            print(f"measuring {kind}", file=sys.stderr)
            size = 8.0 if kind in asked.large.split(";") else asked.size
            rows.append(measure(kind, int(size * 1e9), Path(folder), tier))
    print(table(rows))
    if asked.publish:
        PAGE.write_text(page(rows, tier), encoding="utf-8")
    return int(any(r.share < asked.share or r.peak > r.allowed for r in rows))


if __name__ == "__main__":
    sys.exit(main())
