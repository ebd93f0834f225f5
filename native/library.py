"""Finds and opens the tier libraries that were built beside this file, by the declarations of hetero.h."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import cffi

_HERE = Path(__file__).parent
MESSAGE_BYTES = 512


def _declarations() -> str:
    header = (_HERE / "hetero.h").read_text(encoding="ascii")
    return header.split("/* cdef begin */")[1].split("/* cdef end */")[0]


ffi = cffi.FFI()
ffi.cdef(_declarations())


def library_path(tier: str) -> Path | None:
    """The shared library of that tier, or None where it was not built."""
    found = sorted(path for path in _HERE.glob(f"_{tier}*.so") if path.name.split(".")[0] == f"_{tier}")
    return found[-1] if found else None


@functools.cache
def open_library(tier: str) -> Any:
    """The opened library of that tier. OSError when it is missing, damaged or of another ABI version."""
    path = library_path(tier)
    if path is None:
        raise OSError(f"no library of the {tier} kernels in {_HERE}")
    library = ffi.dlopen(str(path))
    version = library.hetero_abi_version()
    if version != library.HETERO_ABI_VERSION:
        raise OSError(f"{path.name} has kernel interface {version}, expected {library.HETERO_ABI_VERSION}")
    return library
