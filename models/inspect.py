"""What a checkpoint or store is, from its headers alone: no weight is read, and what is wrong is part of the answer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hetero.machine.types import HeteroError, ModelError, ModelIndex, Role, TensorInfo
from hetero.models.checkpoint import Checkpoint
from hetero.models.config import ModelConfig
from hetero.models.formats import StoredTensor
from hetero.models.gguf_file import MAGIC
from hetero.models.gguf_split import read_gguf_set
from hetero.models.load import EMBEDDING, load_source_text, open_model
from hetero.models.outline import architecture_of
from hetero.models.safetensors_file import read_hf_directory
from hetero.models.sniff import first_bytes
from hetero.models.store import Store
from hetero.models.text import TextModel

Kind = Literal["store", "gguf", "safetensors"]
_KINDS: tuple[Role, ...] = ("expert", "dense", "small")


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors of one role and format; `active_bytes` are those that one token reads. Role is None where unknown."""

    role: Role | None
    format: str
    tensors: int
    bytes: int
    active_bytes: float


@dataclass(frozen=True, slots=True)
class TextFacts:
    """The text side; `template` says where the chat template comes from, `dialect` how answers are taken apart."""

    tokens: int
    embeddings: int
    bos: str
    stops: tuple[str, ...]
    template: Literal["its own", "built in", "none"]
    dialect: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that headers tell. `index` and `config` are None where `problem` kept the model from being understood."""

    path: Path
    kind: Kind
    name: str
    architecture: str
    files: tuple[Path, ...]
    file_bytes: int
    groups: tuple[Group, ...]
    index: ModelIndex | None = None
    config: ModelConfig | None = None
    converted: str = ""
    """For a store, how its experts were treated."""
    unused: tuple[Group, ...] = ()
    """Tensors that are in the files and not loaded."""
    text: TextFacts | None = None
    text_problem: HeteroError | None = None
    notes: tuple[str, ...] = ()
    problem: HeteroError | None = None
    """What is missing, surplus or not supported."""

    @property
    def active_bytes(self) -> float:
        """Bytes of weights that one token reads."""
        return sum(group.active_bytes for group in self.groups)


def inspect(path: Path) -> Inspection:
    """Look at a store or checkpoint. Raises as `open_model` does where not even the headers can be read."""
    try:
        source = open_model(path)
    except ModelError as problem:
        return _by_headers(Path(path), problem)
    with contextlib.closing(source):
        return _of_store(source) if isinstance(source, Store) else _of_checkpoint(source)


def _of_store(store: Store) -> Inspection:
    manifest = store.manifest
    files = tuple(store.path / name for name in manifest.files)
    text, problem = _text(store)
    return Inspection(
        store.path,
        "store",
        store.index.name,
        store.index.architecture,
        files,
        sum(stored.bytes for stored in manifest.files.values()),
        _groups(store.index),
        store.index,
        store.config,
        converted=manifest.experts,
        text=text,
        text_problem=problem,
    )


def _of_checkpoint(source: Checkpoint) -> Inspection:
    text, problem = _text(source)
    return Inspection(
        source.path,
        source.kind,
        source.index.name,
        source.index.architecture,
        source.files,
        _size(source.files),
        _groups(source.index),
        source.index,
        source.config,
        unused=_raw_groups(source.mtp),
        text=text,
        text_problem=problem,
        notes=source.notes,
    )


def _by_headers(path: Path, problem: ModelError) -> Inspection:
    """What a file's or directory's own headers say of a model that is not understood; else raises `problem`."""
    try:
        if os.path.isdir(path):
            found = read_hf_directory(path)
            name = architecture_of(found.config) or str(found.config.get("model_type", ""))
            parts: tuple[Kind, str, tuple[Path, ...]] = ("safetensors", name, found.files)
            tensors: Iterable[StoredTensor] = found.tensors
        elif first_bytes(path)[:4] == MAGIC:
            files, tensors = read_gguf_set(path)
            parts = "gguf", str(files[0].metadata.get("general.architecture")), tuple(f.path for f in files)
        else:
            raise problem
    except ModelError:
        raise problem from None
    kind, architecture, paths = parts
    groups = _raw_groups(tensors)
    return Inspection(path, kind, path.name, architecture, paths, _size(paths), groups, problem=problem)


def _groups(index: ModelIndex) -> tuple[Group, ...]:
    share = index.top_k / index.n_experts if index.n_experts else 1.0
    tied = not any(info.name == "lm_head.weight" for info in index.tensors)
    found: dict[tuple[Role, str], list[TensorInfo]] = {}
    for info in index.tensors:
        found.setdefault((info.role, info.format), []).append(info)
    ordered = sorted(found.items(), key=lambda item: (_KINDS.index(item[0][0]), -_sum(item[1])))
    return tuple(
        Group(role, fmt, len(infos), _sum(infos), sum(_active(info, share, tied) for info in infos))
        for (role, fmt), infos in ordered
    )


def _active(info: TensorInfo, share: float, tied: bool) -> float:
    """Bytes of a tensor that one token reads: its experts' share; one row of an embedding that is not the head too."""
    if info.role == "expert":
        return info.n_bytes * share
    if info.name == EMBEDDING and not tied:
        return info.n_bytes / info.shape[0]
    return info.n_bytes


def _sum(infos: Iterable[TensorInfo]) -> int:
    return sum(info.n_bytes for info in infos)


def _raw_groups(tensors: Iterable[StoredTensor]) -> tuple[Group, ...]:
    found: dict[str, list[int]] = {}
    for tensor in tensors:
        found.setdefault(tensor.format, []).append(tensor.n_bytes)
    groups = [Group(None, fmt, len(sizes), sum(sizes), 0) for fmt, sizes in found.items()]
    return tuple(sorted(groups, key=lambda group: -group.bytes))


def _size(files: Iterable[Path]) -> int:
    total = 0
    for file in files:
        with contextlib.suppress(OSError):
            total += file.stat().st_size
    return total


def _text(source: Checkpoint | Store) -> tuple[TextFacts | None, HeteroError | None]:
    try:
        text = load_source_text(source)
    except HeteroError as problem:
        return None, problem
    return _facts(text, source.config.vocab_size), None


def _facts(text: TextModel, embeddings: int) -> TextFacts:
    from hetero.models.text.deepseek import DeepSeekTemplate

    built_in = isinstance(text.template, DeepSeekTemplate)
    bos = text.tokenizer.bos_id
    return TextFacts(
        text.n_tokens,
        embeddings,
        "" if bos is None else text.tokenizer.token(bos),
        tuple(sorted(text.tokenizer.token(token) for token in text.stop_ids)),
        "none" if text.template is None else "built in" if built_in else "its own",
        text.dialect.name,
        text.notes,
    )
