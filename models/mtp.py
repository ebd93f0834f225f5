"""Multi-token prediction tensors: kept byte for byte in a store's file of their own, and not loaded yet.

They are the draft layers that DeepSeek-V3 and others ship behind the last layer. The forward pass does not use them, so
they are neither rearranged nor part of the fingerprint; a later version can load them without the checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from hetero.models.checkpoint import Checkpoint
from hetero.models.formats import StoredTensor
from hetero.models.layout import MtpSlot
from hetero.models.pack import Packed, Sink, Tick, in_order


def copy_mtp(source: Checkpoint, slots: Sequence[MtpSlot], sink: Sink, tick: Tick) -> Packed:
    """Copies the tensors' bytes as they lie in the source; raises ModelError or TierError as reading does."""
    result = Packed()
    stored = {t.name: t for t in source.mtp}
    for slot in slots:
        checksums = []
        for piece, size in in_order(partial(_copy_piece, source, stored[slot.name], slot, sink), slot.n_pieces):
            checksums.append(piece)
            tick(size)
        result.checksums[slot.key] = checksums
    return result


def _copy_piece(source: Checkpoint, stored: StoredTensor, slot: MtpSlot, sink: Sink, index: int) -> tuple[str, int]:
    start, length = slot.piece(index)
    out = sink.buffer(slot.offset + start, length)
    source.read_stored(stored, start, out)
    return sink.commit(slot.offset + start, out), length
