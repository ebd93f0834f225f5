"""GGUF headers: metadata and tensor places, wholly checked before any weight is read.

Sizes that a file claims are never believed: every count is held against the bytes that are there before anything is
allocated. The layout is that of ggml's docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np

from hetero.machine.types import ModelError, TierError
from hetero.models.families import family_for_gguf
from hetero.models.formats import GGML_TYPES, StoredTensor, ggml_type_name, n_elements
from hetero.models.sniff import explain, first_bytes

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 100_000
MAX_TENSORS = 1_000_000
MAX_NAME = 65_535
MAX_STRING = 64 << 20
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20
MAX_DEPTH = 4
_AGAIN = "the download is damaged or incomplete; download it again and compare its checksum"

# GGUF's value types: struct code, or None for string (8) and array (9).
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NOT_MODELS = {
    "adapter": "a LoRA adapter",
    "imatrix": "an importance matrix for quantising",
    "mmproj": "a vision projector (mmproj)",
    "vocab": "a vocabulary without weights",
}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One file's header. `tensors` carry absolute offsets and file number 0; `version` is GGUF's."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: tuple[StoredTensor, ...]
    size: int

    def count(self, key: str, default: int) -> int:
        """An unsigned number of the metadata, such as `split.no`; `default` where it is missing."""
        value = self.metadata.get(key, default)
        if type(value) is not int or not 0 <= value <= MAX_TENSORS:
            raise ModelError(f"{self.path}: {key} is {value!r}; expected a whole number from 0", _AGAIN)
        return value


class Source(Protocol):
    """Where a header's bytes come from: a file, or a server that answers ranges."""

    size: int

    def pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes at `offset`; fewer, but not none, where more need another call."""


class _Local:
    """An open file."""

    def __init__(self, fd: int) -> None:
        self.fd, self.size = fd, os.fstat(fd).st_size

    def pread(self, count: int, offset: int) -> bytes:
        return os.pread(self.fd, count, offset)


class _Header:
    """A cursor over the start of a file that reads on as needed, and never past its end."""

    def __init__(self, path: Path, source: Source) -> None:
        self.path, self.source, self.size = path, source, source.size
        self.buffer = b""
        self.pos = 0

    def fail(self, what: str, hint: str = _AGAIN) -> NoReturn:
        raise ModelError(f"{self.path}: {what}", hint)

    def need(self, count: int, what: str) -> int:
        """Make `count` more bytes available and return where they begin in the buffer."""
        start, end = self.pos, self.pos + count
        if end > self.size:
            self.fail(f"the header is cut off: {what} needs {count} bytes at {start}, but the file ends at {self.size}")
        if end > len(self.buffer):
            self._fill(end)
        self.pos = end
        return start

    def _fill(self, end: int) -> None:
        goal = min(self.size, max(end, 2 * len(self.buffer), 1 << 16))
        parts = [self.buffer]
        have = len(self.buffer)
        while have < goal:
            part = self.source.pread(goal - have, have)
            if not part:
                self.fail("the file became shorter while it was read")
            parts.append(part)
            have += len(part)
        self.buffer = b"".join(parts)

    def unpack(self, code: str, what: str) -> Any:
        start = self.need(struct.calcsize("<" + code), what)
        return struct.unpack_from("<" + code, self.buffer, start)[0]

    def left(self) -> int:
        return self.size - self.pos

    def string(self, what: str, limit: int = MAX_STRING, errors: str = "strict") -> str:
        length = self.unpack("Q", what)
        if length > min(limit, self.left()):
            self.fail(f"{what} claims {length} bytes; at most {min(limit, self.left())} are possible here")
        start = self.need(length, what)
        try:
            return self.buffer[start : self.pos].decode("utf-8", errors)
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8: {self.buffer[start : self.pos][:40]!r}")


def read_gguf(path: Path) -> GgufFile:
    """Read and check the header of one GGUF file. Raises ModelError, UsageError (missing) or TierError (disk)."""
    head = first_bytes(path)
    if head[:4] != MAGIC:
        raise explain(path, head, "a GGUF file")
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return _parse(_Header(path, _Local(fd)))
    except OSError as e:
        raise TierError(f"{path}: cannot be read: {e.strerror or e}", "check the disk") from None
    finally:
        if fd >= 0:
            os.close(fd)


def parse_gguf(path: Path, source: Source) -> GgufFile:
    """The checked header of a GGUF file that is not on this disk; `path` is its name in messages."""
    if source.pread(4, 0) != MAGIC:
        raise explain(path, source.pread(64, 0), "a GGUF file")
    return _parse(_Header(path, source))


def _parse(h: _Header) -> GgufFile:
    h.need(4, "the magic")
    version = h.unpack("I", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (1, *VERSIONS):
            h.fail("is a big-endian GGUF file; expected little-endian", "download a version for x86 or ARM machines")
        h.fail(f"has GGUF version {version}; expected 2 or 3", "convert it with a current llama.cpp, or update hetero")
    n_tensors, n_keys = h.unpack("Q", "the tensor count"), h.unpack("Q", "the key count")
    # A tensor record takes at least 32 bytes, a key-value pair at least 13.
    for what, count, cap, least in (("tensor", n_tensors, MAX_TENSORS, 32), ("key", n_keys, MAX_KEYS, 13)):
        if count > cap or count * least > h.left():
            most = min(cap, h.left() // least)
            h.fail(f"claims {count} {what}{'s' * (count != 1)}; a file of {h.size} bytes can have {most}")
    metadata = _metadata(h, n_keys)
    refuse_other_kinds(h.path, metadata)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment > MAX_ALIGNMENT or alignment & (alignment - 1):
        h.fail(f"general.alignment is {alignment!r}; expected a power of two up to {MAX_ALIGNMENT}")
    infos = _tensor_infos(h, n_tensors)
    start = -(-h.pos // alignment) * alignment
    tensors = tuple(_placed(h, info, start, alignment) for info in infos)
    _check_places(h, tensors, alignment)
    return GgufFile(h.path, version, metadata, tensors, h.size)


def refuse_other_kinds(path: Path, metadata: dict[str, Any]) -> None:
    """Refuse files that are no language model of a supported architecture, saying what they are.

    This comes before the tensors: for a file of another architecture, their types are beside the point.
    """
    kind = metadata.get("general.type", "model")
    arch = metadata.get("general.architecture")
    no, count = metadata.get("split.no"), metadata.get("split.count")
    if arch is None and isinstance(no, int) and isinstance(count, int) and 0 < no < count:
        return  # only the first part of a split model has the metadata
    if arch is not None and not isinstance(arch, str):
        raise ModelError(f"{path}: general.architecture is {arch!r}; expected a text", _AGAIN)
    if arch == "clip":
        kind = "mmproj"
    if not isinstance(kind, str) or kind != "model":
        what = _NOT_MODELS.get(str(kind), f"of the kind {str(kind)[:40]!r}")
        raise ModelError(f"{path}: is {what}; expected a language model", "name the GGUF file of the model itself")
    if arch is None:
        raise ModelError(f"{path}: the required key general.architecture is missing", "the file is no language model")
    family_for_gguf(arch, str(path))


def _metadata(h: _Header, n_keys: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for i in range(n_keys):
        key = h.string(f"the name of key {i}", MAX_NAME)
        if not key:
            h.fail(f"key {i} has no name")
        if key in out:
            h.fail(f"the key {key!r} occurs twice")
        out[key] = _value(h, h.unpack("I", f"the type of {key!r}"), repr(key), 0)
    return out


def _value(h: _Header, kind: int, what: str, depth: int) -> Any:
    if kind == _STRING:
        return h.string(what, errors="replace")
    if kind == _ARRAY:
        return _array(h, what, depth + 1)
    if kind not in _SCALARS:
        h.fail(f"{what} has value type {kind}; expected 0 to 12")
    value = h.unpack(_SCALARS[kind], what)
    return bool(value) if kind == _BOOL else value


def _array(h: _Header, what: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        h.fail(f"{what} nests arrays deeper than {MAX_DEPTH}")
    kind, count = h.unpack("I", what), h.unpack("Q", what)
    if kind in _SCALARS:
        least = struct.calcsize(_SCALARS[kind])
    elif kind in (_STRING, _ARRAY):
        least = 8 if kind == _STRING else 12
    else:
        h.fail(f"{what} is an array of value type {kind}; expected 0 to 12")
    if count * least > h.left():
        h.fail(f"{what} claims {count} entries; at most {h.left() // least} are possible here")
    if kind == _STRING:
        return _strings(h, count, what)
    if kind == _ARRAY:
        return [_array(h, what, depth + 1) for _ in range(count)]
    start = h.need(count * least, what)
    values = np.frombuffer(h.buffer, "<" + _SCALARS[kind], count, start).copy()
    return values.astype(bool) if kind == _BOOL else values


def _strings(h: _Header, count: int, what: str) -> list[str]:
    """An array of strings; a tokenizer has some 300,000 of them, so this loop is kept lean."""
    out = []
    for i in range(count):
        start = h.need(8, what)
        length = int.from_bytes(h.buffer[start : start + 8], "little")
        if length > min(MAX_STRING, h.left()):
            h.fail(f"entry {i} of {what} claims {length} bytes; at most {min(MAX_STRING, h.left())} are possible here")
        start = h.need(length, what)
        try:
            out.append(h.buffer[start : start + length].decode())
        except UnicodeDecodeError:
            h.fail(f"entry {i} of {what} is not UTF-8: {h.buffer[start : start + length][:40]!r}")
    return out


_Info = tuple[str, tuple[int, ...], int, int]  # name, row-major shape, ggml type, offset in the data section


def _tensor_infos(h: _Header, n_tensors: int) -> list[_Info]:
    out: list[_Info] = []
    seen: set[str] = set()
    for i in range(n_tensors):
        name = h.string(f"the name of tensor {i}", MAX_NAME)
        if not name or name in seen:
            h.fail(f"the tensor {name!r} occurs twice" if name else f"tensor {i} has no name")
        seen.add(name)
        n_dims = h.unpack("I", f"tensor {name!r}")
        if not 1 <= n_dims <= MAX_DIMS:
            h.fail(f"tensor {name!r} has {n_dims} dimensions; expected 1 to {MAX_DIMS}")
        at = h.need(8 * n_dims + 12, f"tensor {name!r}")
        *dims, type_id, offset = struct.unpack_from(f"<{n_dims}QIQ", h.buffer, at)
        out.append((name, tuple(reversed(dims)), type_id, offset))
    return out


def _placed(h: _Header, info: _Info, start: int, alignment: int) -> StoredTensor:
    """One tensor with its format, size and absolute offset; the sizes are exact integers, so nothing overflows."""
    name, shape, type_id, offset = info
    if any(not 1 <= d < 1 << 62 for d in shape) or n_elements(shape) >= 1 << 62:
        h.fail(f"tensor {name!r} has the impossible shape {list(shape)}")
    fmt = GGML_TYPES.get(type_id)
    if fmt is None or not fmt.supported:
        h.fail(
            f"tensor {name!r} has the type {ggml_type_name(type_id)}, which is not supported",
            "use a Q4_K_M, Q8_0, BF16 or another common version of this model",
        )
    if shape[-1] % fmt.block:
        h.fail(f"tensor {name!r} has rows of {shape[-1]}; {fmt.name} needs a multiple of {fmt.block}")
    if offset % alignment:
        h.fail(f"tensor {name!r} lies at offset {offset}; expected a multiple of {alignment}")
    n_bytes = n_elements(shape) // fmt.block * fmt.n_bytes
    return StoredTensor(name, shape, fmt.name, 0, start + offset, n_bytes)


def _check_places(h: _Header, tensors: tuple[StoredTensor, ...], alignment: int) -> None:
    """No tensor past the end, none over another, and no second file behind the last."""
    end, last = h.pos, "the header"
    ordered = sorted(tensors, key=lambda t: t.offset)
    needed = ordered[-1].offset + ordered[-1].n_bytes if ordered else 0
    for t in ordered:
        if t.offset < end:
            h.fail(f"tensor {t.name!r} at {t.offset} overlaps {last}, which ends at {end}")
        end, last = t.offset + t.n_bytes, f"tensor {t.name!r}"
        if end > h.size:
            h.fail(
                f"is truncated: it has {h.size} of {max(needed, end)} bytes; first damaged tensor {t.name!r}",
                "the download stopped early; resume it or download the file again",
            )
    for at in {end, -(-end // alignment) * alignment}:
        if h.source.pread(4, at) == MAGIC:
            h.fail(
                f"holds a second GGUF file at {at}: split files were joined with cat",
                "keep the split files as they are and name one of them, or join them with `llama-gguf-split --merge`",
            )
