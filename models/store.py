"""A converted model on disk, `NAME.hetero/`: opened by its manifest, read in large pieces, verified by checksums."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors

from hetero.machine.types import ModelError, ModelIndex, TierError
from hetero.models.config import ModelConfig
from hetero.models.extents import AGAIN, extents, first_damaged
from hetero.models.hashing import checksum
from hetero.models.journal import JOURNAL
from hetero.models.layout import SMALL_FILE
from hetero.models.manifest import MANIFEST, Manifest, StoredFile, read_manifest
from hetero.models.progress import Meter, Progress, silent
from hetero.models.text import TextModel, load_text

TOKENIZER = "tokenizer"


@dataclass(frozen=True, slots=True)
class Store:
    """A complete store whose manifest and file sizes have been checked; weights are not read yet."""

    path: Path
    manifest: Manifest
    kind: Literal["store"] = "store"
    notes: tuple[str, ...] = ()
    """None: what was ignored or assumed of the source was told when it was converted."""

    @property
    def config(self) -> ModelConfig:
        return self.manifest.config

    @property
    def index(self) -> ModelIndex:
        return self.manifest.index

    def text(self) -> TextModel:
        """The tokenizer, template and stop set."""
        return load_text(directory=self.path / TOKENIZER, metadata={}, vocab_size=self.config.vocab_size)

    def read_small(self) -> dict[str, npt.NDArray[np.float32]]:
        """Norms, biases and routers as float32; raises ModelError if the file does not hold what the manifest says."""
        path = self.path / SMALL_FILE
        try:
            arrays = load_safetensors(path.read_bytes())
        except OSError as error:
            raise TierError(f"{path} cannot be read: {error.strerror}", "check the disk") from None
        except SafetensorError as error:
            raise ModelError(f"{path} is damaged: {error}", AGAIN) from None
        for info in self.manifest.layout.small:
            found = arrays.get(info.name)
            if found is None or found.shape != info.shape or found.dtype != np.float32:
                raise ModelError(f"{path} does not hold {info.name} as float32 {list(info.shape)}", AGAIN)
        return arrays

    def close(self) -> None:
        """Nothing is held open; here so that stores and checkpoints are closed alike."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` has read and found whole."""

    path: Path
    files: int
    bytes: int
    fingerprint: str


def is_store(path: Path) -> bool:
    """Whether `path` is a store's directory (or its manifest), complete or not."""
    if path.name == MANIFEST:
        return True
    # A checkpoint's directory may hold some other program's manifest.
    if _exists(path / "config.json"):
        return False
    lost_its_manifest = _exists(path / SMALL_FILE) and not _exists(path / JOURNAL)
    return _exists(path / MANIFEST) or lost_its_manifest


def _exists(path: Path) -> bool:
    """`Path.exists` raises for names that are too long and for folders that may not be searched."""
    return os.path.exists(path)


def open_store(path: Path) -> Store:
    """Opens the store at `path` (its directory or manifest); raises ModelError unless it is complete and readable."""
    path = path.parent if path.name == MANIFEST else path
    return Store(path, read_manifest(path))


def verify(path: Path, progress: Progress = silent) -> VerifyReport:
    """Reads every byte of the store and compares checksums; raises ModelError naming what is damaged first."""
    store = open_store(path)
    path, manifest = store.path, store.manifest
    meter = Meter(progress, sum(stored.bytes for stored in manifest.files.values()), "verifying")
    for name, stored in manifest.files.items():
        if stored.checksum is not None:
            _verify_whole(path / name, stored, manifest.hash)
            meter.tick(stored.bytes)
    for extent in extents(manifest.layout, manifest.checksums):
        damaged = first_damaged(path, extent, meter.tick, manifest.hash)
        if damaged:
            raise ModelError(f"{path / extent.file}: {damaged} is damaged (its checksum differs)", AGAIN)
    return VerifyReport(path, len(manifest.files), meter.total, manifest.fingerprint)


def small_files(directory: Path) -> Mapping[str, StoredFile]:
    """Sizes and checksums of the files that are not packed weights, by path within `directory`."""
    paths = [directory / SMALL_FILE, *sorted(p for p in (directory / TOKENIZER).rglob("*") if p.is_file())]
    files = {}
    for path in paths:
        data = path.read_bytes()
        files[path.relative_to(directory).as_posix()] = StoredFile(len(data), checksum(data))
    return files


def _verify_whole(path: Path, stored: StoredFile, kind: str) -> None:
    try:
        found = checksum(path.read_bytes(), kind)
    except OSError as error:
        raise TierError(f"{path} cannot be read: {error.strerror}", "check the disk") from None
    if found != stored.checksum:
        raise ModelError(f"{path} is damaged (its checksum differs)", AGAIN)
