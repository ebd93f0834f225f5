"""What a conversation looks like when a template sees it: plain objects with a role, and no nulls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from hetero.machine.types import UsageError

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which a message's reasoning is passed; templates read the first, gpt-oss's the second."""
_MISSING = object()


def checked(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """The messages without nulls, reasoning under both names that templates read.

    Raises UsageError naming the first message that has no role, or whose content or calls are of a kind that no
    template can show.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise UsageError(f"the conversation is {_kind(messages)}; expected a list of messages", "mend the conversation")
    return [_checked(message, place) for place, message in enumerate(messages, 1)]


def forms(messages: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Ways to give checked messages to a template, the most usual first; several only where there are calls or parts.

    Templates differ in what they expect: arguments as an object or as its JSON text, no content, null or an empty text
    beside calls, and content in parts or as one text.
    """
    calls = any(message.get("tool_calls") for message in messages)
    parts = any(_is_text_only(message.get("content")) for message in messages)
    blank = any(message.get("tool_calls") and not message.get("content") for message in messages)
    for joined in (False, True)[: 1 + parts]:
        for empty in (_MISSING, None, "")[: 3 if blank else 1]:
            for as_text in (False, True)[: 1 + calls]:
                yield [_formed(message, joined, empty, as_text) for message in messages]


def is_shown(messages: Sequence[Mapping[str, Any]], text: str) -> bool:
    """Whether a rendered text has the names of all functions called and the parts of users' words.

    Templates that know no parts leave them out, or write them as Python's own text.
    """
    names = {call.get("function", call)["name"] for message in messages for call in message.get("tool_calls", ())}
    listed = [message.get("content") for message in messages if message["role"] == "user"]
    parts = [part for content in listed if _is_text_only(content) for part in content]
    words = [(part if isinstance(part, str) else part["text"]).strip() for part in parts]
    return all(word in text for word in (*names, *words)) and not re.search(r"""\{(['"])type\1: \1text\1""", text)


def _formed(message: Mapping[str, Any], joined: bool, empty: Any, as_text: bool) -> dict[str, Any]:
    made = dict(message)
    if joined and _is_text_only(made.get("content")):
        made["content"] = "".join(part if isinstance(part, str) else part["text"] for part in made["content"])
    if made.get("tool_calls"):
        made["tool_calls"] = [_call(call, as_text) for call in made["tool_calls"]]
        if not made.get("content"):
            made.pop("content", None)
            made |= {} if empty is _MISSING else {"content": empty}
    return made


def _call(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    """A call whose arguments are an object or its JSON text; what is no object's text stays as it is."""
    if "function" in call:
        return {**call, "function": _call(call["function"], as_text)}
    arguments = call.get("arguments")
    if as_text and isinstance(arguments, Mapping):
        return {**call, "arguments": plain_data(arguments, "the conversation")}
    if not as_text and isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            value = None
        return {**call, "arguments": value} if isinstance(value, dict) else dict(call)
    return dict(call)


def _is_text_only(content: Any) -> TypeGuard[Sequence[Any]]:
    """Whether content is a list of texts, as strings or as parts."""
    if not isinstance(content, list | tuple):
        return False
    return all(isinstance(part, str) or isinstance(part.get("text"), str) for part in content)


def checked_tools(tools: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    """The tools as plain objects; None and an empty list are the same. Raises UsageError for anything else."""
    if not tools:
        return None
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise UsageError(f"the tools are {_kind(tools)}; expected a list of objects", "give a list of JSON schemas")
    for place, tool in enumerate(tools, 1):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping):
            raise UsageError(f"tool {place} is {_kind(tool)}; expected an object with a function", "mend the tool")
    return [dict(tool) for tool in tools]


def plain_data(value: Any, what: str) -> str:
    """`value` as JSON text. Raises UsageError for what JSON cannot hold."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what} holds a value that is not plain data: {error}", "pass JSON values only") from None


def _checked(message: Any, place: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _odd(place, f"is {_kind(message)}", "an object with a role and content")
    plain = {key: value for key, value in message.items() if value is not None}
    role, content, calls = plain.get("role"), plain.get("content", ""), plain.get("tool_calls", [])
    if not isinstance(role, str) or not role:
        raise _odd(place, "has no role" if role is None else f"has the role {role!r:.40}", "a role such as 'user'")
    parts = content if isinstance(content, list | tuple) else []
    if not isinstance(content, str | list | tuple) or any(not isinstance(part, str | Mapping) for part in parts):
        raise _odd(place, f"has content of another kind ({_kind(content)})", "a text, or a list of parts")
    if not isinstance(calls, list | tuple) or any(not _is_call(call) for call in calls):
        raise _odd(place, "has tool calls that are no calls", "a list of objects with a function's name and arguments")
    reasoning = next((plain[name] for name in REASONING if name in plain), None)
    if reasoning is None:
        return plain
    if not isinstance(reasoning, str):
        raise _odd(place, f"has reasoning that is {_kind(reasoning)}", "a text")
    return {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _is_call(call: Any) -> bool:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _odd(place: int, found: str, expected: str) -> UsageError:
    return UsageError(f"message {place} of the conversation {found}; expected {expected}", "mend the message")


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a text"}
    names |= {list: "a list", tuple: "a list", dict: "an object"}
    return names.get(type(value), f"of type {type(value).__name__}")
