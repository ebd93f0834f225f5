"""The rates of this machine for commands: those kept from an earlier measurement, or measured now with progress."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hetero.cli import output
from hetero.cli.xdg import folder, private_dir
from hetero.machine.types import Machine, Rates


def with_known_rates(machine: Machine) -> Machine:
    """The machine with the rates of an earlier `hetero probe`, if there was one, and their age as a note."""
    from hetero.machine.rates import load_rates

    try:
        kept = load_rates(machine, folder("cache"))
    except RuntimeError:  # no home
        return machine
    if kept.rates is None:
        return _told(machine, None, (kept.note,) if kept.note else ())
    return _told(machine, kept.rates, (*kept.rates.notes, f"rates measured {_ago(kept.age)}; --fresh measures again"))


def with_measured_rates(machine: Machine, fresh: bool) -> Machine:
    """As `with_known_rates`, but what is not known, or is to be `fresh`, is measured and kept."""
    from hetero.machine.measure import measure
    from hetero.machine.rates import store_rates

    known = machine if fresh else with_known_rates(machine)
    if known.rates is not None and (known.rates.pcie or not known.gpus):
        return known
    place = _folder()
    damage = () if known.rates else known.notes[len(machine.notes) :]
    line = output.StatusLine()
    try:
        rates = measure(machine, place, lambda done, total, what: line.show(f"measuring {what} ({done + 1}/{total})"))
    finally:
        line.clear()
    notes = (*damage, *rates.notes)
    if place is None:
        return _told(machine, rates, (*notes, "rates not kept: there is no folder for caches that can be written"))
    try:
        store_rates(machine, rates, place)
    except OSError as error:
        notes = (*notes, f"rates not kept: {place}: {error.strerror}")
    return _told(machine, rates, notes)


def _told(machine: Machine, rates: Rates | None, notes: tuple[str, ...]) -> Machine:
    from hetero.machine.rates import with_rates

    return replace(with_rates(machine, rates), notes=(*machine.notes, *notes))


def _folder() -> Path | None:
    try:
        return private_dir("cache")
    except OSError:
        return None


def _ago(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now" if seconds < 60 else "a minute ago"
