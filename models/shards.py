"""What to make of shards that are missing and of tensors that lie in several: harmless, or a reason to refuse."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hetero.machine.types import ModelError, TierError
from hetero.models.formats import StoredTensor

_PIECE = 16 << 20
_BEHIND = re.compile(r"(?:(?:language_)?model\.)*(?:mtp\..+|layers\.(\d{1,6})\..+)")


def unused_shards(
    missing: Sequence[str], weight_map: Mapping[str, str], config: Mapping[str, Any]
) -> tuple[str, ...]:
    """Those of the `missing` files that hold nothing but multi-token prediction, which no forward pass uses yet."""
    needed = {file for name, file in weight_map.items() if not _is_behind(name, config)}
    return tuple(name for name in missing if name not in needed)


def _is_behind(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor belongs to the layers that config.json has behind the last one."""
    match = _BEHIND.fullmatch(name)
    if match is None or match[1] is None:
        return match is not None
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    layers, more = (text.get(key) for key in ("num_hidden_layers", "num_nextn_predict_layers"))
    return type(layers) is int and type(more) is int and layers <= int(match[1]) < layers + more


def check_copies(
    found: Mapping[str, StoredTensor], copies: Sequence[StoredTensor], files: tuple[Path, ...]
) -> tuple[str, ...]:
    """Notes on tensors that are there twice. Raises ModelError where the second is another one; reads both."""
    notes = []
    for copy in copies:
        first = found[copy.name]
        home, other = files[first.file], files[copy.file]
        if (copy.format, copy.shape) != (first.format, first.shape) or not _same_bytes(first, copy, files):
            raise ModelError(
                f"{other}: the tensor {copy.name!r} differs from that in {home.name!r}, where the index says it is",
                "the files come from different uploads; download all of them again from one place",
            )
        notes.append(f"{other.name}: the tensor {copy.name!r} is a second copy and is ignored")
    return tuple(notes)


def _same_bytes(first: StoredTensor, second: StoredTensor, files: tuple[Path, ...]) -> bool:
    path = files[first.file]
    try:
        with files[first.file].open("rb") as one, files[second.file].open("rb") as other:
            one.seek(first.offset)
            other.seek(second.offset)
            sizes = (min(_PIECE, first.n_bytes - done) for done in range(0, first.n_bytes, _PIECE))
            return all(one.read(size) == other.read(size) for size in sizes)
    except OSError as e:
        raise TierError(f"{path}: cannot be compared: {e.strerror or e}", "check the disk") from None
