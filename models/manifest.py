"""The store's table of contents, `manifest.json`: written as plain JSON, read with every field checked.

A manifest that passes `read_manifest` describes files that exist with the right sizes, extents that lie inside
them, and shapes that agree with the model's; whoever reads weights afterwards need not check again.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from hetero.machine.types import ModelError, ModelIndex, TensorInfo
from hetero.models.config import ModelConfig
from hetero.models.families import FAMILIES
from hetero.models.families.common import MAX_LAYERS
from hetero.models.hashing import HASH, HASHES, OLD_HASH
from hetero.models.layout import (
    EXPERT_PARTS,
    MTP_FILE,
    LayerSlot,
    Layout,
    MatrixSlot,
    MtpSlot,
    expert_name,
    matrix_dims,
)
from hetero.native import FORMATS, down_offset, expert_bytes, packed_bytes, row_bytes
from hetero.native.formats import TILE_ROWS, tile_bytes

MANIFEST = "manifest.json"
KIND = "hetero store"
MAJOR, MINOR = 2, 0
_AGAIN = "run hetero convert SRC DST --force"
_MAX_BYTES = 512 << 20
_SAFE_FILE = re.compile(
    r"(dense\.bin|mtp\.bin|small\.safetensors|experts-\d{5}\.bin|tokenizer(/[A-Za-z0-9_][\w.+-]*)+)", re.A
)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a store: its size and, for files that are not packed weights, the checksum of the whole."""

    bytes: int
    checksum: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a store says about itself. `checksums` are per piece, by tensor name or by expert file name."""

    config: ModelConfig
    index: ModelIndex
    fingerprint: str
    source_key: str
    """Identifies the source by its headers and samples of its content; cheap to compare, unlike the fingerprint."""
    experts: str
    """How experts and dense matrices were treated: `keep`, or as in `treatment.Treatment.label`."""
    layout: Layout
    checksums: Mapping[str, list[str]]
    files: Mapping[str, StoredFile]
    hash: str = HASH
    """What the checksums were made with: one of `hashing.HASHES`."""
    left_out: str = ""
    """What the source held besides, in words."""


def write_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON text that depends on the content alone."""
    layout = manifest.layout
    data = {
        "kind": KIND,
        "version": f"{MAJOR}.{MINOR}",
        "writer": f"hetero {_own_version()}",
        "complete": True,
        "hash": manifest.hash,
        "fingerprint": manifest.fingerprint,
        "source_key": manifest.source_key,
        "experts": manifest.experts,
        "config": dataclasses.asdict(manifest.config),
        "index": {f.name: getattr(manifest.index, f.name) for f in _index_facts()},
        "files": {name: _without_none(manifest.files[name]) for name in sorted(manifest.files)},
        "tensors": {slot.name: _matrix_entry(slot, manifest.checksums[slot.name]) for slot in layout.dense}
        | {info.name: {"file": "small.safetensors", **_small_entry(info)} for info in layout.small},
        "layers": {str(slot.layer): _layer_entry(slot, manifest.checksums[slot.file]) for slot in layout.layers},
    }
    if manifest.left_out:
        data["left_out"] = manifest.left_out
    if layout.mtp:
        data["mtp"] = {slot.name: _mtp_entry(slot, manifest.checksums[slot.key]) for slot in layout.mtp}
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def read_manifest(directory: Path) -> Manifest:
    """Reads and checks the manifest of the store at `directory`; raises ModelError naming what is wrong."""
    path = directory / MANIFEST
    data = _read_json(path)
    _check_version(path, data)
    try:
        manifest = _decode_manifest(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
        raise ModelError(f"{path}: {what}", _AGAIN) from None
    _check_files(directory, manifest)
    return manifest


def _own_version() -> str:
    try:
        return metadata.version("hetero")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _index_facts() -> list[dataclasses.Field[Any]]:
    """What a store keeps of its index; the facts with a default are those of models that cannot run yet."""
    required = (f for f in dataclasses.fields(ModelIndex) if f.default is dataclasses.MISSING)
    return [f for f in required if f.name != "tensors"]


def _without_none(stored: StoredFile) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(stored).items() if value is not None}


def _matrix_entry(slot: MatrixSlot, checksums: list[str]) -> dict[str, Any]:
    entry = {"file": "dense.bin", "offset": slot.offset, "length": slot.length, "shape": slot.shape}
    return entry | {"format": slot.format, "n": slot.n, "k": slot.k, "piece": slot.piece, "checksums": checksums}


def _small_entry(info: TensorInfo) -> dict[str, Any]:
    return {"shape": info.shape, "format": "F32", "source_format": info.format}


def _layer_entry(slot: LayerSlot, checksums: list[str]) -> dict[str, Any]:
    entry = {"file": slot.file} | dataclasses.asdict(slot)
    del entry["layer"]
    return entry | {"checksums": checksums}


