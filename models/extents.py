"""Checksummed pieces of a store's files, and reading files in large sequential pieces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hetero.machine.types import ModelError, TierError
from hetero.models.hashing import HASH, checksum
from hetero.models.layout import DENSE_FILE, MTP_FILE, PIECE_SOURCE_BYTES, LayerSlot, Layout, MatrixSlot, MtpSlot, align
from hetero.models.pack import U8, Tick, in_order

AGAIN = "run hetero convert SRC DST --force"
"""The hint for a damaged store."""
CHUNK = 16 << 20
"""Bytes of one read: long enough for any disk's full rate."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of `length` bytes of one file, checksummed in pieces of `piece` bytes (the last takes the rest)."""

    name: str
    file: str
    offset: int
    length: int
    piece: int
    checksums: list[str]

    def label(self, index: int) -> str:
        """What piece `index` holds, in words."""
        return self.name if self.file in (DENSE_FILE, MTP_FILE) else f"expert {index} of {self.name}"


def dense_extent(slot: MatrixSlot, checksums: list[str]) -> Extent:
    """The extent of one dense matrix, with the padding up to the next page."""
    return Extent(slot.name, DENSE_FILE, slot.offset, align(slot.length), slot.piece, checksums)


def layer_extent(slot: LayerSlot, checksums: list[str]) -> Extent:
    """The extent of one layer's experts: the whole file, a piece per expert."""
    return Extent(f"layer {slot.layer}", slot.file, 0, slot.length, slot.stride, checksums)


def mtp_extent(slot: MtpSlot, checksums: list[str]) -> Extent:
    """The extent of one multi-token prediction tensor."""
    return Extent(slot.name, MTP_FILE, slot.offset, slot.length, PIECE_SOURCE_BYTES, checksums)


def extents(layout: Layout, checksums: Mapping[str, list[str]]) -> Iterator[Extent]:
    """All packed extents of a store."""
    for matrix in layout.dense:
        yield dense_extent(matrix, checksums[matrix.name])
    for layer in layout.layers:
        yield layer_extent(layer, checksums[layer.file])
    for slot in layout.mtp:
        yield mtp_extent(slot, checksums[slot.key])


def first_damaged(directory: Path, extent: Extent, tick: Tick, kind: str = HASH) -> str | None:
    """Reads the extent and returns what its first damaged piece holds, or None; raises TierError on read errors.

    `kind` is what the checksums were made with.
    """
    with opened(directory / extent.file) as fd:

        def work(index: int) -> tuple[str, int]:
            start = index * extent.piece
            size = extent.piece if index < len(extent.checksums) - 1 else extent.length - start
            data = os.pread(fd, size, extent.offset + start)
            return checksum(data, kind), len(data)

        for index, (found, size) in enumerate(in_order(work, len(extent.checksums))):
            tick(size)
            if found != extent.checksums[index]:
                return extent.label(index)
    return None


def read_into(path: Path, out: U8, tick: Tick) -> None:
    """Fills `out` with the first `out.nbytes` bytes of `path`; raises ModelError if it is shorter."""
    with opened(path) as fd:

        def work(index: int) -> int:
            start = index * CHUNK
            view = out[start : start + CHUNK].data
            size = len(view)
            while view:
                got = os.preadv(fd, [view], start)
                if not got:
                    raise ModelError(f"{path} ends at {start} bytes, expected {out.nbytes}", AGAIN)
                view = view[got:]
                start += got
            return size

        for size in in_order(work, -(-out.nbytes // CHUNK)):
            tick(size)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A file open for sequential reading; system errors become TierError naming the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            yield fd
        finally:
            os.close(fd)
    except OSError as error:
        raise TierError(f"{path} cannot be read: {error.strerror}", "check the disk") from None
