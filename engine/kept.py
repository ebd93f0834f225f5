"""A layer's recurrent states and sparse entries of one request, as a family's step sees them."""

from __future__ import annotations

import torch

from hetero.engine.kvcache import KVCache
from hetero.engine.pages import Sequence


class KeptOfRequest:
    """`hetero.models.blocks.Kept` over the cache's pages and slots."""

    def __init__(self, kv: KVCache, layer: int, sequence: Sequence, first: int) -> None:
        self._kv, self._layer, self._sequence = kv, layer, sequence
        self.first = first
        """Position of the first of the rows."""
        self.states = kv.states.of(layer, sequence.slot)

    def add(self, name: str, start: int, values: torch.Tensor) -> None:
        """Store `values` [n, ...] as the entries start.. ; the pages of their last tokens must be reserved."""
        index = torch.arange(start, start + len(values), device=values.device)
        self._kv.add_entries(self._layer, name, self._sequence, index, values)

    def entries(self, name: str, start: int, stop: int) -> torch.Tensor:
        """The entries [start, stop), float32."""
        return self._kv.entries(self._layer, name, self._sequence, start, stop)

    def chosen(self, name: str, index: torch.Tensor) -> torch.Tensor:
        """The entries `index` int64 [...], float32 [..., ...]."""
        return self._kv.chosen_entries(self._layer, name, self._sequence, index)
