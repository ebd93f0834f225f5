"""The pieces of an answer, the same for every dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Kind = Literal["thinking", "answer", "call", "note"]
Tools = Sequence[Mapping[str, Any]]
"""Tools as a client offers them: `{"type": "function", "function": {"name", "parameters": JSON schema}}`."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that is whole and whose arguments are a JSON object. `id` is the model's own, or empty."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of output: text of a kind, or a call with the text that spelled it; a note says what was wrong."""

    kind: Kind
    text: str
    call: ToolCall | None = None


class AnswerParser(Protocol):
    """Takes an answer as it streams in. How the text is cut up makes no difference to the joined parts.

    Nothing is lost: what is no call comes out as text. Only the marks of the dialect themselves, and line breaks
    beside them, are left out.
    """

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain after `text`; what may be the beginning of a mark is held back."""

    def finish(self) -> list[Part]:
        """Ends the output: gives out what was held back, as what it would have been."""


def function_of(tools: Tools, name: str) -> Mapping[str, Any] | None:
    """The description of the tool of that name, or None."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            return function
    return None


def schema_of(tools: Tools, name: str, argument: str) -> Mapping[str, Any]:
    """The JSON schema of an argument, {} where the tools say nothing of it."""
    found: Any = function_of(tools, name)
    for key in ("parameters", "properties", argument):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
