"""The device tier of the KV cache: paged tensors and recurrent states, as a model's config declares them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ids
from dataclasses import dataclass

import torch

from hetero.engine.cachetypes import CACHE_TYPES, CacheType
from hetero.engine.pages import PAGE, PagePool, Sequence
from hetero.engine.recurrent import RecurrentStates
from hetero.machine.types import STATE_SLOTS, HardwareError
from hetero.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Paged:
    """One state of a layer in all slots: `rows` [slots, ..., row], each of them `width` values of that type."""

    rows: torch.Tensor
    width: int
    type: CacheType


def in_page(every: int) -> int:
    """Entries of one page where a state has one for `every` tokens."""
    return -(-PAGE // every)


class KVCache:
    """Pages for `context` tokens or more on one device; a sequence's tokens are appended, viewed and truncated.

    Where a model has recurrent states, a prefix is shared only up to a checkpoint of them. One is made at the last page
    that a step fills; a sequence leaves behind that of its prompt's last full page and the latest.
    """

    def __init__(self, config: ModelConfig, context: int, dtype: str, device: torch.device) -> None:
        n_pages = -(-context // PAGE)
        self.pool = PagePool(n_pages)
        self._type, self._device = CACHE_TYPES[dtype], device
        slots = n_pages * PAGE
        self._every = [{n: s.every for n, s in config.layer_states(i).items()} for i in range(config.n_layers)]
        try:
            self._stores = [self._layer(config, layer, n_pages) for layer in range(config.n_layers)]
            self.states = RecurrentStates(config, STATE_SLOTS, device)
        except RuntimeError as error:  # torch has no narrower type for a CPU that is out of memory
            raise HardwareError(
                f"no memory on {device} for a KV cache of {slots} tokens: {str(error).splitlines()[0]}",
                "give a smaller --context",
            ) from error

    def _layer(self, config: ModelConfig, layer: int, pages: int) -> dict[str, Paged]:
        paged = {name: state for name, state in config.layer_states(layer).items() if not state.recurrent}
        return {name: self._paged((pages * in_page(state.every), *state.shape)) for name, state in paged.items()}

    def _paged(self, shape: tuple[int, ...]) -> Paged:
        rows = (*shape[:-1], self._type.row(shape[-1]))
        return Paged(torch.zeros(rows, dtype=self._type.dtype, device=self._device), shape[-1], self._type)

    @property
    def held_bytes(self) -> dict[str, int]:
        """Bytes of the pages of all layers, and of the recurrent states."""
        pages = sum(store.rows.nbytes for stores in self._stores for store in stores.values())
        return {"kv cache": pages, "recurrent states": self.states.held_bytes}

    @property
    def has_slot(self) -> bool:
        """Whether the recurrent states of one more sequence find a place."""
        return not self.states or self.states.available > 0

    def open(self, token_ids: Ids[int], reuse: bool = True) -> Sequence:
        """A sequence that will begin with `token_ids`, with as much of them as earlier ones left. Then `enter` it."""
        sequence = self.pool.open(token_ids, reuse, self.states or None)
        sequence.anchor = (len(token_ids) - 1) // PAGE * PAGE
        return sequence

    def enter(self, sequence: Sequence) -> None:
        """Give an opened sequence its recurrent states; there must be a slot."""
        if self.states:
            sequence.slot = self.states.take(sequence.keys[-1] if sequence.keys else None)

    def prepare(self, sequence: Sequence, tokens: int) -> None:
        """Decide where in a step of so many tokens a checkpoint of the recurrent states is made."""
        end = sequence.length + tokens
        mark = sequence.anchor if sequence.length < sequence.anchor <= end else end // PAGE * PAGE
        if not self.states or mark <= sequence.length:
            return
        if sequence.rolling is not None:
            self.states.forget(sequence.rolling)
        sequence.rolling, sequence.pending = None, self.states.begin()
        sequence.mark = mark if sequence.pending >= 0 else 0

    def extend(self, sequence: Sequence, token_ids: Ids[int]) -> None:
        """Record that `token_ids` are now stored and in the recurrent states."""
        self.pool.extend(sequence, token_ids)
        if sequence.mark:
            key = sequence.keys[sequence.mark // PAGE - 1]
            self.states.commit(key, sequence.pending)
            sequence.rolling = None if sequence.mark == sequence.anchor else key
            sequence.mark, sequence.pending = 0, -1

    def truncate(self, sequence: Sequence, length: int) -> int:
        """Forget the tokens of `sequence` from position `length` on; returns how many are left.

        With recurrent states those are the tokens up to the last checkpoint at or before `length`, possibly none: the
        tokens between must be computed again.
        """
        if self.states and length < sequence.length:
            ends = [i + 1 for i, key in enumerate(sequence.keys[: length // PAGE]) if key in self.states]
            length = ends[-1] * PAGE if ends else 0
            self.states.restore(sequence.slot, sequence.keys[ends[-1] - 1] if ends else None)
        copy = self.pool.truncate(sequence, length)
        if copy is not None:
            for store in (store.rows for stores in self._stores for store in stores.values()):
                pages = store.view(self.pool.n_pages, -1)
                pages[copy[1]] = pages[copy[0]]
        return sequence.length

    def close(self, sequence: Sequence) -> None:
        """Give a sequence's place back; full pages and checkpoints stay until the space is needed."""
        self.pool.close(sequence)
        for slot in (sequence.slot, sequence.pending):
            if slot >= 0:
                self.states.release(slot)
        sequence.slot = sequence.pending = -1

    def store(self, layer: int, name: str) -> Paged:
        """All slots of a state."""
        return self._stores[layer][name]

    def append(self, layer: int, name: str, sequence: Sequence, start: int, values: torch.Tensor) -> None:
        """Store `values` [n, ...] as the positions start.. of `sequence`; its pages must be reserved."""
        store = self._stores[layer][name].rows
        rows = self._type.narrow(values)
        if sequence.contiguous:
            first = sequence.pages[0] * PAGE + start
            store[first : first + len(rows)] = rows
        else:
            store.index_copy_(0, self._range(sequence, start, start + len(rows)), rows)

    def view(self, layer: int, name: str, sequence: Sequence, length: int) -> torch.Tensor:
        """The first `length` positions of `sequence` as float32 [length, ...] (a view where that needs no copy)."""
        return next(self.blocks(layer, name, sequence, length, length))

    def blocks(
        self, layer: int, name: str, sequence: Sequence, length: int, size: int
    ) -> Iterator[torch.Tensor]:
        """`view` in turns of `size` positions, so that only so many are float32 at a time."""
        store = self._stores[layer][name]
        for start in range(0, length, size):
            stop = min(start + size, length)
            if sequence.contiguous:
                first = sequence.pages[0] * PAGE
                rows = store.rows[first + start : first + stop]
            else:
                rows = store.rows.index_select(0, self._range(sequence, start, stop))
            yield self._type.widen(rows, store.width)

    def slots(self, sequence: Sequence, positions: torch.Tensor) -> torch.Tensor:
        """Where `positions` int64 [...] of `sequence` lie in its stores."""
        pages = torch.tensor(sequence.pages, device=self._device)
        return pages[positions // PAGE] * PAGE + positions % PAGE

    def add_entries(
        self, layer: int, name: str, sequence: Sequence, index: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store `values` [n, ...] as the entries `index` int64 [n] of a state with one for several tokens."""
        places = self._places(self._every[layer][name], sequence, index)
        self._stores[layer][name].rows.index_copy_(0, places, self._type.narrow(values))

    def entries(self, layer: int, name: str, sequence: Sequence, start: int, stop: int) -> torch.Tensor:
        """The entries [start, stop) of such a state as float32 (a view where that needs no copy)."""
        store, every = self._stores[layer][name], self._every[layer][name]
        if sequence.contiguous and PAGE % every == 0:
            first = sequence.pages[0] * in_page(every)
            return self._type.widen(store.rows[first + start : first + stop], store.width)
        index = torch.arange(start, stop, device=self._device)
        return self._type.widen(store.rows.index_select(0, self._places(every, sequence, index)), store.width)

    def chosen_entries(self, layer: int, name: str, sequence: Sequence, index: torch.Tensor) -> torch.Tensor:
        """The entries `index` int64 [...] of such a state, float32 [..., ...]."""
        places = self._places(self._every[layer][name], sequence, index)
        store = self._stores[layer][name]
        return self._type.widen(store.rows[places], store.width)

    def _places(self, every: int, sequence: Sequence, index: torch.Tensor) -> torch.Tensor:
        """Where entries lie: in the page of the last token that each stands for, which is the one that makes it."""
        last = (index + 1) * every - 1
        pages = torch.tensor(sequence.pages, device=self._device)
        return pages[last // PAGE] * in_page(every) + last % PAGE // every

    def _range(self, sequence: Sequence, start: int, stop: int) -> torch.Tensor:
        return self.slots(sequence, torch.arange(start, stop, device=self._device))
