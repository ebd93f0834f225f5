"""Progress of long work, told to whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and what is being done; always on the thread that started the work."""


def silent(done: int, total: int, what: str) -> None:
    """Tells nobody."""


@dataclass(slots=True)
class Meter:
    """Counts bytes towards `total` and passes them on."""

    progress: Progress
    total: int
    what: str = ""
    done: int = 0

    def tick(self, n_bytes: int) -> None:
        """`n_bytes` more are done."""
        self.done += n_bytes
        self.progress(self.done, self.total, self.what)
