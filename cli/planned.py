"""From the options of `hetero plan` to a case: which model, which machine, which request. Nothing here prints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from hetero.machine import quantities
from hetero.machine.types import Machine, TierError, UsageError


@dataclass(frozen=True, slots=True)
class Said:
    """What-if figures as they were typed."""

    machine: Path | None = None
    ram: str | None = None
    vram: str | None = None
    bandwidth: str | None = None
    pcie: str | None = None
    isa: str | None = None
    cores: int | None = None
    sockets: int | None = None
    ssd: str | None = None
    ram_speed: int | None = None
    channels: int | None = None
    gpu: str | None = None

    def figures(self) -> dict[str, object]:
        """Those that were given, for `inputs`."""
        return {
            name: str(value) if isinstance(value, Path) else value
            for name in self.__slots__
            if (value := getattr(self, name)) is not None
        }


def machine_of(said: Said, device: str) -> Machine:
    """The local machine or that of `--machine`, with what was said in place. Raises UsageError."""
    from hetero.machine.whatif import WhatIf, imagine

    what = WhatIf(
        ram=_size(said.ram, "--ram"),
        vram=None if said.vram is None else quantities.parse_bytes_or_zero(said.vram, "--vram"),
        bandwidth=_rate(said.bandwidth, "--bandwidth"),
        pcie=_rate(said.pcie, "--pcie"),
        isa=said.isa,
        cores=_count(said.cores, "--cores"),
        sockets=_count(said.sockets, "--sockets"),
        ssd=_rate(said.ssd, "--ssd"),
        ram_speed=_count(said.ram_speed, "--ram-speed"),
        channels=_count(said.channels, "--channels"),
        gpu=said.gpu,
    )
    base = _local(device) if said.machine is None else read_machine(said.machine)
    return imagine(base, what, _built()) if what.given else base


def read_machine(path: Path) -> Machine:
    """A file that `hetero probe --json` wrote. Raises UsageError for any other."""
    from hetero.machine.serialize import from_json

    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", "hetero probe --json > FILE writes one") from None
    except OSError as error:
        raise TierError(f"{path}: cannot be read: {error.strerror}", "check the path") from None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no JSON ({error})", "hetero probe --json > FILE writes one") from None
    try:
        return from_json(data)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from None


def _local(device: str) -> Machine:
    """This machine without asking torch: with rates if `hetero probe` has measured some."""
    from hetero.cli.rates import with_known_rates
    from hetero.machine.probe import probe

    return with_known_rates(probe(quick=True, device=device))


def _built() -> tuple[str, ...]:
    from hetero.native import cpu_tiers

    return tuple(tier.name for tier in cpu_tiers() if tier.built)


def _size(text: str | None, what: str) -> int | None:
    return None if text is None else quantities.parse_bytes(text, what)


def _rate(text: str | None, what: str) -> float | None:
    return None if text is None else quantities.parse_rate(text, what)


def _count(value: int | None, what: str) -> int | None:
    if value is not None and value < 1:
        raise UsageError(f"{what} is {value}; expected a whole number above 0", "hetero plan --help shows examples")
    return value
