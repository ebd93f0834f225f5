"""Memory for weights: anonymous, page aligned, in huge pages where the kernel grants them. And what the heap keeps."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import numpy as np
import numpy.typing as npt

_HUGE_PAGE = 2 << 20
LARGEST_KEPT = 32 << 20
"""The largest piece that the heap takes itself; glibc allows no more."""
_KEPT_BYTES = 1 << 30
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h


def allocate(n_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed bytes, uint8 [n_bytes], aligned to 2 MiB when that large, else to a page.

    Pages are placed when first written. Raises MemoryError when the address space is exhausted.
    """
    if n_bytes < 0:
        raise ValueError(f"cannot allocate {n_bytes} bytes")
    huge = n_bytes >= _HUGE_PAGE
    try:
        area = mmap.mmap(-1, n_bytes + (_HUGE_PAGE if huge else 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"cannot allocate {n_bytes} bytes: {error.strerror}") from error
    if huge:
        with contextlib.suppress(OSError):  # a kernel without huge pages: small ones do, a little slower
            area.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(area, dtype=np.uint8)
    skip = -whole.ctypes.data % _HUGE_PAGE if huge else 0
    return whole[skip : skip + n_bytes]


def settle_heap() -> None:
    """Give back what loading left in the heap of this process, and let it keep what is freed from now on.

    A step wants what the one before it freed, but by itself glibc returns large pieces and moves its limits with what
    was freed before: pages are faulted in anew, and runs differ in their memory. Other C libraries have no such calls.
    """
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.malloc_trim(0)
        library.mallopt(_MMAP_THRESHOLD, LARGEST_KEPT)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
