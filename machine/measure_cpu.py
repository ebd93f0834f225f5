"""Rates of memory and arithmetic, by the threads and kernels that models run on."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hetero.machine.disk import PIECE_BYTES, summary
from hetero.machine.types import KernelRate, Machine, Measured, Node, RateAt
from hetero.native import FORMATS, Kernels, PackedMatrix, Pool, allocate, packed_bytes
from hetero.native.measure import Kind, compute, fill, read_seconds

_KNEE = 0.95
_TOKENS = (1, 8, 128)
"""Decode, a little of both, prefill."""
_WEIGHT_BYTES = 512 << 10
"""Of one thread's weights: they fit in any second-level cache."""
_K = 2048
_TRIAL_ROUNDS = 10_000
_STEADY = 0.15
"""Spread from which on more samples are taken."""
_FILL_STEP = 64 << 20
_ALL_PAIRS = 4
"""With more nodes than this, not every pair of them is measured."""
_MATRICES = 8
"""Products in one call at most, so that the time of the call itself does not count."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is spent: memory and disk file in bytes, seconds of one sample, samples of one rate.

    Some virtual machines get their memory page by page from the host: after `fill_seconds` what there is must do.
    """

    set_bytes: int = 1 << 30
    fill_seconds: float = 3.0
    seconds: float = 10.0
    """After which two samples of a rate are enough: a busy machine makes every one of them slow."""
    disk_bytes: int = 400 << 20
    sample_seconds: float = 0.03
    samples: int = 5
    piece_bytes: int = PIECE_BYTES


