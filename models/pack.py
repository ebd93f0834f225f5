"""Reads a checkpoint's tensors, checks and hashes them, and packs them for the kernels: into memory or into a file.

One code path for both, so that a checkpoint packed in memory and its store are the same bytes and have the same
fingerprint. Streams: at most `WORKERS` experts (or pieces of a dense matrix) are in flight.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from hetero.machine.types import ModelError, TensorInfo
from hetero.models.checkpoint import Checkpoint
from hetero.models.direct import write
from hetero.models.hashing import checksum, digest
from hetero.models.importance import LayerImportance
from hetero.models.layout import EXPERT_PARTS, LayerSlot, MatrixSlot, piece_range
from hetero.native import FORMATS, Kernels, allocate, packed_bytes

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
T = TypeVar("T")
Tick = Callable[[int], None]
"""Told the source bytes of each finished expert or piece, on the caller's thread."""

WORKERS = max(3, min(8, (os.cpu_count() or 1) + 2))
"""Threads that read, hash, pack and write: two may wait for a disk while the others keep the CPUs busy; few enough to
bound memory."""
_HINT = "download the file again; its content is damaged"


class Sink(Protocol):
    """Takes packed bytes; both methods are called from several threads with disjoint ranges."""

    def buffer(self, offset: int, length: int) -> U8:
        """Memory, 64-byte aligned, for the bytes at `offset`, all of which the caller writes before `commit`."""

    def commit(self, offset: int, data: U8) -> str:
        """Takes the filled buffer and returns its checksum, or "" where none is kept."""


@dataclass(frozen=True, slots=True)
class MemorySink:
    """Packs in place into `data` (uint8, page aligned)."""

    data: U8

    def buffer(self, offset: int, length: int) -> U8:
        return self.data[offset : offset + length]

    def commit(self, offset: int, data: U8) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class FileSink:
    """Writes to the file `fd`; raises OSError as the system does. A thread has one buffer at a time."""

    fd: int
    kept: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    def buffer(self, offset: int, length: int) -> U8:
        memory: U8 | None = getattr(self.kept, "memory", None)
        if memory is None or len(memory) < length:
            self.kept.memory = memory = allocate(length)
        return memory[:length]

    def commit(self, offset: int, data: U8) -> str:
        write(self.fd, data.data, offset)
        return checksum(data)


@dataclass(frozen=True, slots=True)
class Packed:
    """What packing found out: checksums per piece of each extent, source digests per tensor, relative RMS error."""

    checksums: dict[str, list[str]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    error: float | None = None


def in_order(work: Callable[[int], T], count: int) -> Iterator[T]:
    """Runs `work(0) … work(count - 1)` on a few threads and yields the results in order; the first error ends it."""
    executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="hetero-pack")
    try:
        yield from executor.map(work, range(count))
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def pack_layer(
    source: Checkpoint,
    slot: LayerSlot,
    kernels: Kernels,
    sink: Sink,
    tick: Tick,
    importance: LayerImportance | None = None,
) -> Packed:
    """Packs all experts of one layer, expert by expert; raises ModelError on NaN or infinite weights or scales.

    `importance` says which inputs count where weights are quantised.
    """
    infos = [source.info(name) for name in slot.names]
    source_bytes = sum(info.n_bytes for info in infos) // slot.n_experts
    experts = []
    for expert in in_order(partial(_pack_expert, source, slot, infos, kernels, sink, importance), slot.n_experts):
        experts.append(expert)
        tick(source_bytes)
    requantised = any(format != info.format for format, info in zip(slot.formats, infos, strict=True))
    norm = sum(expert.norm for expert in experts)
    error = (sum(expert.error for expert in experts) / norm) ** 0.5 if norm else 0.0
    return Packed(
        checksums={slot.file: [expert.checksum for expert in experts]},
        digests={info.name: _digest(info, [e.digests[part] for e in experts]) for part, info in enumerate(infos)},
        error=error if requantised else None,
    )


def pack_dense(source: Checkpoint, slots: Sequence[MatrixSlot], kernels: Kernels, sink: Sink, tick: Tick) -> Packed:
    """Packs the dense matrices in pieces of a few MB; raises ModelError as `pack_layer`."""
    jobs = [(slot, index) for slot in slots for index in range(slot.n_pieces)]
    made: dict[str, list[_Piece]] = {slot.name: [] for slot in slots}
    work = in_order(lambda job: _pack_piece(source, jobs[job][0], kernels, sink, jobs[job][1]), len(jobs))
    for (slot, _), piece in zip(jobs, work, strict=True):
        made[slot.name].append(piece)
        tick(piece.size)
    checksums = {name: [piece.checksum for piece in pieces] for name, pieces in made.items()}
    digests = {name: _digest(source.info(name), [p.digest for p in pieces]) for name, pieces in made.items()}
    error, norm = (sum(getattr(p, what) for pieces in made.values() for p in pieces) for what in ("error", "norm"))
    return Packed(checksums, digests, (error / norm) ** 0.5 if norm else None)


