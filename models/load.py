"""From a store or a checkpoint to a model in memory, its weights packed for the kernels."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hetero.machine.types import HardwareError, ModelError, ModelIndex
from hetero.models.checkpoint import Checkpoint, open_checkpoint
from hetero.models.config import ModelConfig
from hetero.models.derive import derive
from hetero.models.extents import read_into
from hetero.models.hashing import fingerprint
from hetero.models.journal import JOURNAL
from hetero.models.layout import DENSE_FILE, LayerSlot, Layout, expert_name, make_layout
from hetero.models.pack import F32, U8, MemorySink, pack_dense, pack_layer, read_small
from hetero.models.progress import Meter, Progress, silent
from hetero.models.store import Store, is_store, open_store
from hetero.models.text import TextModel, load_text
from hetero.native import ExpertBank, Kernels, PackedMatrix, allocate

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(slots=True)
class Model:
    """A model's weights and text side. With tied embeddings the head is the embedding matrix itself."""

    config: ModelConfig
    index: ModelIndex
    matrices: dict[str, PackedMatrix]
    """Dense matrices by canonical name."""
    small: dict[str, F32]
    """Norms, biases and routers, as `derive` makes them."""
    banks: dict[int, ExpertBank]
    """Routed experts by layer."""
    text: TextModel
    name: str
    fingerprint: str
    """Identifies the source's weights; the same for a checkpoint and its store."""
    experts: str
    """How a store's experts were treated (keep, q4, q8, bf16); with the fingerprint it determines every weight."""
    kernels: Kernels
    notes: tuple[str, ...] = ()
    """What could not be done as planned, in whole sentences."""


def open_model(path: Path) -> Checkpoint | Store:
    """Opens MODEL, a store or a checkpoint, by its headers; raises ModelError or UsageError if it is neither."""
    path = Path(path)
    if is_store(path):
        return open_store(path)
    if os.path.isfile(path / JOURNAL):
        raise ModelError(f"{path} is an unfinished conversion", "run the same hetero convert again to finish it")
    return open_checkpoint(path)


def load_model(
    source: Checkpoint | Store, kernels: Kernels, progress: Progress | None = None, nodes: Sequence[int] = ()
) -> Model:
    """Loads all weights: a store's bytes as they lie, a checkpoint's packed on the way.

    If there are several memory `nodes`, each gets an equal part of every expert's rows, in this order.
    Raises ModelError on damaged content, TierError if the disk fails and HardwareError for want of memory.
    """
    if isinstance(source, Store):
        return _load_store(source, kernels, progress or silent, nodes)
    return _load_checkpoint(source, kernels, progress or silent, nodes)


def load_source_text(source: Checkpoint | Store) -> TextModel:
    """The tokenizer, template and stop set of an open model."""
    if isinstance(source, Store):
        return source.text()
    return load_text(directory=source.directory, metadata=source.metadata, vocab_size=source.config.vocab_size)


def _load_store(store: Store, kernels: Kernels, progress: Progress, nodes: Sequence[int]) -> Model:
    text = store.text()
    layout, places = store.manifest.layout, _Places(kernels, nodes)
    meter = Meter(progress, layout.dense_bytes + layout.expert_bytes, f"reading {store.path.name}")
    small = store.read_small()
    dense = _memory(layout.dense_bytes)
    read_into(store.path / DENSE_FILE, dense, meter.tick)
    banks = {}
    for slot in layout.layers:
        banks[slot.layer] = bank = _bank(slot, store.config, small)
        places.take(bank)
        read_into(store.path / slot.file, bank.data, meter.tick)
    return Model(
        config=store.config,
        index=store.index,
        matrices=_matrices(layout, dense),
        small=derive(store.config, small),
        banks=banks,
        text=text,
        name=store.index.name,
        fingerprint=store.manifest.fingerprint,
        experts=store.manifest.experts,
        kernels=kernels,
        notes=places.notes(),
    )


def _load_checkpoint(source: Checkpoint, kernels: Kernels, progress: Progress, nodes: Sequence[int]) -> Model:
    text = load_source_text(source)
    layout, places = make_layout(source.index), _Places(kernels, nodes)
    meter = Meter(progress, sum(info.n_bytes for info in source.index.tensors), f"packing {source.index.name}")
    small, digests = read_small(source, layout.small, meter.tick)
    dense = _memory(layout.dense_bytes)
    digests |= pack_dense(source, layout.dense, kernels, MemorySink(dense), meter.tick).digests
    banks = {}
    for slot in layout.layers:
        banks[slot.layer] = bank = _bank(slot, source.config, small)
        places.take(bank)
        digests |= pack_layer(source, slot, kernels, MemorySink(bank.data), meter.tick).digests
    source.check_unchanged()
    return Model(
        config=source.config,
        index=source.index,
        matrices=_matrices(layout, dense),
        small=derive(source.config, small),
        banks=banks,
        text=text,
        name=source.index.name,
        fingerprint=fingerprint(digests),
        experts="keep",
        kernels=kernels,
        notes=places.notes(),
    )


def _memory(n_bytes: int) -> U8:
    try:
        return allocate(n_bytes)
    except MemoryError:
        raise HardwareError(
            f"the system refuses {n_bytes:,} bytes of memory for weights",
            "close other programs, or choose a smaller model",
        ) from None


def _matrices(layout: Layout, dense: U8) -> dict[str, PackedMatrix]:
    matrices = {
        slot.name: PackedMatrix(slot.format, slot.n, slot.k, dense[slot.offset : slot.offset + slot.length], slot.shape)
        for slot in layout.dense
    }
    matrices.setdefault(HEAD, matrices[EMBEDDING])
    return matrices


class _Places:
    """Promises parts of experts to memory nodes, and keeps count of what the system agreed to."""

    def __init__(self, kernels: Kernels, nodes: Sequence[int]) -> None:
        self._kernels, self._nodes = kernels, nodes
        self._wanted = self._placed = self._edges = 0

    def take(self, bank: ExpertBank) -> None:
        """Places a bank that is still to be written, if there are several nodes."""
        if len(self._nodes) > 1:
            self._wanted += bank.data.nbytes
            self._placed += self._kernels.place(bank, self._nodes)
            self._edges += 2 * mmap.PAGESIZE * bank.n_experts  # an expert's end, and what is left of its last page

    def notes(self) -> tuple[str, ...]:
        """One sentence if less lies on its node than was planned."""
        if self._placed >= self._wanted - self._edges:
            return ()
        nodes = ", ".join(str(node) for node in self._nodes)
        share = f"{self._placed / self._wanted:.0%}"
        return (f"only {share} of the experts' memory lies on its nodes {nodes} as planned: the system refused",)


def _bank(slot: LayerSlot, config: ModelConfig, small: dict[str, F32]) -> ExpertBank:
    """A layer's experts in memory that is still to be written."""
    assert config.moe is not None
    return ExpertBank(
        n_experts=slot.n_experts,
        hidden=slot.hidden,
        inter=slot.inter,
        gate_format=slot.gate_format,
        up_format=slot.up_format,
        down_format=slot.down_format,
        data=_memory(slot.length),
        stride=slot.stride,
        down_offset=slot.down_offset,
        activation=config.moe.activation,
        gate_bias=small.get(expert_name(slot.layer, "gate", "bias")),
        up_bias=small.get(expert_name(slot.layer, "up", "bias")),
        down_bias=small.get(expert_name(slot.layer, "down", "bias")),
    )
