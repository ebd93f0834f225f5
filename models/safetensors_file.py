"""Hugging Face directories: config.json, the index and the headers of safetensors, checked before any weight is read.

The index is the authority on which shard holds a tensor; it names files of the directory itself, never paths.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from hetero.machine.types import ModelError, TierError, UsageError
from hetero.models.formats import SAFETENSORS_BITS, StoredTensor, n_elements
from hetero.models.shards import check_copies, unused_shards
from hetero.models.sniff import PICKLE_HINT, explain, first_bytes
from hetero.models.wording import counted

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
MAX_HEADER = 100_000_000
MAX_JSON = 256 << 20
_AGAIN = "the download is damaged or incomplete; download it again and compare its checksum"
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "consolidated*.pth", "*.ckpt")


@dataclass(frozen=True, slots=True)
class HfDirectory:
    """The checked headers of a directory. Tensors' file numbers index `files`; offsets are absolute."""

    path: Path
    config: dict[str, Any]
    files: tuple[Path, ...]
    tensors: tuple[StoredTensor, ...]
    notes: tuple[str, ...] = ()


def read_json(path: Path, limit: int = MAX_JSON) -> dict[str, Any]:
    """A JSON object from a file, refusing duplicate keys. Raises ModelError, UsageError or TierError."""
    head = first_bytes(path)
    try:
        size = path.stat().st_size
        if size > limit:
            raise ModelError(f"{path}: has {size} bytes; expected a JSON text of at most {limit}", _AGAIN)
        raw = path.read_bytes()
    except OSError as e:
        raise TierError(f"{path}: cannot be read: {e.strerror or e}", "check the disk") from None
    if head.lstrip()[:1] != b"{":
        raise explain(path, head, "a JSON object")
    return parse_json(raw, str(path))


def parse_json(raw: bytes, where: str) -> dict[str, Any]:
    """A JSON object, refusing duplicate keys. Raises ModelError."""
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except UnicodeDecodeError as e:
        raise ModelError(f"{where}: is not UTF-8 at byte {e.start}; expected a JSON object", _AGAIN) from None
    except json.JSONDecodeError as e:
        raise ModelError(f"{where}: is no JSON: {e.msg} at line {e.lineno}, column {e.colno}", _AGAIN) from None
    except (ValueError, RecursionError) as e:  # a duplicate, a number of a million digits, a million brackets
        raise ModelError(f"{where}: is no usable JSON: {e}", _AGAIN) from None
    if not isinstance(value, dict):
        raise ModelError(f"{where}: is a JSON {type(value).__name__}; expected an object", _AGAIN)
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"{twice!r} occurs twice")
    return out


def read_header(path: Path, file: int) -> list[StoredTensor]:
    """The tensors of one safetensors file, wholly checked; `file` is their file number."""
    head = first_bytes(path)
    if head[8:9] != b"{":
        raise explain(path, head, "a safetensors file")
    try:
        size = path.stat().st_size
        length = int.from_bytes(head[:8], "little")
        if length > MAX_HEADER or 8 + length > size:
            raise ModelError(
                f"{path}: claims a header of {length} bytes; at most {min(MAX_HEADER, size - 8)} are possible", _AGAIN
            )
        with path.open("rb") as f:
            f.seek(8)
            raw = f.read(length)
    except OSError as e:
        raise TierError(f"{path}: cannot be read: {e.strerror or e}", "check the disk") from None
    return parse_header(path, file, raw, size)


def parse_header(path: Path, file: int, raw: bytes, size: int) -> list[StoredTensor]:
    """The tensors of a safetensors file of `size` bytes by the JSON text of its header, wholly checked."""
    length = len(raw)
    header = parse_json(raw, f"{path}: the header")
    header.pop("__metadata__", None)
    tensors = [_entry(path, file, name, value, 8 + length) for name, value in header.items()]
    _check_places(path, tensors, 8 + length, size)
    return tensors


def _entry(path: Path, file: int, name: str, value: Any, start: int) -> StoredTensor:
    """One header entry, checked on its own."""
    v = value if isinstance(value, dict) else {}
    dtype, shape, span = v.get("dtype"), v.get("shape"), v.get("data_offsets")
    if not isinstance(dtype, str) or not _naturals(shape) or not _naturals(span) or len(span) != 2:
        raise ModelError(f"{path}: the header entry of tensor {name!r} is malformed: {str(value)[:80]!r}", _AGAIN)
    bits = SAFETENSORS_BITS.get(dtype)
    if bits is None:
        raise ModelError(f"{path}: tensor {name!r} has the unknown dtype {dtype!r}", "update hetero")
    total = n_elements(tuple(shape)) * bits
    if total % 8 or span[1] - span[0] != total // 8:
        raise ModelError(
            f"{path}: tensor {name!r} of shape {shape} and dtype {dtype} takes {total / 8:g} bytes, but its offsets "
            f"span {span[1] - span[0]}",
            _AGAIN,
        )
    return StoredTensor(name, tuple(shape), dtype, file, start + span[0], total // 8)


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 1 << 62 for v in value)


