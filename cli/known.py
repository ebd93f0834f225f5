"""The models that were converted or used here, kept in the user's state folder, the latest first."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from hetero.cli import output
from hetero.cli.xdg import folder, private_dir, private_file

_FILE = "models.json"
_LOCK = "models.lock"
_MOST = 100


@dataclass(frozen=True, slots=True)
class Known:
    """A store or checkpoint by its real path, and when it was used last (seconds since 1970)."""

    path: str
    when: float


def known() -> list[Known]:
    """All that are kept; [] where there is no file, or none that this version wrote."""
    try:
        rows = json.loads((folder("state") / _FILE).read_bytes())
        return [Known(str(row["path"]), float(row["when"])) for row in rows if os.path.isabs(row["path"])]
    except (OSError, ValueError, TypeError, KeyError, RuntimeError, RecursionError):
        return []


def remember(*paths: Path) -> None:
    """Put models at the head of the list. What cannot be written is a line of the log: the work itself is done."""
    now = time.time()
    first = [Known(os.path.realpath(path), now) for path in paths]
    names = {row.path for row in first}
    _change(lambda rows: [*first, *(row for row in rows if row.path not in names)][:_MOST])


def forget(path: str) -> None:
    """Take a model off the list."""
    _change(lambda rows: [row for row in rows if row.path != path])


def _change(edit: Callable[[list[Known]], list[Known]]) -> None:
    """Write the list as `edit` makes it of the old one, as a whole; other processes wait meanwhile."""
    try:
        place = private_dir("state")
        with open(private_file(place / _LOCK), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            rows = edit(known())
            part = private_file(place / f"{_FILE}.part")
            part.write_text(json.dumps([asdict(row) for row in rows]) + "\n", encoding="utf-8", errors="replace")
            os.replace(part, place / _FILE)
    except (OSError, RuntimeError) as problem:
        output.log.info("the list of models is not kept: %s", problem)
