"""Checksums of a store's bytes, and the fingerprint of a model.

Every byte of a model is hashed twice, as it is read and as it is written. The hashes tell damage and different weights
apart, not an attacker's from the author's, so they are XXH3-128, twenty times as fast as a cryptographic hash. What
identifies the whole model, a few bytes per tensor, is hashed with BLAKE2b. Knows buffers, not files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

Buffer = npt.NDArray[np.uint8] | npt.NDArray[np.float32] | bytes
HASH = "xxh3-128"
"""What new stores are checked with, as their manifests say."""
OLD_HASH = "blake2b-128"
"""What stores of version 1 were checked with."""


def digest(data: Buffer) -> bytes:
    """XXH3-128 of a buffer; the interpreter's lock is released meanwhile."""
    return bytes(xxhash.xxh3_128(_bytes(data)).digest())


def checksum(data: Buffer, kind: str = HASH) -> str:
    """The checksum of some bytes in hex, by one of HASHES."""
    return HASHES[kind](data).hex()


def fingerprint(digests: Mapping[str, str]) -> str:
    """The fingerprint of a model from the digests of all its tensors, in name order."""
    total = hashlib.blake2b(digest_size=16)
    for name in sorted(digests):
        total.update(f"{name} {digests[name]}\n".encode())
    return total.hexdigest()


def _blake(data: Buffer) -> bytes:
    return hashlib.blake2b(_bytes(data), digest_size=16).digest()


def _bytes(data: Buffer) -> Any:
    return data if isinstance(data, bytes) else data.reshape(-1).data


HASHES: dict[str, Callable[[Buffer], bytes]] = {HASH: digest, OLD_HASH: _blake}
