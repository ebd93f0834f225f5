"""Where hetero keeps the user's own files: XDG directories, readable by the user alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Kind = Literal["config", "state", "cache"]

_FALLBACK: dict[Kind, str] = {"config": ".config", "state": ".local/state", "cache": ".cache"}


def private_dir(kind: Kind) -> Path:
    """The `hetero` folder under the XDG directory of that kind, made with mode 0700; raises OSError."""
    path = folder(kind)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def folder(kind: Kind) -> Path:
    """Where that folder is or would be; nothing is made. Raises RuntimeError where the user has no home."""
    # The XDG specification says that relative paths in these variables are to be ignored.
    base = Path(os.environ.get(f"XDG_{kind.upper()}_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / _FALLBACK[kind]
    return base / "hetero"


def private_file(path: Path) -> Path:
    """Make `path` exist with mode 0600 before another library appends to it; raises OSError."""
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
    return path
