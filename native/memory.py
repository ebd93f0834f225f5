"""Memory for weights: anonymous, page aligned, in huge pages where the kernel grants them."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import numpy.typing as npt

_HUGE_PAGE = 2 << 20


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