class CpuMeter:
    """Memory spread over the nodes of `cpus`, and the tier's kernels. MemoryError where there is no such memory."""

    def __init__(self, cpus: Sequence[int], tier: str, effort: Effort) -> None:
        self._cpus, self._effort, self._until = tuple(cpus), effort, time.perf_counter() + effort.seconds
        self._kernels = Kernels(tier)
        self._memory = _Memory(self._kernels, self._cpus, effort)

    @property
    def set_bytes(self) -> int:
        """Bytes that are read over."""
        return self._memory.size

    def memory(self, threads: int) -> tuple[RateAt, RateAt]:
        """Stream and gather rates of that many threads, on the first of the CPUs as a plan takes them."""
        with _pool(self._cpus[:threads], self._kernels) as pool:
            return RateAt(threads, self._memory.stream(pool)), RateAt(threads, self._memory.gather(pool))

    def arithmetic(self, kind: Kind) -> Measured:
        """Multiplications plus additions per second in registers, all threads."""
        with _pool(self._cpus, self._kernels) as pool:
            trial = compute(self._kernels, pool, kind, _TRIAL_ROUNDS)
            rounds = max(1, int(_TRIAL_ROUNDS * self._effort.sample_seconds / trial[1]))

            def sample() -> float:
                operations, seconds = compute(self._kernels, pool, kind, rounds)
                return operations / seconds

            return _repeated(sample, self._effort.samples, "op/s", self._until)

    def kernels(self) -> tuple[KernelRate, ...]:
        """Each format's matrix product for one, several and many tokens, all threads."""
        with _pool(self._cpus, self._kernels) as pool:
            formats = {info.kernel: None for info in FORMATS.values()}
            return tuple(self._product(pool, fmt, tokens) for fmt in formats for tokens in _TOKENS)

    def _product(self, pool: Pool, fmt: str, tokens: int) -> KernelRate:
        rows = max(16, _WEIGHT_BYTES // packed_bytes(fmt, 16, _K) * 16) * pool.threads
        # Zeros take the same time as any weights; only subnormal sums would not.
        matrix = PackedMatrix(fmt, rows, _K, allocate(packed_bytes(fmt, rows, _K)), (rows, _K))
        x = np.ones((tokens, _K), np.float32)
        out = np.empty((tokens, rows), np.float32)
        count = 1

        def sample() -> float:
            began = time.perf_counter()
            self._kernels.linear_many(pool, [matrix] * count, x, [out] * count)
            return 2.0 * rows * _K * tokens * count / (time.perf_counter() - began)

        sample()  # brings the weights into the caches
        seconds = 2.0 * rows * _K * tokens / sample()
        count = max(1, min(_MATRICES, int(self._effort.sample_seconds / seconds)))
        return KernelRate(fmt, tokens, _repeated(sample, self._effort.samples, "op/s", self._until))


def across_nodes(nodes: Sequence[Node], tier: str, effort: Effort) -> Iterator[RateAt]:
    """Gather rates of each node's memory by its own CPUs and by others', only the first one's where nodes are many."""
    kernels = Kernels(tier)
    each = replace(effort, set_bytes=effort.set_bytes // len(nodes))
    for home in nodes:
        memory = _Memory(kernels, home.cpus, each)
        for reader in nodes:
            if reader in (home, nodes[0]) or len(nodes) <= _ALL_PAIRS:
                with _pool(reader.cpus, kernels) as pool:
                    yield RateAt(len(reader.cpus), memory.gather(pool), reader.id, home.id)


def own_nodes(machine: Machine) -> list[Node]:
    """The nodes with the CPUs that hetero uses in each, where there is more than one."""
    own = [replace(node, cpus=tuple(cpu for cpu in machine.cpus if cpu in node.cpus)) for node in machine.nodes]
    own = [node for node in own if node.cpus]
    return own if len(own) > 1 else []


def thread_counts(n: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12 ... and n: dense enough to see where more threads stop to help."""
    counts = {n}
    power = 1
    while power < n:
        counts |= {power, min(n, power * 3 // 2)}
        power *= 2
    return sorted(counts)


def knee(rates: Sequence[RateAt]) -> int:
    """The fewest threads that reach 95 % of the best rate."""
    best = max(at.rate.value for at in rates)
    return next(at.threads for at in rates if at.rate.value >= _KNEE * best)


class _Memory:
    """A set of pages placed by the threads on `cpus`, and the order in which its pieces are read."""

    def __init__(self, kernels: Kernels, cpus: Sequence[int], effort: Effort) -> None:
        self._kernels, self._effort, self._until = kernels, effort, time.perf_counter() + effort.seconds
        count = max(1, effort.set_bytes // effort.piece_bytes)
        self._data = allocate(count * effort.piece_bytes)
        count = self._fill(cpus) // effort.piece_bytes
        self._in_order = np.arange(count, dtype=np.int64) * effort.piece_bytes
        self._shuffled = np.random.default_rng(0).permutation(self._in_order)

    @property
    def size(self) -> int:
        """Bytes that are read over."""
        return len(self._in_order) * self._effort.piece_bytes

    def _fill(self, cpus: Sequence[int]) -> int:
        """Place the pages, a few at a time so that Ctrl-C is heard; returns the bytes that are in memory."""
        step = max(_FILL_STEP, self._effort.piece_bytes)
        began, at = time.perf_counter(), 0
        with _pool(cpus, self._kernels) as pool:
            while at < len(self._data) and (not at or time.perf_counter() - began < self._effort.fill_seconds):
                fill(self._kernels, pool, self._data[at : at + step])
                at = min(len(self._data), at + step)
        return at

    def stream(self, pool: Pool) -> Measured:
        """Bytes per second of a linear pass."""
        return self._read(pool, self._in_order)

    def gather(self, pool: Pool) -> Measured:
        """Bytes per second of pieces at random; none is read again before all others were."""
        return self._read(pool, self._shuffled)

    def _read(self, pool: Pool, offsets: npt.NDArray[np.int64]) -> Measured:
        piece, at = self._effort.piece_bytes, 0

        def sample(count: int) -> float:
            nonlocal at
            chosen = np.take(offsets, np.arange(at, at + count), mode="wrap")
            at += count
            return count * piece / read_seconds(self._kernels, pool, self._data, chosen, piece)

        trial = sample(min(len(offsets), 2 * pool.threads))
        count = max(1, min(len(offsets), int(trial * self._effort.sample_seconds / piece)))
        return _repeated(lambda: sample(count), self._effort.samples, "B/s", self._until)


def _repeated(sample: Callable[[], float], count: int, unit: str, until: float) -> Measured:
    """The median of `count` samples, of up to three times as many where they differ much and there is time."""
    samples: list[float] = []
    while len(samples) < 3 * count:
        samples.append(sample())
        enough = len(samples) >= count and summary(samples, unit).spread < _STEADY
        if enough or (len(samples) >= 2 and time.perf_counter() > until):
            break
    return summary(samples, unit)


@contextlib.contextmanager
def _pool(cpus: Sequence[int], kernels: Kernels) -> Iterator[Pool]:
    """A pool on `cpus` whose caller, which is a worker too, stays on them as well."""
    before = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # a sandbox may number its CPUs otherwise; the threads then run unbound
        os.sched_setaffinity(0, cpus)
    try:
        with Pool(cpus, kernels) as pool:
            yield pool
    finally:
        os.sched_setaffinity(0, before)
