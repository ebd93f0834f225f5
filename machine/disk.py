"""How fast a disk is read and written past the kernel's cache, in pieces as large as an expert."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import queue
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hetero.machine.files import read_text
from hetero.machine.types import Measured
from hetero.machine.units import size_text

PIECE_BYTES = 5 << 19
"""2.5 MiB: an expert of a model of about 30 B parameters at 4 bits, and whole pages."""
_FILE_BYTES = 400 << 20
_FREE_SHARE = 0.05
_IN_FLIGHT = 4
"""Requests at once: a solid-state disk is idle half of the time with one."""
_SECONDS = 2.0
"""After which each direction stops, so that a slow disk does not hold up the rest."""
_ROUNDS = 8
_MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})

Step = Callable[[], None]
Move = Callable[[int, mmap.mmap, int], int]


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Bytes per second in each direction, None with a note where they cannot be measured."""

    read: Measured | None = None
    write: Measured | None = None
    note: str = ""


def measure_disk(folder: Path, file_bytes: int = _FILE_BYTES, step: Step = lambda: None) -> DiskRates:
    """Write and read a nameless temporary file in `folder`; `step` is called twice, as each direction begins."""
    kind = _filesystem(folder)
    if kind in _MEMORY_FILESYSTEMS:
        return DiskRates(note=f"disk not measured: {folder} is in memory ({kind})")
    try:
        stat = os.statvfs(folder)
        file_bytes = min(file_bytes, int(stat.f_bavail * stat.f_frsize * _FREE_SHARE))
        pieces = file_bytes // PIECE_BYTES
        if pieces < _ROUNDS:
            return DiskRates(note=f"disk not measured: less than {size_text(20 * _ROUNDS * PIECE_BYTES)} free")
        with _direct_file(folder) as descriptor:
            os.posix_fallocate(descriptor, 0, pieces * PIECE_BYTES)  # growing a file would serialise the writes
            step()
            written, write = _transfer(descriptor, list(range(pieces)), _write)
            step()
            order = list(range(written))
            random.Random(0).shuffle(order)
            return DiskRates(_transfer(descriptor, order, _read)[1], write)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return DiskRates(note=f"disk not measured: {kind or 'the file system'} has no direct I/O ({folder})")
        return DiskRates(note=f"disk not measured: {folder}: {error.strerror}")


@contextlib.contextmanager
def _direct_file(folder: Path) -> Iterator[int]:
    """A descriptor of a file without a name: nothing is left behind however the process ends."""
    path = folder / f"measure-{os.getpid()}.tmp"
    # Not O_TMPFILE: some network and FUSE file systems lack it.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    try:
        path.unlink()
        yield descriptor
    finally:
        os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _transfer(descriptor: int, order: list[int], move: Move) -> tuple[int, Measured]:
    """Move the pieces in rounds of equal size within the time limit: (pieces moved, their rate)."""
    buffers: queue.SimpleQueue[mmap.mmap] = queue.SimpleQueue()
    for _ in range(_IN_FLIGHT):
        buffers.put(_random_buffer())

    def one(piece: int) -> None:
        buffer = buffers.get()
        if move(descriptor, buffer, piece * PIECE_BYTES) != PIECE_BYTES:
            raise OSError(errno.EIO, "a direct transfer was cut short")
        buffers.put(buffer)

    size = len(order) // _ROUNDS
    rates: list[float] = []
    began = time.perf_counter()
    with ThreadPoolExecutor(_IN_FLIGHT) as workers:
        for number in range(_ROUNDS):
            start = time.perf_counter()
            list(workers.map(one, order[number * size : (number + 1) * size]))
            rates.append(size * PIECE_BYTES / (time.perf_counter() - start))
            if time.perf_counter() - began > _SECONDS:
                break
    return len(rates) * size, summary(rates, "B/s")


def summary(samples: list[float], unit: str) -> Measured:
    """The median of the samples and their spread."""
    ordered = sorted(samples)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Measured(median, unit, "measured", (ordered[-1] - ordered[0]) / median, len(ordered))


def _random_buffer() -> mmap.mmap:
    """A page-aligned buffer of bytes that no disk can compress."""
    buffer = mmap.mmap(-1, PIECE_BYTES)
    buffer.write(random.Random(0).randbytes(PIECE_BYTES))
    return buffer


def _write(descriptor: int, buffer: mmap.mmap, offset: int) -> int:
    return os.pwrite(descriptor, buffer, offset)


def _read(descriptor: int, buffer: mmap.mmap, offset: int) -> int:
    return os.preadv(descriptor, [buffer], offset)


def _filesystem(folder: Path) -> str:
    """The type of the file system that holds `folder`, empty if the kernel does not tell."""
    best, kind = "", ""
    real = str(folder.resolve())
    for line in (read_text(Path("/proc/self/mountinfo")) or "").splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if not separator or len(fields) < 5 or not tail:
            continue
        point = fields[4].replace("\\040", " ")
        inside = point == "/" or real == point or real.startswith(point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, tail[0]
    return kind