def _mtp_entry(slot: MtpSlot, checksums: list[str]) -> dict[str, Any]:
    entry = {"offset": slot.offset, "length": slot.length, "shape": slot.shape, "format": slot.format}
    return {"file": MTP_FILE, **entry, "checksums": checksums}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():  # reading a pipe would block for ever
            raise ModelError(f"{path} is not a file", _AGAIN)
        if path.stat().st_size > _MAX_BYTES:
            raise ModelError(f"{path} has {path.stat().st_size} bytes, more than any manifest")
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path.parent} has no {MANIFEST}", _AGAIN) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not readable JSON: {error}", _AGAIN) from None
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise ModelError(f"{path} is not the manifest of a {KIND}")
    return data


def _check_version(path: Path, data: dict[str, Any]) -> None:
    version = data.get("version")
    match = re.fullmatch(r"(\d{1,6})\.(\d{1,6})", version) if isinstance(version, str) else None
    if match is None:
        raise ModelError(f"{path} has no version", _AGAIN)
    if int(match[1]) > MAJOR:
        writer = data.get("writer")
        raise ModelError(
            f"{path}: store format {version}, written by {writer}; this hetero reads up to {MAJOR}.x",
            f"use {writer} or a later hetero",
        )
    if data.get("complete") is not True:
        raise ModelError(f"{path}: the store is not complete", "run hetero convert again to finish it")


def _decode_manifest(data: dict[str, Any]) -> Manifest:
    config = decode(ModelConfig, data["config"], "config")
    files = {name: decode(StoredFile, value, name) for name, value in data["files"].items()}
    dense, small, checksums = _decode_tensors(data["tensors"], files)
    layers = []
    for number, value in data["layers"].items():
        layer = _decode_layer(int(number), dict(value), files, checksums)
        layers.append(layer)
    layers.sort(key=lambda slot: slot.layer)
    mtp = tuple(_decode_mtp(name, dict(value), files, checksums) for name, value in data.get("mtp", {}).items())
    layout = Layout(tuple(dense), tuple(layers), tuple(small), mtp)
    _check_tensors(config, layout)
    index = decode(ModelIndex, data["index"] | {"tensors": ()}, "index")
    return Manifest(
        config=config,
        index=dataclasses.replace(
            index,
            tensors=_index_tensors(layout),
            recurrent_bytes=config.recurrent_bytes,
            attended=config.attended,
            index_elements=config.index_elements,
        ),
        fingerprint=_text(data, "fingerprint"),
        source_key=_text(data, "source_key"),
        experts=_text(data, "experts"),
        layout=layout,
        checksums=checksums,
        files=files,
        hash=_hash(data),
        left_out=decode(str, data.get("left_out", ""), "left_out"),
    )


def _hash(data: dict[str, Any]) -> str:
    """What the checksums are; stores of version 1 do not say."""
    kind = OLD_HASH if data["version"].startswith("1.") else _text(data, "hash")
    if kind not in HASHES:
        raise ValueError(f"checksums are of the unknown kind {kind!r}")
    return kind


def _text(data: dict[str, Any], key: str) -> str:
    if not isinstance(data[key], str):
        raise TypeError(f"{key} is not text")
    return str(data[key])


def _decode_tensors(
    tensors: dict[str, Any], files: dict[str, StoredFile]
) -> tuple[list[MatrixSlot], list[TensorInfo], dict[str, list[str]]]:
    dense: list[MatrixSlot] = []
    small: list[TensorInfo] = []
    checksums: dict[str, list[str]] = {}
    for name, value in tensors.items():
        shape = decode(tuple[int, ...], value["shape"], f"{name}: shape")
        if not shape or min(shape) < 1:
            raise ValueError(f"{name}: shape {list(shape)}")
        n, k = matrix_dims(shape)
        if value["file"] == "small.safetensors":
            small.append(TensorInfo(name, shape, _format(value["source_format"], name), n * k * 4, "small"))
            continue
        format = _format(value["format"], name)
        offset = decode(int, value["offset"], f"{name}: offset")
        rows = decode(int, value["piece"], f"{name}: piece") // tile_bytes(format, k) * TILE_ROWS
        slot = MatrixSlot(name, shape, format, n, k, offset, packed_bytes(format, n, k), max(rows, TILE_ROWS))
        given = _matrix_entry(slot, value["checksums"])
        _same(name, given | {"shape": list(shape)}, value)
        if offset < 0 or offset % 64 or offset + slot.length > files["dense.bin"].bytes:
            raise ValueError(f"{name} lies outside dense.bin")
        checksums[name] = _hashes(value["checksums"], slot.n_pieces, name)
        dense.append(slot)
    return dense, small, checksums


def _decode_layer(
    layer: int, value: dict[str, Any], files: dict[str, StoredFile], checksums: dict[str, list[str]]
) -> LayerSlot:
    hashes = value.pop("checksums")
    file = value.pop("file")
    slot: LayerSlot = decode(LayerSlot, value | {"layer": layer}, f"layer {layer}")
    for format in slot.formats:
        _format(format, slot.file)
    if min(slot.n_experts, slot.hidden, slot.inter) < 1:
        raise ValueError(f"layer {layer} has no experts")
    gate, up, down = slot.formats
    stride = expert_bytes(gate, up, down, slot.hidden, slot.inter)
    offset = down_offset(gate, up, slot.hidden, slot.inter)
    _same(slot.file, {"file": slot.file, "stride": stride, "down_offset": offset}, value | {"file": file})
    if files[slot.file].bytes != slot.length:
        raise ValueError(f"{slot.file} has {files[slot.file].bytes} bytes, expected {slot.length}")
    checksums[slot.file] = _hashes(hashes, slot.n_experts, slot.file)
    return slot


