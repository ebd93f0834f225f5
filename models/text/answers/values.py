"""Arguments of calls: JSON objects, and values that a dialect writes as bare text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hetero.models.text.answers.parts import ToolCall, Tools, schema_of


class Malformed(ValueError):
    """A call that cannot be read; the message says why, in a few words."""


def load_json(text: str, what: str) -> Any:
    """The JSON value of `text`; Malformed for any other text, also for NaN and for lone surrogates."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        raise Malformed(f"{what} is no JSON") from None
    return value


def _refuse(name: str) -> Any:
    raise ValueError(name)


def arguments_of(value: Any) -> dict[str, Any]:
    """Arguments as an object; some models write its JSON text as a string, and nothing where there are none."""
    if isinstance(value, str):
        value = load_json(value, "the arguments") if value.strip() else {}
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed("the arguments are no object")
    return value


def call_of(value: Any) -> ToolCall:
    """A call from `{"name": ..., "arguments": {...}}`, as most JSON dialects write it."""
    if not isinstance(value, Mapping):
        raise Malformed("the call is no object")
    function = value.get("function")
    body = function if isinstance(function, Mapping) else value
    name = body.get("name")
    if not isinstance(name, str) or not name.strip():
        raise Malformed("the call has no name")
    own = value.get("id")
    arguments = body.get("arguments", body.get("parameters"))
    return ToolCall(name.strip(), arguments_of(arguments), own if isinstance(own, str) else "")


def calls_of(value: Any) -> list[ToolCall]:
    """One call, or a list of them."""
    found = [call_of(entry) for entry in (value if isinstance(value, list) else [value])]
    if not found:
        raise Malformed("the list of calls is empty")
    return found


def bare_value(text: str, tools: Tools, name: str, argument: str) -> Any:
    """The value of an argument written as bare text: text where the tool's schema wants text, else JSON if it is JSON.

    Python's spelling of true, false and none counts where the schema does not want text.
    """
    kinds = _kinds(schema_of(tools, name, argument))
    if kinds and kinds <= {"string"}:
        return text
    spelled = {"True": "true", "False": "false", "None": "null"}.get(text.strip(), text)
    try:
        value = load_json(spelled, argument)
    except Malformed:
        return text
    return text if "string" in kinds and _kind(value) not in kinds else value


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema allows, as far as it names them at its top; empty: any."""
    kinds: set[str] = set()
    for option in (schema, *(o for key in ("anyOf", "oneOf") for o in _options(schema, key))):
        kind = option.get("type")
        if isinstance(kind, str):
            kinds.add(kind)
        elif isinstance(kind, list):
            kinds.update(k for k in kind if isinstance(k, str))
    return kinds | ({"integer"} if "number" in kinds else set())


def _options(schema: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = schema.get(key)
    return [option for option in found if isinstance(option, Mapping)] if isinstance(found, list) else []


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]
