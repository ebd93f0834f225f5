"""A Machine as JSON and back: what `probe --json` writes is what can be planned for elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hetero.machine.types import Machine, TierStatus, UsageError

SCHEMA = "hetero.machine"
VERSION = 1

_INTS = frozenset({"visible_cpus", "memory_bytes", "memory_total_bytes", "disk_free_bytes"})
_INT_LISTS = frozenset({"cpus", "spare_cpus", "gpu_memory_bytes"})
_TEXT_LISTS = frozenset({"gpus", "notes"})


def to_json(machine: Machine) -> dict[str, Any]:
    """A JSON object with `schema` and `version` first."""
    return {"schema": SCHEMA, "version": VERSION, **dataclasses.asdict(machine)}


def from_json(data: object) -> Machine:
    """The Machine of a decoded JSON value; unknown keys are ignored. Raises UsageError naming the bad key."""
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        raise UsageError(f"this is not a machine file: schema {SCHEMA!r} expected", "hetero probe --json > FILE")
    if data.get("version") != VERSION:
        raise UsageError(f"machine file has version {data.get('version')!r}, this hetero reads {VERSION}")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Machine):
        if field.name in data:
            values[field.name] = _value(field.name, data[field.name])
        elif field.default is dataclasses.MISSING:
            raise UsageError(f"machine file lacks {field.name!r}")
    return Machine(**values)


def _value(name: str, value: object) -> object:
    if name == "tiers":
        return tuple(_tier(item) for item in _sequence(name, value))
    if name in _INT_LISTS:
        return tuple(_checked(name, item, int) for item in _sequence(name, value))
    if name in _TEXT_LISTS:
        return tuple(_checked(name, item, str) for item in _sequence(name, value))
    if name == "isa_tier" and value is None:
        return None
    return _checked(name, value, int if name in _INTS else str)


def _tier(value: object) -> TierStatus:
    if not isinstance(value, Mapping):
        raise UsageError(f"machine file: 'tiers' must hold objects, found {value!r}")
    kinds: dict[str, type[int] | type[str]] = {"name": str, "built": bool, "usable": bool, "reason": str}
    return TierStatus(**{key: _checked(f"tiers.{key}", value.get(key), kind) for key, kind in kinds.items()})


def _sequence(name: str, value: object) -> list[object] | tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"machine file: {name!r} must be a list, found {value!r}")
    return value


def _checked(name: str, value: Any, kind: type[int] | type[str]) -> Any:
    if not isinstance(value, kind):
        raise UsageError(f"machine file: {name!r} must be {kind.__name__}, found {value!r}")
    # bool is a subclass of int, and `true` CPUs would pass for one.
    if kind is int and (value is True or value is False or int(value) < 0):
        raise UsageError(f"machine file: {name!r} must be a number of 0 or more, found {value!r}")
    return value
