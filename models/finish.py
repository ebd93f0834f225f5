"""Makes written files durable while the next one is packed: packing keeps CPUs busy, syncing keeps the disk busy."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from hetero.models.journal import Journal, sync_directory
from hetero.models.pack import Packed


class Finisher:
    """Syncs, renames and journals one file at a time, in order, on a thread of its own.

    Errors of the system come out of the next call, or of the `with` statement's end. A file that was handed over is
    finished also where an error ends the statement, so that the next run need not write it again.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hetero-sync")
        self._last: Future[None] | None = None

    def __enter__(self) -> Finisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
        if kind is None:
            self.wait()

    def finish(self, fd: int, part: Path, final: Path, packed: Packed) -> None:
        """Takes over `part`, open as `fd` and wholly written, to become `final`; `wait` has to come before."""
        assert self._last is None
        self._last = self._thread.submit(self._finish, fd, part, final, packed)

    def wait(self) -> None:
        """Returns when all files that were handed over are durable; raises the OSError that prevented it."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _finish(self, fd: int, part: Path, final: Path, packed: Packed) -> None:
        try:
            os.fsync(fd)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        os.replace(part, final)
        sync_directory(final.parent)
        self.journal.add(final.name, packed)
