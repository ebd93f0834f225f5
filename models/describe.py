"""From MODEL in any form to its index, without reading a weight: what `plan` starts from."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hetero.machine.types import ModelIndex, UsageError
from hetero.models.card import cards, find_card

_REMOTE = ("http://", "https://", "hf:")


def describe(model: str) -> ModelIndex:
    """The index of a store, checkpoint, config.json, safetensors index, address (https:, hf:) or built-in card.

    A file or folder of that name goes before a card. Raises UsageError where there is none, ModelError for damaged
    headers, TierError where a server fails. A card waits for no reader: each is imported when it is needed.
    """
    if model.startswith(_REMOTE):
        from hetero.models.remote import remote_index

        return remote_index(model)
    path = Path(model)
    if not os.path.exists(path):
        card = find_card(model)
        if card is not None:
            return card.index
        raise UsageError(f"{model}: no such file, and no card of that name", f"cards: {', '.join(cards())}")
    return _of_files(path)


def _of_files(path: Path) -> ModelIndex:
    from hetero.models.outline import index_of_config, runs_as_it_is
    from hetero.models.safetensors_file import read_json

    config = _config_beside(path)
    if config is not None:
        raw = read_json(config, 16 << 20)
        if not _has_weights(config.parent) or not runs_as_it_is(raw):
            return index_of_config(raw, _name(config.parent), str(config))
    from hetero.models.load import open_model

    with contextlib.closing(open_model(path)) as source:
        return source.index


def _config_beside(path: Path) -> Path | None:
    """The config.json of a Hugging Face directory or of a file in one; None for stores and GGUF files."""
    from hetero.models.safetensors_file import CONFIG, INDEX
    from hetero.models.store import is_store

    if is_store(path):
        return None
    if path.name == CONFIG or (path.suffix == ".json" and not path.is_dir() and path.name != INDEX):
        return path
    folder = path if path.is_dir() else path.parent
    named = path.is_dir() or path.name == INDEX or path.suffix == ".safetensors"
    config = folder / CONFIG
    if path.name == INDEX and not config.exists():
        raise UsageError(f"{config} is missing: an index names tensors, not their sizes", "put the two side by side")
    return config if named and config.exists() else None


def _has_weights(folder: Path) -> bool:
    """Whether the weights themselves are there; an index alone is not enough to load, but to plan."""
    from hetero.models.safetensors_file import SINGLE

    return (folder / SINGLE).exists() or any(True for _ in folder.glob("*.safetensors"))


def _name(folder: Path) -> str:
    return folder.absolute().name
