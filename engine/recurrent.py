"""Recurrent states: what a layer keeps of a whole sequence in a fixed number of bytes, and checkpoints of them.

A state is changed by every token and cannot be cut back, so an earlier position is reached only from a checkpoint.
"""

from __future__ import annotations

from collections import OrderedDict

import torch

from hetero.models.config import ModelConfig


class RecurrentStates:
    """`slots` sets of a model's recurrent states, float32 and contiguous: one per open sequence, the others hold
    checkpoints, which are known by the key of the page that ends there; the one unused for longest goes first."""

    def __init__(self, config: ModelConfig, slots: int, device: torch.device) -> None:
        self._stores: dict[int, dict[str, torch.Tensor]] = {}
        for layer in range(config.n_layers):
            states = {name: state for name, state in config.layer_states(layer).items() if state.recurrent}
            if states:
                made = {name: torch.zeros((slots, *state.shape), device=device) for name, state in states.items()}
                self._stores[layer] = made
        self._free = list(range(slots))
        self._kept: OrderedDict[bytes, int] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether the model has any."""
        return bool(self._stores)

    def __contains__(self, key: object) -> bool:
        """Whether there is a checkpoint of that key."""
        return key in self._kept

    @property
    def held_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(store.nbytes for stores in self._stores.values() for store in stores.values())

    @property
    def available(self) -> int:
        """Slots that can be taken now, counting those of checkpoints."""
        return len(self._free) + len(self._kept)

    def of(self, layer: int, slot: int) -> dict[str, torch.Tensor]:
        """The states of `layer` in a slot by name, to be changed in place."""
        return {name: store[slot] for name, store in self._stores[layer].items()}

    def take(self, key: bytes | None) -> int:
        """A slot with the states of the checkpoint `key`, or with those before the first token."""
        if key is not None:
            self._kept.move_to_end(key)
        if self._free:
            slot = self._free.pop()
        else:
            oldest, slot = self._kept.popitem(last=False)
            if oldest == key:
                return slot  # the only checkpoint there is becomes the sequence's own
        self.restore(slot, key)
        return slot

    def restore(self, slot: int, key: bytes | None) -> None:
        """Set a slot to the checkpoint `key`, or to the states before the first token."""
        for layer, stores in self._stores.items():
            if key is not None:
                self.copy(layer, self._kept[key], slot)
                continue
            for store in stores.values():
                store[slot].zero_()

    def release(self, slot: int) -> None:
        """Give a sequence's slot back."""
        self._free.append(slot)

    def begin(self) -> int:
        """A slot for a new checkpoint, to be filled layer by layer; -1 where every slot is a sequence's."""
        if self._free:
            return self._free.pop()
        return self._kept.popitem(last=False)[1] if self._kept else -1

    def copy(self, layer: int, slot: int, to: int) -> None:
        """Copy the states of `layer` from slot to slot."""
        for store in self._stores[layer].values():
            store[to].copy_(store[slot])

    def commit(self, key: bytes, slot: int) -> None:
        """Make a filled slot the checkpoint `key`."""
        self.forget(key)
        self._kept[key] = slot

    def forget(self, key: bytes) -> None:
        """Drop a checkpoint, if it still exists."""
        if key in self._kept:
            self._free.append(self._kept.pop(key))
