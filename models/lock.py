"""A lock file beside a conversion's destination, so that two processes never write the same store."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hetero.machine.types import TierError


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file `path` and removes it afterwards; the lock dies with the process.

    Raises TierError naming the owner's pid if another process holds it, OSError if the file cannot be made.
    """
    fd = _acquire(path)
    try:
        yield
    finally:
        # Removed while still held: whoever waits on the old file finds out below and opens the new one.
        path.unlink(missing_ok=True)
        os.close(fd)


def _acquire(path: Path) -> int:
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _still_there(path, fd):
                os.ftruncate(fd, 0)
                os.pwrite(fd, str(os.getpid()).encode(), 0)
                return fd
        except BlockingIOError:
            owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise TierError(
                f"{path.with_suffix('')} is in use by pid {owner}", "wait until it is done, or name another destination"
            ) from None
        except OSError:
            path.unlink(missing_ok=True)
            os.close(fd)
            raise
        os.close(fd)


def _still_there(path: Path, fd: int) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)