def _decode_mtp(
    name: str, value: dict[str, Any], files: dict[str, StoredFile], checksums: dict[str, list[str]]
) -> MtpSlot:
    hashes = value.pop("checksums")
    _same(name, {"file": MTP_FILE}, {"file": value.pop("file")})
    slot: MtpSlot = decode(MtpSlot, value | {"name": name}, name)
    if min(slot.offset, slot.length) < 0 or slot.offset + slot.length > files[MTP_FILE].bytes:
        raise ValueError(f"{name} lies outside {MTP_FILE}")
    checksums[slot.key] = _hashes(hashes, slot.n_pieces, name)
    return slot


def _same(name: str, expected: dict[str, Any], given: dict[str, Any]) -> None:
    for key, value in expected.items():
        if given[key] != value:
            raise ValueError(f"{name}: {key} is {given[key]!r}, expected {value!r}")


def _hashes(value: Any, count: int, name: str) -> list[str]:
    hashes = decode(tuple[str, ...], value, f"{name}: checksums")
    if len(hashes) != count:
        raise ValueError(f"{name} has {len(hashes)} checksums, expected {count}")
    return list(hashes)


def _format(value: Any, name: str) -> str:
    if value not in FORMATS:
        raise ValueError(f"{name} has unknown format {value!r}")
    return str(value)


def _check_tensors(config: ModelConfig, layout: Layout) -> None:
    """The store holds just the tensors that a model of this config has, each in its shape."""
    family = FAMILIES.get(config.family)
    if family is None or config.n_layers > MAX_LAYERS:
        raise ValueError(f"a model of family {config.family!r} with {config.n_layers} layers is not known here")
    found = {info.name: info.shape for info in _index_tensors(layout)}
    try:
        expected = family.expected_tensors(config, found)
    except AssertionError:
        raise ValueError(f"config lacks a part that {config.family} needs") from None
    for name, want in expected.items():
        if found.get(name, want.shape if want.optional else None) != want.shape:
            what = f"has shape {list(found[name])}" if name in found else "is missing"
            raise ValueError(f"{name} {what}, expected {list(want.shape)}")
    if surplus := sorted(set(found) - set(expected)):
        raise ValueError(f"{surplus[0]} has no place in this model")


def _index_tensors(layout: Layout) -> tuple[TensorInfo, ...]:
    tensors = list(layout.small)
    for matrix in layout.dense:
        size = matrix.n * row_bytes(matrix.format, matrix.k)
        tensors.append(TensorInfo(matrix.name, matrix.shape, matrix.format, size, "dense"))
    for slot in layout.layers:
        for part, format in zip(EXPERT_PARTS, slot.formats, strict=True):
            n, k = (slot.hidden, slot.inter) if part == "down" else (slot.inter, slot.hidden)
            size = slot.n_experts * n * row_bytes(format, k)
            tensors.append(TensorInfo(expert_name(slot.layer, part), (slot.n_experts, n, k), format, size, "expert"))
    return tuple(sorted(tensors, key=lambda info: info.name))


def _check_files(directory: Path, manifest: Manifest) -> None:
    for name, stored in manifest.files.items():
        if not _SAFE_FILE.fullmatch(name) or ".." in name:
            raise ModelError(f"{directory / MANIFEST}: a store has no file {name!r}")
        try:
            size = (directory / name).stat().st_size
        except OSError:
            raise ModelError(f"{directory / name} is missing", _AGAIN) from None
        if size != stored.bytes:
            message = f"{directory / name} has {size} bytes, expected {stored.bytes}"
            raise ModelError(message, _AGAIN)


def decode(kind: Any, value: Any, where: str) -> Any:
    """Rebuilds a value of type `kind` (plain, tuple, optional, Literal or dataclass of these) from JSON.

    Raises TypeError or ValueError naming `where` if a field is missing, unknown or of another type.
    """
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        if value not in typing.get_args(kind):
            raise ValueError(f"{where} is {value!r}, expected one of {typing.get_args(kind)}")
        return value
    if origin in (typing.Union, types.UnionType):
        inner = [arg for arg in typing.get_args(kind) if arg is not type(None)]
        return None if value is None else decode(inner[0], value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{where} is not a list")
        return tuple(decode(typing.get_args(kind)[0], item, where) for item in value)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{where} is {value!r}, expected {getattr(kind, '__name__', kind)}")
    return value


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"{where} is not an object")
    hints = typing.get_type_hints(kind)
    fields = {f.name for f in dataclasses.fields(kind)}
    if unknown := sorted(set(value) - fields):
        raise ValueError(f"{where} has unknown field {unknown[0]!r}")
    return kind(**{name: decode(hints[name], item, f"{where}.{name}") for name, item in value.items()})
