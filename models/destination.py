"""The names a conversion uses around its destination, and what may be replaced there."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from hetero.machine.types import UsageError
from hetero.models.journal import JOURNAL
from hetero.models.layout import DENSE_FILE, MTP_FILE, SMALL_FILE
from hetero.models.manifest import MANIFEST

_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_FILES = (*map(re.escape, (MANIFEST, DENSE_FILE, SMALL_FILE, MTP_FILE, JOURNAL)), r"experts-\d{5}\.bin")
_OURS = re.compile(rf"({'|'.join(_FILES)})(\.part)?|tokenizer")


def default_destination(src: Path) -> Path:
    """`NAME.hetero` beside the source: the file's name without `.gguf` and shard number, or the directory's name."""
    src = src.absolute()
    if src.is_dir():
        return src.parent / f"{src.name}.hetero"
    if src.suffix == ".json":
        return src.parent.parent / f"{src.parent.name}.hetero"
    return src.parent / f"{_SHARD.sub('', src.stem)}.hetero"


@dataclass(frozen=True, slots=True)
class Destination:
    """The store's final `path`, and beside it the folder being written, the lock, and a store being replaced."""

    path: Path

    @property
    def tmp(self) -> Path:
        return self.path.with_name(self.path.name + ".tmp")

    @property
    def lock(self) -> Path:
        return self.path.with_name(self.path.name + ".lock")

    @property
    def old(self) -> Path:
        return self.path.with_name(self.path.name + ".old")

    def check_parent(self) -> None:
        """Raises UsageError if no store can be made there: no folder to hold it, or a link to nowhere in its place."""
        if not self.path.name:
            raise UsageError(f"{self.path} cannot be a store", "name a folder in it")
        if self.path.is_symlink() and not os.path.exists(self.path):
            raise UsageError(f"{self.path} is a link to nothing", "remove it, or name another destination")
        if not self.path.parent.is_dir():
            raise UsageError(f"{self.path.parent} is not a folder", "create it first, or name another destination")

    def recover(self) -> None:
        """Finishes or undoes a replacement that was interrupted between its two renames."""
        if self.old.exists():
            if self.path.exists():
                remove_store(self.old)
            else:
                self.old.rename(self.path)


def check_removable(path: Path) -> None:
    """Raises UsageError if `path` is anything but a store, finished or not, or an empty folder."""
    if path.is_symlink() or not path.is_dir():
        raise UsageError(f"{path} exists and is not a hetero store", "name another destination")
    foreign = sorted(item.name for item in path.iterdir() if not _OURS.fullmatch(item.name))
    if foreign:
        raise UsageError(f"{path} holds {foreign[0]}, which is not part of a hetero store", "name another destination")


def remove_store(path: Path) -> None:
    """Deletes a store or an unfinished one; raises UsageError if anything in it is not hetero's."""
    check_removable(path)
    shutil.rmtree(path)
