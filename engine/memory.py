"""What a loaded model really holds, to be set beside the plan's ledger."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from hetero.engine.kvcache import KVCache
from hetero.models.load import Model


def held_bytes(model: Model, kv: KVCache) -> dict[str, int]:
    """Bytes of the arrays behind the ledger's countable parts, by the ledger's names.

    A matrix with two names (an embedding that is also the head) is counted once. Only what lies in CPU memory is
    counted, apart from the KV cache, which is counted wherever it lies.
    """
    return {
        "experts": _bytes(bank.data for bank in model.banks.values()),
        "dense": _bytes(matrix.data for matrix in model.matrices.values()),
        "small": _bytes(model.small.values()),
    } | kv.held_bytes


def _bytes(arrays: Iterable[npt.NDArray[np.generic]]) -> int:
    """Bytes of arrays that do not overlap, each place once."""
    return sum({array.ctypes.data: array.nbytes for array in arrays}.values())
