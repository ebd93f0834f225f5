"""`hetero models`: the stores and checkpoints that were used here, and `rm` for stores."""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hetero.cli import known, options, output, wording
from hetero.machine.types import HeteroError, UsageError
from hetero.machine.units import size_text

if TYPE_CHECKING:
    from hetero.machine.types import Machine

Kind = Literal["store", "checkpoint", "unknown"]
_WIDE = 100
"""Columns from which on paths are shown."""
_NARROW = 45
"""Columns below which a model takes several lines."""
_PATIENCE = 10.0
"""Seconds after which the models that are left are listed without a look at them."""
_UNSEEN = "not looked at"

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Listed:
    """A model of the list as it is now."""

    path: str
    name: str
    kind: Kind
    bytes: int
    fits: bool | None
    """None where it could not be planned; `state` says why."""
    state: str
    when: float


@app.callback(invoke_without_command=True)
def models(
    ctx: typer.Context,
    json: options.Json = False,
    verbose: options.Verbose = False,
    log_file: options.LogFile = None,
) -> None:
    """List the stores and checkpoints used here, with their sizes and whether they fit."""
    ctx.obj = json
    if ctx.invoked_subcommand is not None:
        return
    rows = _listed()
    if json:
        output.json_result("hetero.models", {"models": [_body(row) for row in rows]})
    elif rows:
        _show(rows)
    else:
        output.note("no model has been used here yet; hetero convert and hetero chat add theirs")


@app.command("rm", short_help="Delete a store of the list.")
def remove(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A store's name or path, as `hetero models` lists it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
    log_file: options.LogFile = None,
) -> None:
    """Delete a store that hetero wrote and that `hetero models` lists; checkpoints are never deleted."""
    from hetero.models.remove import remove as delete

    json = json or bool(ctx.obj)
    path = _store_named(name)
    if not os.path.lexists(path):
        known.forget(path)
        output.note(f"{path} is gone already and now off the list")
        if json:
            output.json_result("hetero.models.rm", {"path": path, "bytes": 0})
        return
    if not yes and not _agreed(path, json):
        output.note("nothing is deleted")
        return
    n_bytes = delete(Path(path))
    known.forget(path)
    if json:
        output.json_result("hetero.models.rm", {"path": path, "bytes": n_bytes})
    else:
        output.success(f"{path} is deleted, {size_text(n_bytes)} are free again")


def _store_named(name: str) -> str:
    """The path of the one store of the list with that name. Raises UsageError."""
    rows = known.known()
    real = os.path.realpath(name) if os.sep in name else None
    if real is not None and os.path.islink(name.rstrip(os.sep)):
        raise UsageError(
            f"{name} is a link to {real}, which would be deleted in its place",
            f"hetero models rm {shlex.quote(real)} deletes the store, and rm the link",
        )
    found = [row.path for row in rows if row.path == real or name in (os.path.basename(row.path), _name(row.path))]
    if not found:
        near = wording.nearest(name, [_name(row.path) for row in rows])
        raise UsageError(
            f"no model {name!r} is listed", f"did you mean {near}?" if near else "hetero models lists what there is"
        )
    if len(found) > 1:
        raise UsageError(f"{name!r} names {len(found)} models: {', '.join(found)}", "give the path of one of them")
    if not found[0].endswith(".hetero") and not os.path.exists(os.path.join(found[0], "manifest.json")):
        raise UsageError(f"{found[0]} is a checkpoint, which hetero did not write", "delete it yourself if you mean to")
    return found[0]


def _agreed(path: str, json: bool) -> bool:
    if json or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UsageError(f"{path} is deleted only after a question", "answer it in advance with --yes")
    output.write_question(f"delete {path}? [y/N] ")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _listed() -> list[Listed]:
    """Every model of the list, the latest first, as far as they could be looked at in `_PATIENCE` seconds."""
    rows = known.known()
    if not rows:
        return []
    from hetero.cli.rates import with_known_rates
    from hetero.machine.probe import probe

    machine = with_known_rates(probe(quick=True))
    found: queue.SimpleQueue[Listed | BaseException] = queue.SimpleQueue()
    # In a thread, as a file system that does not answer would hold any call for ever.
    threading.Thread(target=_look_at_all, args=(rows, machine, found), daemon=True).start()
    end, seen = time.monotonic() + _PATIENCE, list[Listed]()
    with contextlib.suppress(queue.Empty):
        for _ in rows:
            one = found.get(timeout=max(0.0, end - time.monotonic()))
            if isinstance(one, BaseException):
                raise one
            seen.append(one)
    return seen + [Listed(r.path, _name(r.path), "unknown", 0, None, _UNSEEN, r.when) for r in rows[len(seen) :]]


def _look_at_all(
    rows: list[known.Known], machine: Machine, found: queue.SimpleQueue[Listed | BaseException]
) -> None:
    try:
        for row in rows:
            found.put(_look(row, machine))
    except BaseException as problem:  # noqa: BLE001  whoever waits for it raises it
        found.put(problem)


def _look(row: known.Known, machine: Machine) -> Listed:
    from hetero.machine.advice import Case
    from hetero.machine.types import PlanRequest
    from hetero.models.load import open_model
    from hetero.models.store import Store

    def as_it_is(kind: Kind, n_bytes: int, fits: bool | None, state: str) -> Listed:
        return Listed(row.path, _name(row.path), kind, n_bytes, fits, state, row.when)

    if not os.path.exists(row.path):
        return as_it_is("unknown", 0, None, "gone")
    try:
        with contextlib.closing(open_model(Path(row.path))) as source:
            index = source.index
            is_store = isinstance(source, Store)
            if isinstance(source, Store):
                n_bytes = sum(stored.bytes for stored in source.manifest.files.values())
            else:
                n_bytes = sum(os.path.getsize(file) for file in source.files)
        fits = Case(index, machine, PlanRequest(force=True)).plan().fits
    except (HeteroError, OSError) as problem:
        return as_it_is("unknown", 0, None, str(problem))
    return as_it_is("store" if is_store else "checkpoint", n_bytes, fits, "fits" if fits else "does not fit")


def _name(path: str) -> str:
    return os.path.basename(path).removesuffix(".hetero")


def _show(rows: list[Listed]) -> None:
    width = output.width(sys.stdout)
    headers = ["name", "kind", "size", "here", "used"]
    cells = [[*_cells(row), *([row.path] if width >= _WIDE else [])] for row in rows]
    if width < _NARROW:
        output.pairs([(name, ", ".join(filter(None, more))) for name, *more in cells])
    else:
        output.table(cells, headers=[*headers, *(["path"] if width >= _WIDE else [])], right=(2,))
    for row in rows:
        if row.kind == "unknown" and row.state not in ("gone", _UNSEEN):
            output.note(row.state)
    if unseen := sum(row.state == _UNSEEN for row in rows):
        output.note(f"{wording.plural(unseen, 'model')} not looked at: the others took {_PATIENCE:g} seconds")


def _cells(row: Listed) -> list[str]:
    known_states = ("gone", _UNSEEN)
    state = "damaged" if row.kind == "unknown" and row.state not in known_states else row.state
    kind = row.kind if row.kind != "unknown" else ""
    return [row.name, kind, size_text(row.bytes) if row.bytes else "", state, _ago(time.time() - row.when)]


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"{wording.plural(int(seconds // size), unit)} ago"
    return "now"


def _body(row: Listed) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Listed.__slots__}
