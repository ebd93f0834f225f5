"""`hetero convert`: from a checkpoint to a store, streaming, resumable at any point, never half visible.

Everything is written into `DST.tmp`, file by file (`*.part`, fsync, rename, journal), and renamed at the end.
The finished tree depends on the source and the options alone, not on interruptions.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from hetero.machine.types import TierError, UsageError
from hetero.models.checkpoint import open_checkpoint
from hetero.models.conversion import Conversion, ConvertReport
from hetero.models.destination import Destination, default_destination
from hetero.models.importance import Importance
from hetero.models.load import load_source_text
from hetero.models.lock import locked
from hetero.models.progress import Progress, silent
from hetero.models.store import VerifyReport, is_store, verify
from hetero.models.treatment import MIXED, checked, planned
from hetero.native import Kernels

__all__ = ["ConvertReport", "VerifyReport", "check_source", "convert", "verify"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)


def convert(
    src: Path,
    dst: Path | None = None,
    *,
    experts: str = "keep",
    dense: str | None = None,
    bits: float | None = None,
    importance: Importance | None = None,
    kernels: Kernels,
    progress: Progress | None = None,
    force: bool = False,
) -> ConvertReport:
    """Converts the checkpoint `src` into the store `dst` (default: beside it), or finishes an interrupted run.

    `experts` keeps the source's formats or quantises the experts (q4, q8, bf16, or mixed within `bits` on average);
    `importance` says what counts in quantising them; `dense` is a format for the dense matrices. `force` skips the
    check for free space and replaces a different store at `dst`. Raises UsageError, ModelError (bad source) or
    TierError (disk full, not writable, in use by another process); finished layers stay in `DST.tmp` for the next run.
    """
    treatment = replace(checked(experts, dense, bits, importance is not None), importance=importance)
    check_source(src)
    target = Destination(dst.absolute() if dst is not None else default_destination(src))
    with closing(open_checkpoint(src)) as source, _disk_errors(target), tempfile.TemporaryDirectory() as scratch:
        load_source_text(source).save(Path(scratch))
        target.check_parent()
        treatment = planned(treatment, source, kernels, progress or silent)
        with locked(target.lock):
            job = Conversion(
                source,
                target,
                treatment.layout(source),
                Path(scratch),
                treatment.label,
                kernels,
                progress or silent,
                mixed=treatment.experts == MIXED,
                importance=importance,
            )
            return job.run(force)


def check_source(src: Path) -> None:
    """Raises UsageError for a store, which has been converted."""
    if is_store(src):
        raise UsageError(f"{src} is a store already", "name a checkpoint to convert, or use --verify")


@contextmanager
def _disk_errors(target: Destination) -> Iterator[None]:
    """Turns the system's errors while writing into TierError with what to do next."""
    try:
        yield
    except OSError as error:
        where = target.path if error.filename in (None, str(target.lock)) else error.filename
        if error.errno in _FULL:
            kept = f"; what is finished stays in {target.tmp}" if target.tmp.is_dir() else ""
            raise TierError(
                f"{where}: disk full ({error.strerror}){kept}", "free some space and run the same command again"
            ) from None
        if error.errno in _REFUSED:
            raise TierError(
                f"{where} cannot be written: {error.strerror}", "name a writable destination: hetero convert SRC DST"
            ) from None
        raise TierError(f"{where}: {error.strerror}", "check the disk, then run the same command again") from None
