"""GGUF models in several files, found from any one of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hetero.machine.types import ModelError
from hetero.models.formats import StoredTensor
from hetero.models.gguf_file import GgufFile, read_gguf
from hetero.models.wording import counted

_SHARD = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_MIXED = "the files come from different uploads; download all of them again from one place"


def read_gguf_set(
    path: Path, read: Callable[[Path], GgufFile] = read_gguf, exists: Callable[[Path], bool] = Path.exists
) -> tuple[list[GgufFile], list[StoredTensor]]:
    """All files of the model that `path` is or is a part of, in order, and all their tensors.

    The tensors' file numbers index the list; `read` and `exists` reach files that are not on this disk. Raises
    ModelError naming every missing file.
    """
    first = read(path)
    count = first.count("split.count", 1)
    if count <= 1:
        files = [first]
    else:
        paths = _siblings(path, first, count, exists)
        files = [first if p == path else read(p) for p in paths]
        _check_set(files, count)
    tensors = [replace(t, file=i) for i, f in enumerate(files) for t in f.tensors]
    _check_names(files, tensors)
    return files, tensors


def _siblings(path: Path, first: GgufFile, count: int, exists: Callable[[Path], bool]) -> list[Path]:
    match = _SHARD.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelError(
            f"{path}: is part {first.count('split.no', 0) + 1} of {count}, but its name does not end in "
            f"-{first.count('split.no', 0) + 1:05d}-of-{count:05d}.gguf",
            "give the parts back their original names, so that the others can be found",
        )
    if count > 10_000:
        raise ModelError(f"{path}: claims to be one of {count} parts; expected at most 10000", _MIXED)
    paths = [path.with_name(f"{match['stem']}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
    missing = [p.name for p in paths if not exists(p)]
    if missing:
        raise ModelError(
            f"{path}: {len(missing)} of {count} parts {'is' if len(missing) == 1 else 'are'} missing: "
            f"{', '.join(map(repr, missing))}",
            f"download them into {path.parent}",
        )
    return paths


def _check_set(files: list[GgufFile], count: int) -> None:
    total = files[0].count("split.tensors.count", 0)
    for i, f in enumerate(files):
        found = (f.count("split.no", 0), f.count("split.count", 1), f.count("split.tensors.count", 0))
        if found != (i, count, total):
            raise ModelError(
                f"{f.path}: says part {found[0] + 1} of {found[1]} with {found[2]} tensors in all; expected part "
                f"{i + 1} of {count} with {total}",
                _MIXED,
            )
    have = sum(len(f.tensors) for f in files)
    if have != total:
        raise ModelError(f"{files[0].path}: the parts hold {counted(have, 'tensor')}; expected {total}", _MIXED)


def _check_names(files: list[GgufFile], tensors: list[StoredTensor]) -> None:
    seen: dict[str, int] = {}
    for t in tensors:
        if t.name in seen:
            raise ModelError(
                f"{files[t.file].path}: the tensor {t.name!r} is also in {files[seen[t.name]].path.name!r}", _MIXED
            )
        seen[t.name] = t.file