def read_small(source: Checkpoint, infos: Sequence[TensorInfo], tick: Tick) -> tuple[dict[str, F32], dict[str, str]]:
    """Reads norms, biases and routers as float32; returns them with their digests."""
    arrays, digests = {}, {}
    for info in infos:
        values = np.ascontiguousarray(source.read_f32(info.name))
        if not np.isfinite(values).all():
            raise ModelError(f"{source.file_of(info.name)}: tensor {info.name} holds NaN or infinite values", _HINT)
        if info.name.endswith(".tid2eid"):
            _check_table(source, info.name, values)
        arrays[info.name] = values
        digests[info.name] = _digest(info, [digest(values)])
        tick(info.n_bytes)
    return arrays, digests


def _check_table(source: Checkpoint, name: str, values: F32) -> None:
    """Raises ModelError where a table of experts by token names some that there are not."""
    moe = source.config.moe
    assert moe is not None
    if (values % 1).any() or not 0 <= values.min() <= values.max() < moe.n_experts:
        found = f"has experts {values.min():g} to {values.max():g}; expected 0 to {moe.n_experts - 1}"
        raise ModelError(f"{source.file_of(name)}: tensor {name} {found}", _HINT)


def _digest(info: TensorInfo, slices: Sequence[bytes]) -> str:
    head = f"{info.name} {info.format} {list(info.shape)} ".encode()
    return checksum(head + b"".join(slices))


@dataclass(frozen=True, slots=True)
class _Piece:
    """One packed piece of a dense matrix: its checksum, the digest of its source rows, their size, error and norm."""

    checksum: str
    digest: bytes
    size: int
    error: float
    norm: float


def _pack_piece(source: Checkpoint, slot: MatrixSlot, kernels: Kernels, sink: Sink, index: int) -> _Piece:
    start = index * slot.rows_per_piece
    stop = min(slot.n, start + slot.rows_per_piece)
    rows = source.read_rows(slot.name, start=start, stop=stop)
    stored, error, norm = source.info(slot.name).format, 0.0, 0.0
    _check(kernels, stored, rows, slot.k, f"{source.file_of(slot.name)}: tensor {slot.name}", start)
    hashed, size = digest(rows), rows.nbytes
    if slot.format != stored:
        rows, error, norm = _requantise(kernels, stored, slot.format, rows, slot.k)
    offset, length = piece_range(slot, index)
    out = sink.buffer(offset, length)
    used = packed_bytes(slot.format, stop - start, slot.k)
    kernels.pack(slot.format, rows, stop - start, slot.k, out=out[:used])
    out[used:] = 0
    return _Piece(sink.commit(offset, out), hashed, size, error, norm)


@dataclass(frozen=True, slots=True)
class _Expert:
    """One packed expert: its checksum, the digests of its three source matrices, squared error and norm."""

    checksum: str
    digests: list[bytes]
    error: float
    norm: float


def _pack_expert(
    source: Checkpoint,
    slot: LayerSlot,
    infos: Sequence[TensorInfo],
    kernels: Kernels,
    sink: Sink,
    importance: LayerImportance | None,
    index: int,
) -> _Expert:
    parts, digests = [], []
    error = norm = 0.0
    for part, info, format in zip(EXPERT_PARTS, infos, slot.formats, strict=True):
        rows = source.read_rows(info.name, expert=index)
        digests.append(digest(rows))
        where = f"{source.file_of(info.name, index)}: tensor {info.name} (expert {index})"
        _check(kernels, info.format, rows, info.shape[-1], where, 0)
        if format != info.format:
            counts = None if importance is None else importance.of(part, index)
            rows, part_error, part_norm = _requantise(kernels, info.format, format, rows, info.shape[-1], counts)
            error += part_error
            norm += part_norm
        parts.append(rows)
    gate, up, down = parts
    gate_format, up_format, down_format = slot.formats
    out = sink.buffer(index * slot.stride, slot.stride)
    kernels.pack_expert(gate, gate_format, up, up_format, down, down_format, slot.hidden, slot.inter, out)
    return _Expert(sink.commit(index * slot.stride, out), digests, error, norm)


def _requantise(
    kernels: Kernels, old: str, new: str, rows: U8, k: int, importance: F32 | None = None
) -> tuple[U8, float, float]:
    n = rows.shape[0]
    exact = kernels.dequantize(old, rows, n, k)
    coded = kernels.quantize(new, exact, importance)
    delta = (kernels.dequantize(new, coded, n, k) - exact).ravel()
    flat = exact.ravel()
    return coded, float(np.dot(delta, delta)), float(np.dot(flat, flat))


def _check(kernels: Kernels, format: str, rows: U8, k: int, where: str, first_row: int) -> None:
    """Raises ModelError naming the tensor and place of the first NaN or infinite weight or scale of `rows`."""
    block = kernels.check_scales(format, rows, rows.shape[0], k)
    if block < 0:
        return
    info = FORMATS[format]
    row, column = divmod(block, -(-k // info.block_k))
    what = f"weight {column} of row"
    if info.quantised:  # FP8's codes have a NaN of their own, and large ones overflow with their scale
        what = f"{'a weight' if format.startswith('FP8') else 'the scale'} of block {column} of row"
    raise ModelError(f"{where}: {what} {first_row + row} is NaN or infinite", _HINT)
