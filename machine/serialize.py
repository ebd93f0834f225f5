"""A Machine as JSON and back: what `probe --json` writes is what can be planned for elsewhere."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from hetero.machine.types import Machine, UsageError

SCHEMA = "hetero.machine"
VERSION = 2

Record = TypeVar("Record")
_LARGEST = 1e24
"""No fact is larger; numbers beyond would overflow in the arithmetic of a plan."""
_WORDS = {int: "a number of 0 or more", float: "a number of 0 or more", str: "a text", bool: "true or false"}


def to_json(machine: Machine) -> dict[str, Any]:
    """A JSON object with `schema` and `version` first."""
    return {"schema": SCHEMA, "version": VERSION, **dataclasses.asdict(machine)}


def from_json(data: object) -> Machine:
    """The Machine of a decoded JSON value; unknown keys are ignored. Raises UsageError naming the bad key.

    Files of older versions lack facts that have defaults.
    """
    if not isinstance(data, Mapping) or data.get("schema") != SCHEMA:
        raise UsageError(f"this is not a machine file: schema {SCHEMA!r} expected", "hetero probe --json > FILE")
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise UsageError(f"machine file: 'version' must be 1 to {VERSION}, found {version!r}")
    if version > VERSION:
        raise UsageError(
            f"machine file has version {version}, this hetero reads up to {VERSION}",
            "update hetero, or write the file again with this one: hetero probe --json > FILE",
        )
    return record_from(Machine, data)


def record_from(kind: type[Record], data: object, name: str = "") -> Record:
    """The dataclass `kind` of a decoded JSON object; raises UsageError naming the bad key, `name` being its path."""
    if not isinstance(data, Mapping):
        raise UsageError(f"machine file: {name or 'the whole'!r} must be an object, found {data!r}")
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(typing.cast(Any, kind)):
        path = f"{name}.{field.name}" if name else field.name
        if field.name in data:
            values[field.name] = _value(hints[field.name], data[field.name], path)
        elif field.default is dataclasses.MISSING:
            raise UsageError(f"machine file lacks {path!r}")
    return kind(**values)


def _value(kind: Any, value: object, name: str) -> object:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):  # X | None
        return None if value is None else _value(arguments[0], value, name)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"machine file: {name!r} must be a list, found {value!r}")
        return tuple(_value(arguments[0], item, name) for item in value)
    if origin is typing.Literal:
        if value not in arguments:
            raise UsageError(f"machine file: {name!r} must be one of {', '.join(arguments)}, found {value!r}")
        return value
    if dataclasses.is_dataclass(kind):
        return record_from(typing.cast(type, kind), value, name)
    return _checked(kind, value, name)


def _checked(kind: Any, value: Any, name: str) -> object:
    # bool is a subclass of int, and `true` CPUs would pass for one.
    fits = isinstance(value, int | float if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    if not fits or (kind in (int, float) and not 0 <= value <= _LARGEST):
        raise UsageError(f"machine file: {name!r} must be {_WORDS[kind]}, found {value!r}")
    return value
