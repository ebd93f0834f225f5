"""Files written past the page cache: a store may exceed memory, and copying it there takes as long as all the rest."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_DIRECT: int = getattr(os, "O_DIRECT", 0)


def create(path: Path, direct: bool) -> int:
    """A new, empty file to write; `direct` if all writes will be of whole pages from whole pages of memory.

    File systems that know no direct writes, such as some in memory, get ordinary ones.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        return os.open(path, flags | (_DIRECT if direct else 0), 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL or not direct:
            raise
        return os.open(path, flags, 0o666)


def write(fd: int, data: memoryview, offset: int) -> None:
    """Writes all of `data`; raises OSError as the system does. Direct writes that it refuses become ordinary ones."""
    refused = False
    while data:
        try:
            written = os.pwrite(fd, data, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or refused:
                raise
            refused = True  # tried again in any case: another thread may have made the file an ordinary one meanwhile
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~_DIRECT)
            continue
        data = data[written:]
        offset += written
