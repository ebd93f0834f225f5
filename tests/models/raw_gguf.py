"""GGUF files written byte by byte, for headers that no sane writer would produce."""

from __future__ import annotations

import struct
from collections.abc import Sequence

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def kv(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def kv_text(key: str | bytes, value: str | bytes) -> bytes:
    return kv(key, STRING, text(value))


def kv_u32(key: str, value: int) -> bytes:
    return kv(key, U32, struct.pack("<I", value))


def tensor(name: str | bytes, dims: Sequence[int], kind: int, offset: int, n_dims: int | None = None) -> bytes:
    """A tensor record; `dims` in GGUF's order, the row length first."""
    count = len(dims) if n_dims is None else n_dims
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


LLAMA = kv_text("general.architecture", "llama")


def gguf(
    kvs: Sequence[bytes] = (LLAMA,),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    n_tensors: int | None = None,
    n_kv: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; counts default to the truth."""
    head = b"GGUF" + struct.pack(
        "<IQQ", version, len(tensors) if n_tensors is None else n_tensors, len(kvs) if n_kv is None else n_kv
    )
    head += b"".join(kvs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data
