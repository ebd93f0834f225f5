"""Which files of an unfinished conversion are done: one JSON line each, appended after the file is safe on disk.

A line cut short by a crash, or of another writer, is dropped together with what follows it; its file is then simply
made again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetero.models.pack import Packed

JOURNAL = "unfinished.jsonl"


@dataclass(slots=True)
class Journal:
    """The finished files of the conversion identified by `key`, by file name."""

    path: Path
    key: str
    done: dict[str, Packed] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path, key: str) -> Journal | None:
        """The journal in `directory`, or None if there is none or it belongs to another conversion."""
        path = directory / JOURNAL
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return None
        entries = [_parse(line) for line in lines[:-1]]
        if not entries or entries[0] is None or entries[0].get("key") != key:
            return None
        journal = cls(path, key)
        for entry in entries[1:]:
            done = None if entry is None else _finished(entry)
            if done is None:
                break
            journal.done[done[0]] = done[1]
        return journal

    @classmethod
    def create(cls, directory: Path, key: str) -> Journal:
        """A new, empty journal in `directory`."""
        journal = cls(directory / JOURNAL, key)
        journal.rewrite()
        return journal

    def rewrite(self) -> None:
        """Writes the whole journal anew, without what a crash may have left at its end."""
        lines = [json.dumps({"key": self.key}), *(_line(file, packed) for file, packed in self.done.items())]
        write_safely(self.path, ("\n".join(lines) + "\n").encode())

    def add(self, file: str, packed: Packed) -> None:
        """Notes that `file` is complete and on disk."""
        with open(self.path, "ab") as journal:
            journal.write((_line(file, packed) + "\n").encode())
            journal.flush()
            os.fsync(journal.fileno())
        self.done[file] = packed


def write_safely(path: Path, data: bytes) -> None:
    """Writes a small file so that after a crash either the old or the new content is there."""
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the directory's names durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _line(file: str, packed: Packed) -> str:
    return json.dumps({"file": file, **dataclasses.asdict(packed)})


def _finished(entry: dict[str, Any]) -> tuple[str, Packed] | None:
    """A file and what packing it found, or None where the line is not one that `_line` wrote."""
    file, checksums, digests, error = (entry.get(key) for key in ("file", "checksums", "digests", "error"))
    if entry.keys() != {"file", "checksums", "digests", "error"} or not isinstance(file, str):
        return None
    if not isinstance(checksums, dict) or not all(isinstance(v, list) for v in checksums.values()):
        return None
    if not isinstance(digests, dict) or not isinstance(error, float | None):
        return None
    return file, Packed(checksums, digests, error)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
