"""Checkpoints as users download them: a GGUF file or its parts, or a Hugging Face directory of safetensors.

Opening reads and checks headers only. Tensors have canonical names, are read by `pread` where and when they are
needed, and experts can be read one at a time, so a model of any size costs no more memory than what is asked for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from hetero.machine.types import ModelError, ModelIndex, TensorInfo, TierError, UsageError
from hetero.models import iquants
from hetero.models.assemble import Tensor, assemble_gguf
from hetero.models.assemble_hf import assemble_hf, left_out
from hetero.models.config import ModelConfig
from hetero.models.families import family_for_hf, family_of_gguf
from hetero.models.formats import StoredTensor, plain_to_f32, row_bytes
from hetero.models.gguf_file import MAGIC
from hetero.models.gguf_split import read_gguf_set
from hetero.models.safetensors_file import CONFIG, INDEX, read_hf_directory
from hetero.models.sniff import explain, first_bytes

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


class Checkpoint:
    """An opened checkpoint; see the module's text. Close it, or use it in a `with` statement."""

    def __init__(
        self,
        path: Path,
        kind: Literal["gguf", "safetensors"],
        files: tuple[Path, ...],
        tensors: Mapping[str, Tensor],
        config: ModelConfig,
        name: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        hf_config: Mapping[str, Any] | None = None,
        directory: Path | None = None,
        notes: tuple[str, ...] = (),
        mtp: tuple[StoredTensor, ...] = (),
        left_out: str = "",
    ) -> None:
        self.path, self.kind, self.files, self.config = path, kind, files, config
        self.metadata, self.hf_config, self.directory = metadata or {}, hf_config or {}, directory
        self.notes = notes
        """What was ignored or assumed, one sentence each."""
        self.mtp = mtp
        """Multi-token prediction tensors: in no index and not loaded; `convert` keeps them."""
        self.left_out = left_out
        """What is neither loaded nor kept by `convert`, in words (vision towers); empty for nothing."""
        self._tensors = tensors
        self._stamps = tuple(map(_stamp, files))
        self._fds: dict[int, int] = {}
        self._lock = threading.Lock()
        self.index = make_index(name, config, tensors)

    def info(self, name: str) -> TensorInfo:
        """The tensor's shape, format and size. KeyError where there is none of that name."""
        return self._tensors[name].info

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def file_of(self, name: str, expert: int = 0) -> Path:
        """The file that holds a tensor, or the matrix of one expert of it."""
        matrices = self._tensors[name].matrices
        return self.files[matrices[min(expert, len(matrices) - 1)].stored.file]

    def read_rows(self, name: str, expert: int | None = None, start: int = 0, stop: int | None = None) -> Bytes:
        """Raw rows [start, stop) of a tensor as uint8 [rows, row_bytes] in ggml's row layout of its format.

        `expert` picks one matrix of a stacked [E, out, in] tensor; otherwise leading dimensions are flattened.
        Rows of q and k come in Hugging Face's order. Raises ModelError where the file has become shorter, TierError
        where the disk fails.
        """
        tensor = self._tensors[name]
        shape, matrices = tensor.info.shape, tensor.matrices
        rows = sum(m.n for m in matrices)
        base = 0
        if expert is not None:
            if len(shape) != 3 or not 0 <= expert < shape[0]:
                raise IndexError(f"{name} of shape {shape} has no expert {expert}")
            rows = shape[1]
            base = expert * rows
        stop = rows if stop is None else stop
        if not 0 <= start <= stop <= rows:
            raise IndexError(f"{name} has {rows} rows, so not [{start}, {stop})")
        per_matrix = matrices[0].n
        pieces = []
        row, stop = base + start, base + stop
        while row < stop:
            index, inside = divmod(row, per_matrix)
            count = min(stop - row, per_matrix - inside)
            pieces.append(matrices[index].rows(self.read_stored, inside, inside + count))
            row += count
        if not pieces:
            return np.empty((0, row_bytes(tensor.info.format, shape[-1])), dtype=np.uint8)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def read_stored(self, tensor: StoredTensor, start: int, out: Bytes) -> None:
        """Fills `out` with the bytes from `start` of a tensor as it lies in its file. Raises as `read_rows` does."""
        view = out.reshape(-1).data
        offset, done = tensor.offset + start, 0
        path = self.files[tensor.file]
        try:
            fd = self._fd(tensor.file)
            while done < len(view):
                n = os.preadv(fd, [view[done:]], offset + done)
                if n == 0:
                    raise ModelError(
                        f"{path}: became shorter while it was read: no bytes at {offset + done}",
                        "leave the file alone while hetero reads it; check its size against the download page",
                    )
                done += n
        except OSError as e:
            raise TierError(f"{path}: cannot be read at {offset + done}: {e.strerror or e}", "check the disk") from None

    def _fd(self, file: int) -> int:
        with self._lock:
            fd = self._fds.get(file)
            if fd is None:
                fd = self._fds[file] = os.open(self.files[file], os.O_RDONLY | os.O_CLOEXEC)
            return fd

    def read_f32(self, name: str) -> Floats:
        """A small tensor (norm, bias, router) as float32 of `info(name).shape`.

        Raises ModelError for a quantised one: no known file quantises them.
        """
        tensor = self._tensors[name]
        info = tensor.info
        if info.format not in ("F32", "F16", "BF16"):
            raise ModelError(
                f"{self.files[tensor.matrices[0].stored.file]}: tensor {name!r} has the type {info.format}; expected "
                "F32, F16 or BF16 for a tensor of this kind",
                "try another upload of this model",
            )
        return plain_to_f32(self.read_rows(name).reshape(-1), info.format).reshape(info.shape)

    def check_unchanged(self) -> None:
        """Raises ModelError unless every file is still what it was when it was opened, TierError where one is gone."""
        for path, stamp in zip(self.files, self._stamps, strict=True):
            if _stamp(path) != stamp:
                raise ModelError(
                    f"{path}: was changed while it was read; expected one file from beginning to end",
                    "leave the file alone while hetero reads it, then run the same command again",
                )

    def close(self) -> None:
        """Close the files; reading again opens them again."""
        with self._lock:
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stamp(path: Path) -> tuple[int, int, int, int]:
    """What changes when a file is written to or replaced. Raises TierError where it cannot be found out."""
    try:
        found = path.stat()
    except OSError as e:
        raise TierError(f"{path}: cannot be read: {e.strerror or e}", "check the disk") from None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def make_index(name: str, config: ModelConfig, tensors: Mapping[str, Tensor]) -> ModelIndex:
    """What planning needs of a checkpoint whose headers have been checked."""
    moe = config.moe
    return ModelIndex(
        name=name,
        architecture=config.model_type,
        tensors=tuple(t.info for t in tensors.values()),
        n_layers=config.n_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_context=config.max_context,
        n_experts=moe.n_experts if moe else 0,
        top_k=moe.top_k if moe else 0,
        kv_elements_per_token=config.kv_elements_per_token,
        kv_padding=config.kv_padding,
        recurrent_bytes=config.recurrent_bytes,
        attended=config.attended,
        index_elements=config.index_elements,
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Open and wholly check a GGUF file (any of its parts) or a Hugging Face directory (or a file inside one).

    No weights are read. Raises ModelError for bad files, UsageError for a path that is no model, TierError where the
    disk fails.
    """
    path = Path(path)
    if os.path.isdir(path):  # unlike Path.is_dir it raises for no name, and first_bytes says what is wrong
        if not os.access(path, os.R_OK | os.X_OK):
            raise UsageError(f"{path}: may not be read by this user", "check the folder's permissions")
        if not (path / CONFIG).exists():
            ggufs = _gguf_models(path)
            if ggufs:
                return _open_gguf(_only(path, ggufs))
        return _open_hf(path)
    head = first_bytes(path)
    if head[:4] == MAGIC or path.suffix == ".gguf":
        return _open_gguf(path)
    if path.name in (CONFIG, INDEX) or (head[8:9] == b"{" and path.suffix == ".safetensors"):
        return _open_hf(path.parent)
    raise explain(path, head, "a GGUF file or a directory of safetensors")


def _gguf_models(path: Path) -> list[Path]:
    """The GGUF models in a directory, each by its first part, without vision projectors."""
    names = [p for p in sorted(path.glob("*.gguf")) if not p.name.startswith("mmproj")]
    return [p for p in names if "-of-" not in p.name or "-00001-of-" in p.name] or names[:1]


def _only(path: Path, models: list[Path]) -> Path:
    if len(models) > 1:
        raise ModelError(
            f"{path}: holds {len(models)} models: {', '.join(repr(p.name) for p in models[:8])}",
            f"name one of them, such as {models[0]}",
        )
    return models[0]


def _open_gguf(path: Path) -> Checkpoint:
    files, stored = read_gguf_set(path)
    meta = files[0].metadata
    where = str(files[0].path)
    family = family_of_gguf(meta, where)
    paths = tuple(f.path for f in files)
    config, tensors, mtp = assemble_gguf(family, meta, stored, paths)
    name = meta.get("general.name")
    shown = name if isinstance(name, str) and name.strip() else path.stem
    notes = iquants.notes(m.stored.format for tensor in tensors.values() for m in tensor.matrices)
    return Checkpoint(path, "gguf", paths, tensors, config, shown, metadata=meta, notes=notes, mtp=mtp)


def _open_hf(path: Path) -> Checkpoint:
    found = read_hf_directory(path)
    family = family_for_hf(found.config, str(path / CONFIG))
    config, tensors, notes, mtp = assemble_hf(family, found)
    return Checkpoint(
        path,
        "safetensors",
        found.files,
        tensors,
        config,
        _directory_name(path),
        hf_config=found.config,
        directory=path,
        notes=found.notes + notes,
        mtp=mtp,
        left_out=left_out(found.tensors),
    )


def _directory_name(path: Path) -> str:
    """The model's name; in a hub cache (`models--ORG--NAME/snapshots/REVISION`) that of the repository."""
    path = path.absolute()
    if path.parent.name == "snapshots":
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name
