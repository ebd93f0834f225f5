"""Measured rates kept between runs, in one private file for each machine and build of the kernels."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hetero.machine.serialize import record_from
from hetero.machine.types import Machine, Rates, UsageError

_SCHEMA = "hetero.rates"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """Rates from the cache and their age in seconds; None with a note where a damaged file was found."""

    rates: Rates | None = None
    age: float = 0.0
    note: str = ""


def fingerprint(machine: Machine) -> dict[str, Any]:
    """What the rates depend on; other values mean another machine, or the same one set up differently."""
    return {
        "cpu_model": machine.cpu_model,
        "cpus": list(machine.cpus),
        "memory_total_bytes": _rounded(machine.memory_total_bytes),
        "isa_tier": machine.isa_tier,
        "kernels": _kernels_build(machine.isa_tier),
        "kernel": machine.kernel,
    }


def load_rates(machine: Machine, folder: Path) -> Kept:
    """The rates of this machine that `store_rates` put into `folder`, if there are any."""
    path = _path(machine, folder)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, Mapping) or data.get("schema") != _SCHEMA or data.get("version") != _VERSION:
            raise ValueError("not a file of rates of this version")
        if data.get("fingerprint") != fingerprint(machine):
            raise ValueError("rates of another machine")
        age = time.time() - float(data["measured_at"])
        return Kept(record_from(Rates, data["rates"], "rates"), max(0.0, age))
    except FileNotFoundError:
        return Kept()
    except OSError as error:
        return Kept(note=f"{path} cannot be read ({error.strerror})")
    except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
        return Kept(note=f"{path} is damaged ({error})")


def store_rates(machine: Machine, rates: Rates, folder: Path) -> None:
    """Keep the rates (mode 0600), all at once or not at all; raises OSError."""
    body = {
        "schema": _SCHEMA,
        "version": _VERSION,
        "fingerprint": fingerprint(machine),
        "measured_at": time.time(),
        "rates": dataclasses.asdict(rates),
    }
    path = _path(machine, folder)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(body, file)
        temporary.replace(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def with_rates(machine: Machine, rates: Rates | None) -> Machine:
    """The machine with its measured rates; the measured link replaces the first GPU's nominal one."""
    devices = machine.devices
    if rates and rates.pcie and devices:
        devices = (dataclasses.replace(devices[0], pcie_bytes_per_s=rates.pcie), *devices[1:])
    return dataclasses.replace(machine, rates=rates, devices=devices)


def _path(machine: Machine, folder: Path) -> Path:
    text = json.dumps(fingerprint(machine), sort_keys=True)
    return folder / f"rates-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def _rounded(n_bytes: int) -> int:
    """Whole GiB: firmware, crash kernels and balloons move the total by a little between starts."""
    return round(n_bytes / (1 << 30)) << 30


def _kernels_build(tier: str | None) -> list[int]:
    """Size and time of the tier's library: new kernels have new rates."""
    if tier is None:
        return []
    from hetero.native.library import library_path

    path = library_path(tier)
    try:
        status = path.stat() if path else None
    except OSError:
        status = None
    return [status.st_size, status.st_mtime_ns] if status else []
