"""A cheap identity of a conversion: enough to notice that a half-written store belongs to another source."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from hetero.models.checkpoint import Checkpoint
from hetero.models.manifest import MAJOR, MINOR


def source_key(source: Checkpoint, text: Path, experts: str) -> str:
    """Hashes the store's version, the config, every tensor's header and first row, and the tokenizer's files.

    Fine-tunes of one model have equal headers; a row of each matrix tells them apart without reading them whole.
    """
    key = hashlib.blake2b(f"{MAJOR}.{MINOR} {experts} ".encode(), digest_size=16)
    key.update(json.dumps(dataclasses.asdict(source.config), sort_keys=True).encode())
    for info in sorted(source.index.tensors, key=lambda info: info.name):
        key.update(f"{info.name} {info.format} {list(info.shape)} {info.n_bytes}\n".encode())
        if info.role == "small":
            key.update(source.read_f32(info.name).tobytes())
        else:
            expert = 0 if info.role == "expert" else None
            key.update(source.read_rows(info.name, expert=expert, start=0, stop=1).tobytes())
    for t in source.mtp:
        key.update(f"{t.name} {t.format} {list(t.shape)} {t.n_bytes}\n".encode())
    for path in sorted(path for path in text.rglob("*") if path.is_file()):
        key.update(f"{path.relative_to(text).as_posix()} ".encode() + path.read_bytes())
    return key.hexdigest()
