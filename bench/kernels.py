"""Every tier's matrix products by format and token count, beside the machine's own ceilings measured in the same run.

`make bench-kernels` runs it: a table on stdout, all samples' medians as JSON in build/bench-kernels.json.

Weights are read from memory, not from a cache: products go round a set of matrices far larger than the caches, eight
of one shape in a call, as a layer's experts are. GB/s are packed weight bytes over time, GOPS multiplications plus
additions, shares are those of the tier's ceilings: a linear read by all threads, and multiply-adds in registers. Those
are of int8 summed in int16 (maddubs) for up to six bits, of int16 (madd) for eight bits unless the tier has int8 dot
products, and of float32 (FMA) for plain formats. At few tokens the first should be near, at many the second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hetero.machine.ceilings import Ceilings, measure_ceilings
from hetero.machine.cpu import usable_cpus
from hetero.native import FORMATS, Kernels, PackedMatrix, Pool, allocate, cpu_tiers, packed_bytes
from hetero.native.prepared import PreparedLinear

TOKENS = (1, 2, 4, 8, 16, 64, 256)
SHAPES = ((768, 2048), (2048, 768))
_TOGETHER = 8
"""Matrices in one call."""
_SET_BYTES = 256 << 20


@dataclass(frozen=True)
class Cell:
    """One product: seconds of one matrix of [n, k] on `tokens` tokens, and what that makes of the ceilings."""

    tier: str
    format: str
    n: int
    k: int
    tokens: int
    seconds: float
    bytes_per_s: float
    ops_per_s: float
    of_read: float
    of_arithmetic: float


def cell(tier: str, fmt: str, shape: tuple[int, int], tokens: int, seconds: float, ceilings: Ceilings) -> Cell:
    """The rates of a product that took `seconds`."""
    n, k = shape
    reads, ops = packed_bytes(fmt, n, k) / seconds, 2.0 * n * k * tokens / seconds
    shares = reads / ceilings.read, ops / ceilings.arithmetic(fmt)
    return Cell(tier, fmt, n, k, tokens, seconds, reads, ops, *shares)


def measure(tier: str, cpus: Sequence[int], formats: Sequence[str], budget: float) -> Iterator[tuple[Cell, ...]]:
    """The cells of each format in turn, with `budget` seconds for each; ceilings are measured before every format."""
    kernels = Kernels(tier)
    with Pool(cpus, kernels) as pool:
        memory = allocate(_SET_BYTES)
        memory[:] = 0x11  # a normal number in every format
        for fmt in formats:
            ceilings = measure_ceilings(cpus, tier)
            found = []
            for shape in SHAPES:
                products = _products(kernels, memory, fmt, shape)
                for tokens in TOKENS:
                    seconds = _time(pool, products, shape, tokens, budget)
                    found.append(cell(tier, fmt, shape, tokens, seconds, ceilings))
            yield tuple(found)


def _products(kernels: Kernels, memory: np.ndarray, fmt: str, shape: tuple[int, int]) -> list[PreparedLinear]:
    """Calls of eight matrices each that together take the whole of `memory`."""
    n, k = shape
    size = packed_bytes(fmt, n, k)
    matrices = [
        PackedMatrix(fmt, n, k, memory[at : at + size], (n, k)) for at in range(0, len(memory) - size + 1, size)
    ]
    groups = [matrices[i : i + _TOGETHER] for i in range(0, len(matrices) - _TOGETHER + 1, _TOGETHER)]
    return [PreparedLinear(kernels, group, [0] * _TOGETHER) for group in groups]


def _time(pool: Pool, products: Sequence[PreparedLinear], shape: tuple[int, int], tokens: int, budget: float) -> float:
    """Median seconds of one matrix, over the calls of `budget` seconds, at least one after another to warm up."""
    n, k = shape
    x = np.ones((tokens, k), np.float32)
    outs = [np.empty((tokens, n), np.float32) for _ in range(_TOGETHER)]
    addresses = [out.ctypes.data for out in outs]
    times: list[float] = []
    until = time.perf_counter() + budget
    while time.perf_counter() < until or len(times) < 2:
        began = time.perf_counter()
        products[len(times) % len(products)](pool, tokens, x.ctypes.data, addresses)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:]) / _TOGETHER


def table(cells: Sequence[Cell]) -> str:
    """One format of one tier: a row for each token count, both shapes side by side."""
    name = f"{cells[0].tier} {cells[0].format}"
    left, right = (f"[{n} x {k}]" for n, k in SHAPES)
    columns = f"{'us':>13}{'GB/s':>9}{'read':>7}{'GOPS':>10}{'arith':>7}"
    lines = [name + f"{left:>{6 + len(columns) - len(name)}}{right:>{len(columns)}}", "tokens" + columns * 2]
    for tokens in TOKENS:
        row = [one for one in cells if one.tokens == tokens]
        lines.append(f"{tokens:6}" + "".join(map(_columns, row)))
    return "\n".join(lines)


def _columns(one: Cell) -> str:
    rates = f"{one.seconds * 1e6:13,.1f}{one.bytes_per_s / 1e9:9.1f}{one.of_read:7.0%}"
    return rates + f"{one.ops_per_s / 1e9:10.1f}{one.of_arithmetic:7.0%}"


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line; SystemExit for tiers and formats that there are not."""
    usable = [tier.name for tier in cpu_tiers() if tier.built and tier.usable]
    parser = argparse.ArgumentParser(
        prog="make bench-kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiers", nargs="+", choices=usable, default=usable)
    parser.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    parser.add_argument("--threads", type=int, help="by default one for each usable core")
    parser.add_argument("--budget", type=float, default=0.15, help="seconds for each cell")
    parser.add_argument("--json", type=Path, default=Path("build/bench-kernels.json"))
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Print the tables as they come and write the JSON at the end."""
    args = parse(argv)
    cpus = usable_cpus().cpus[: args.threads]
    cells: list[Cell] = []
    for tier in args.tiers:
        for found in measure(tier, cpus, args.formats, args.budget):
            print(table(found) + "\n", flush=True)
            cells += found
    args.json.parent.mkdir(parents=True, exist_ok=True)
    body = {"schema": "hetero.bench-kernels", "version": 1, "threads": len(cpus), "cells": [asdict(c) for c in cells]}
    args.json.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    print(args.json, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