def _check_places(path: Path, tensors: list[StoredTensor], start: int, size: int) -> None:
    """The tensors fill the file after the header without gap or overlap, and nothing follows them."""
    end, last = start, "the header"
    ordered = sorted(tensors, key=lambda t: (t.offset, t.n_bytes))
    needed = max((t.offset + t.n_bytes for t in tensors), default=start)
    for t in ordered:
        if t.offset != end:
            kind = "overlaps" if t.offset < end else "leaves a gap after"
            raise ModelError(f"{path}: tensor {t.name!r} at {t.offset} {kind} {last}, which ends at {end}", _AGAIN)
        end, last = t.offset + t.n_bytes, f"tensor {t.name!r}"
        if end > size:
            raise ModelError(
                f"{path}: is truncated: it has {size} of {needed} bytes; first damaged tensor {t.name!r}",
                "the download stopped early; resume it or download the file again",
            )
    if size > end:
        raise ModelError(f"{path}: has {size} bytes, but its last tensor ends at {end}", _AGAIN)


def read_hf_directory(path: Path) -> HfDirectory:
    """Read and check the headers of a Hugging Face directory. Raises ModelError, UsageError or TierError."""
    config_path = path / CONFIG
    if not config_path.exists():
        raise _not_a_model(path)
    config = read_json(config_path, 16 << 20)
    index_path = path / INDEX
    if index_path.exists():
        files, tensors, notes = _indexed(path, index_path, config)
    elif (path / SINGLE).exists():
        files = (path / SINGLE,)
        tensors = read_header(files[0], 0)
        notes = _stray(path, {SINGLE})
    else:
        raise _no_weights(path)
    return HfDirectory(path, config, files, tuple(tensors), notes)


def _indexed(
    path: Path, index_path: Path, config: Mapping[str, Any]
) -> tuple[tuple[Path, ...], list[StoredTensor], tuple[str, ...]]:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index_path}: has no weight_map; expected a table of tensors and their files", _AGAIN)
    names = _shard_names(index_path, weight_map)
    missing = [n for n in names if not os.path.exists(path / n)]  # unlike Path.exists it raises for no name
    unused = unused_shards(missing, weight_map, config)
    if len(unused) < len(missing):
        raise ModelError(
            f"{path}: {len(missing)} of {counted(len(names), 'file')} of the model "
            f"{'is' if len(missing) == 1 else 'are'} missing: {', '.join(map(repr, missing))}",
            f"download them into {path}",
        )
    names = [n for n in names if n not in unused]
    files = tuple(path / n for n in names)
    number = {n: i for i, n in enumerate(names)}
    found: dict[str, StoredTensor] = {}
    copies: list[StoredTensor] = []
    notes = [f"{path / n}: is missing; it has only multi-token prediction, which is not used yet" for n in unused]
    notes += _stray(path, set(names))
    for i, file in enumerate(files):
        for t in read_header(file, i):
            home = weight_map.get(t.name)
            if home is None:
                notes.append(f"{file.name}: the tensor {t.name!r} is not in the index and is ignored")
            elif number.get(home) == i:
                found[t.name] = t
            elif home in number:
                copies.append(t)
    for name, home in weight_map.items():
        if name not in found and home in number:
            raise ModelError(
                f"{path / home}: lacks the tensor {name!r} that {INDEX} says it holds",
                "the files come from different uploads; download all of them again from one place",
            )
    notes += check_copies(found, copies, files)
    return files, list(found.values()), tuple(notes)


def _shard_names(index_path: Path, weight_map: Mapping[str, Any]) -> list[str]:
    """The files that the index names, each once, in order; anything but a plain file name is refused."""
    names: dict[str, None] = {}
    for tensor, name in weight_map.items():
        if name in names if isinstance(name, str) else False:
            continue
        plain = isinstance(name, str) and name not in ("", ".", "..") and not any(c in name for c in "/\\\0")
        if not plain or not name.endswith(".safetensors"):
            raise ModelError(
                f"{index_path}: puts the tensor {tensor!r} into {name!r}; expected the plain name of a .safetensors "
                "file in the same directory",
                "an index that points elsewhere is damaged or hostile; download the model from a place you trust",
            )
        names[name] = None
    return sorted(names)


def _stray(path: Path, used: Iterable[str]) -> tuple[str, ...]:
    known = set(used)
    stray = sorted(p.name for p in path.glob("*.safetensors") if p.name not in known)
    return tuple(f"{path / n}: is not part of the model and is ignored" for n in stray)


def _no_weights(path: Path) -> ModelError:
    shards = sorted(p.name for p in path.glob("*.safetensors"))
    if shards:
        return ModelError(f"{path / INDEX}: is missing; found {', '.join(map(repr, shards[:4]))}", "download the index")
    if any(True for pattern in _PICKLES for _ in path.glob(pattern)):
        return ModelError(f"{path}: holds only PyTorch pickles; expected .safetensors files", PICKLE_HINT)
    return ModelError(f"{path}: has a config.json but no weights; expected {SINGLE} or {INDEX}", "download the weights")


def _not_a_model(path: Path) -> ModelError | UsageError:
    names = set(os.listdir(path))
    if any(n.endswith(".safetensors") for n in names):
        return ModelError(f"{path / CONFIG}: is missing beside the .safetensors files", "download the model's config")
    if any(True for pattern in _PICKLES for _ in path.glob(pattern)):
        return ModelError(f"{path}: holds only PyTorch pickles; expected .safetensors files", PICKLE_HINT)
    return UsageError(
        f"{path}: is no model directory: it has no config.json and no .gguf file",
        "name a GGUF file or a directory with config.json and .safetensors files",
    )
