"""Writes past the page cache, and what becomes of them where a system refuses them."""

import errno
import fcntl
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from hetero.models import direct
from hetero.native import allocate

PAGE = 4096


def pages(count: int) -> memoryview:
    memory = allocate(count * PAGE)
    memory[:] = np.random.default_rng(0).integers(0, 256, len(memory), dtype=np.uint8)
    return memory.data


@pytest.mark.parametrize("flag", [True, False])
def test_what_is_written_is_there(tmp_path: Path, flag: bool) -> None:
    fd = direct.create(tmp_path / "file", flag)
    data = pages(3)
    direct.write(fd, data[PAGE:], PAGE)
    direct.write(fd, data[:PAGE], 0)
    direct.write(fd, data[: PAGE + 7], 3 * PAGE)  # no whole pages
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(data) + bytes(data[: PAGE + 7])


def test_threads_whose_direct_writes_are_refused_at_once_all_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused while the first makes the file an ordinary one."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    data, real, both = pages(2), os.pwrite, threading.Barrier(2)
    refused: set[int] = set()

    def pwrite(fd: int, part: memoryview, offset: int) -> int:
        if offset not in refused:
            refused.add(offset)
            both.wait(5)
            raise OSError(errno.EINVAL, "refused")
        return real(fd, part, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    threads = [threading.Thread(target=direct.write, args=(fd, data[at : at + PAGE], at)) for at in (0, PAGE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(data)


def test_a_file_whose_ordinary_writes_are_refused_too_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = direct.create(tmp_path / "file", True)

    def pwrite(fd: int, part: memoryview, offset: int) -> int:
        raise OSError(errno.EINVAL, "refused")

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="refused"):
        direct.write(fd, pages(1), 0)
    assert not fcntl.fcntl(fd, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0)
    os.close(fd)
