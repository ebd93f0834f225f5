"""Deletes a store, and nothing else: every file in it must be one that its manifest names."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hetero.machine.types import TierError, UsageError
from hetero.models.destination import Destination
from hetero.models.lock import locked
from hetero.models.manifest import KIND, MANIFEST

_MOST_BYTES = 512 << 20
_LEFT = "delete it yourself, after a look at what it is"


def remove(path: Path) -> int:
    """Delete the store at `path`, an absolute path without links in it; returns the bytes of its files.

    Raises UsageError for anything but a store that holds exactly the files of its manifest, TierError while a
    conversion is writing it or where the disk fails. The folder is renamed first, so no half of a store is ever found
    under its name, and it is deleted through the descriptor that was checked, whatever is renamed meanwhile.
    """
    if os.path.realpath(path) != str(path):
        raise UsageError(f"{path} is reached through a link", _LEFT)
    try:
        with locked(Destination(path).lock), _opened(path) as folder:
            return _remove(path, folder)
    except OSError as error:
        raise TierError(f"{path} cannot be deleted: {error.strerror}", "check the folder's permissions") from None


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such folder", "hetero models lists what is there") from None
    except NotADirectoryError:
        raise UsageError(f"{path} is no folder, so no hetero store", _LEFT) from None
    try:
        yield folder
    finally:
        os.close(folder)


def _remove(path: Path, folder: int) -> int:
    named = _files_of(path, folder)
    n_bytes = _check(path, folder, named)
    away = path.with_name(f"{path.name}.removed-{os.getpid()}")
    os.rename(path, away)
    for _, folders, files, here in os.fwalk(".", topdown=False, dir_fd=folder):
        for name in files:
            os.unlink(name, dir_fd=here)
        for name in folders:
            os.rmdir(name, dir_fd=here)
    os.rmdir(away)
    return n_bytes


def _files_of(path: Path, folder: int) -> set[str]:
    """The files that the manifest names, itself included."""
    try:
        fd = os.open(MANIFEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            regular = stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_BYTES
            data = json.loads(file.read()) if regular else None
    except (OSError, ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or data.get("kind") != KIND or not isinstance(data.get("files"), dict):
        raise UsageError(f"{path} is not a store that hetero wrote", _LEFT)
    return {MANIFEST, *data["files"]}


def _check(path: Path, folder: int, named: set[str]) -> int:
    """The bytes of all files; raises UsageError for a file, folder or link that the manifest does not name."""
    total = 0
    folders_named = {os.path.dirname(name) for name in named}
    for place, folders, files, here in os.fwalk(".", dir_fd=folder):
        for name in [*folders, *files]:
            inside = os.path.normpath(os.path.join(place, name))
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
            known = inside in (folders_named if stat.S_ISDIR(status.st_mode) else named)
            if not known or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise UsageError(f"{path} holds {inside!r}, which is not part of the store", _LEFT)
            total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
