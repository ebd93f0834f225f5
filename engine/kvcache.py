"""The device tier of the KV cache: paged tensors of the states that a model's config declares."""

from __future__ import annotations

from collections.abc import Sequence as Ids

import torch

from hetero.engine.pages import PAGE, PagePool, Sequence
from hetero.machine.types import HardwareError
from hetero.models.config import ModelConfig

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class KVCache:
    """Pages for `context` tokens or more on one device; a sequence's tokens are appended, viewed and truncated."""

    def __init__(self, config: ModelConfig, context: int, dtype: str, device: torch.device) -> None:
        n_pages = -(-context // PAGE)
        self.pool = PagePool(n_pages)
        self.dtype = DTYPES[dtype]
        slots = n_pages * PAGE
        states = config.kv_states
        try:
            self._stores = [
                {name: torch.zeros((slots, *shape), dtype=self.dtype, device=device) for name, shape in states.items()}
                for _ in range(config.n_layers)
            ]
        except RuntimeError as error:  # torch has no narrower type for a CPU that is out of memory
            raise HardwareError(
                f"no memory on {device} for a KV cache of {slots} tokens: {str(error).splitlines()[0]}",
                "give a smaller --context",
            ) from error

    def open(self, token_ids: Ids[int], reuse: bool = True) -> Sequence:
        return self.pool.open(token_ids, reuse)

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Forget the tokens of `sequence` from position `length` on."""
        copy = self.pool.truncate(sequence, length)
        if copy is None:
            return
        source, target = copy[0] * PAGE, copy[1] * PAGE
        for store in (store for stores in self._stores for store in stores.values()):
            store[target : target + PAGE] = store[source : source + PAGE]

    def close(self, sequence: Sequence) -> None:
        self.pool.close(sequence)

    def store(self, layer: int, name: str) -> tuple[torch.Tensor, str]:
        """The whole paged tensor [slots, ...] of a state, and its type by ggml's name."""
        return self._stores[layer][name], NAMES[self.dtype]

    def append(self, layer: int, name: str, sequence: Sequence, start: int, values: torch.Tensor) -> None:
        """Store `values` [n, ...] as the positions start.. of `sequence`; its pages must be reserved."""
        store = self._stores[layer][name]
        values = values.to(self.dtype)
        if sequence.contiguous:
            first = sequence.pages[0] * PAGE + start
            store[first : first + len(values)] = values
        else:
            store.index_copy_(0, self._slots(sequence, start, start + len(values)), values)

    def view(self, layer: int, name: str, sequence: Sequence, length: int) -> torch.Tensor:
        """The first `length` positions of `sequence` as float32 [length, ...] (a view where that needs no copy)."""
        store = self._stores[layer][name]
        if sequence.contiguous:
            first = sequence.pages[0] * PAGE
            return store[first : first + length].float()
        return store.index_select(0, self._slots(sequence, 0, length)).float()

    def _slots(self, sequence: Sequence, start: int, stop: int) -> torch.Tensor:
        device = next(iter(self._stores[0].values())).device
        positions = torch.arange(start, stop, device=device)
        pages = torch.tensor(sequence.pages, device=device)
        return pages[positions // PAGE] * PAGE + positions % PAGE
