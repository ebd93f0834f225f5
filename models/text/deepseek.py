"""The prompt formats of DeepSeek-V3.2 and V4, which ship a Python encoder instead of a chat template.

Written after the encoders that DeepSeek publishes with the models (`encoding_dsv32`, `encoding_dsv4`): the words of
the tools section are what the models were trained on. Both differ in how tool results are given and when earlier
reasoning is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hetero.machine.types import UsageError
from hetero.models.text.messages import checked, checked_tools, plain_data

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK = "<think>", "</think>"

_EXAMPLE = """<｜DSML｜{block}>
<｜DSML｜invoke name="${tool}_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="${tool}_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜{block}>
"""
_TOOLS_V32 = (
    """## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your \
reply to the user:
"""
    + _EXAMPLE.format(block="function_calls", tool="FUNCTION")
    + """
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should \
use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types \
(numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. \
Here is an example:

<｜DSML｜function_calls>
...
</｜DSML｜function_calls>

<function_results>
...
</function_results>

<think>...thinking about results</think>

Here are the functions available in JSONSchema format:
<functions>
TOOLS
</functions>
"""
)
_TOOLS_V4 = (
    """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<｜DSML｜tool_calls>" block like the following:

"""
    + _EXAMPLE.format(block="tool_calls", tool="TOOL")
    + """
String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> \
BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

TOOLS

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
)


@dataclass(frozen=True)
class DeepSeekTemplate:
    """Renders conversations as `ChatTemplate` does, for `version` "3.2" or "4"."""

    version: str
    named: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The words that tell of tools; by them the dialect is known."""
        return _TOOLS_V32 if self.version == "3.2" else _TOOLS_V4

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt; `thinking` (or `enable_thinking`) lets the model reason. Raises UsageError for odd messages."""
        thinking = bool(kwargs.get("thinking", kwargs.get("enable_thinking", False)))
        rows, offered = checked(messages), checked_tools(tools)
        if offered:
            if not rows or rows[0].get("role") != "system":
                rows.insert(0, {"role": "system", "content": ""})
            shown = "\n".join(_json(tool.get("function", tool)) for tool in offered)
            rows[0] = rows[0] | {"content": _text(rows[0]) + "\n\n" + self.source.replace("TOOLS", shown, 1)}
        writer = _V32(rows, thinking) if self.version == "3.2" else _V4(rows, thinking, offered is not None)
        return BOS + writer.write(add_generation_prompt)


def built_in(architecture: str) -> DeepSeekTemplate | None:
    """The format of an architecture (by config.json or GGUF) whose directories hold no chat template."""
    versions = {"DeepseekV32ForCausalLM": "3.2", "deepseek_v32": "3.2", "deepseek32": "3.2"}
    versions |= {"DeepseekV4ForCausalLM": "4", "deepseek_v4": "4", "deepseek4": "4"}
    version = versions.get(architecture)
    return None if version is None else DeepSeekTemplate(version)


class _V32:
    """Every user message opens the assistant's turn; tool results stand in that turn."""

    block = "function_calls"

    def __init__(self, rows: Sequence[Mapping[str, Any]], thinking: bool) -> None:
        self.rows, self.thinking = rows, thinking
        asked = [i for i, row in enumerate(rows) if row.get("role") in ("user", "developer")]
        self.last = asked[-1] if asked else -1

    def write(self, open_turn: bool) -> str:
        text = "".join(self.row(index, row) for index, row in enumerate(self.rows))
        return text if open_turn else text.removesuffix(THINK).removesuffix(END_THINK).removesuffix(ASSISTANT)

    def row(self, index: int, row: Mapping[str, Any]) -> str:
        role = row.get("role")
        if role == "system":
            return _text(row)
        if role == "developer":
            return f"{USER}\n\n# The user's message is: {_text(row)}{ASSISTANT}{self.opened(index == self.last)}"
        if role == "user":
            return f"{USER}{_text(row)}{ASSISTANT}{self.opened(index == self.last)}"
        if role == "tool":
            return self.result(index, row)
        if role == "assistant":
            return self.reasoning(index, row) + _text(row) + _calls(row, self.block) + EOS
        raise _unknown_role(role)

    def opened(self, now: bool) -> str:
        return THINK if now and self.thinking else END_THINK

    def reasoning(self, index: int, row: Mapping[str, Any]) -> str:
        return str(row.get("reasoning_content", "")) + END_THINK if self.thinking and index > self.last else ""

    def result(self, index: int, row: Mapping[str, Any]) -> str:
        first = index
        while first > 0 and self.rows[first - 1].get("role") == "tool":
            first -= 1
        called = len(self.rows[first - 1].get("tool_calls", ())) if first > 0 else 0
        order = index - first + 1
        if order > called:
            raise UsageError("the conversation has a tool result without a call", "put the assistant's call before it")
        text = ("\n\n<function_results>" if order == 1 else "") + f"\n<result>{_text(row)}</result>"
        return text + (f"\n</function_results>\n\n{self.opened(index >= self.last)}" if order == called else "")


class _V4:
    """Tool results are part of the user's turn; with tools, earlier reasoning is kept."""

    block = "tool_calls"

    def __init__(self, rows: Sequence[Mapping[str, Any]], thinking: bool, keep: bool) -> None:
        self.rows = _merged(rows)
        self.thinking, self.keep = thinking, keep
        asked = [i for i, row in enumerate(self.rows) if row.get("role") in ("user", "developer")]
        self.last = asked[-1] if asked else -1

    def write(self, open_turn: bool) -> str:
        text = ""
        for index, row in enumerate(self.rows):
            text += self.row(index, row)
            follows = self.rows[index + 1].get("role") if index + 1 < len(self.rows) else None
            ends_turn = follows == "assistant" or (follows is None and open_turn)
            if row.get("role") in ("user", "developer") and ends_turn:
                thinks = self.thinking and (self.keep or index >= self.last)
                text += ASSISTANT + (THINK if thinks else END_THINK)
        return text

    def row(self, index: int, row: Mapping[str, Any]) -> str:
        role = row.get("role")
        if role == "system":
            return _text(row)
        if role in ("user", "developer"):
            return USER + _text(row)
        if role == "assistant":
            kept = self.thinking and (self.keep or index > self.last)
            reasoning = str(row.get("reasoning_content", "")) + END_THINK if kept else ""
            return reasoning + _text(row) + _calls(row, self.block) + EOS
        raise _unknown_role(role)


def _merged(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Tool results, in the order of their calls, and the user's words after them as one message."""
    merged: list[Mapping[str, Any]] = []
    order: dict[str, int] = {}
    results: list[Mapping[str, Any]] = []

    def flush() -> None:
        if results:
            ranked = sorted(results, key=lambda row: order.get(str(row.get("tool_call_id")), 0))
            text = "\n\n".join(f"<tool_result>{_text(row)}</tool_result>" for row in ranked)
            merged.append({"role": "user", "content": text, "results": True})
            results.clear()

    for row in rows:
        if row.get("role") == "tool":
            results.append(row)
            continue
        flush()
        if row.get("role") == "user" and merged and merged[-1].get("role") == "user":
            merged[-1] = {"role": "user", "content": f"{_text(merged[-1])}\n\n{_text(row)}"}
            continue
        if row.get("role") == "assistant":
            order = {str(call.get("id")): place for place, call in enumerate(row.get("tool_calls", ()))}
        merged.append(row)
    flush()
    return merged


def _calls(row: Mapping[str, Any], block: str) -> str:
    calls = row.get("tool_calls")
    if not calls:
        return ""
    return f"\n\n<｜DSML｜{block}>\n" + "\n".join(_call(call) for call in calls) + f"\n</｜DSML｜{block}>"


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, Mapping):
        raise UsageError("the conversation has a tool call whose arguments are no JSON object", "mend the message")
    lines = [
        f'<｜DSML｜parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
        f"{value if isinstance(value, str) else _json(value)}</｜DSML｜parameter>"
        for key, value in arguments.items()
    ]
    # a call without arguments has an empty line in their place, as the published encoders write it
    return f'<｜DSML｜invoke name="{function.get("name")}">\n' + "\n".join(lines) + "\n</｜DSML｜invoke>"


def _text(row: Mapping[str, Any]) -> str:
    """A message's text: a string, or the text parts of a list."""
    content = row.get("content", "")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) if isinstance(part, Mapping) else part for part in content)


def _json(value: Any) -> str:
    return plain_data(value, "the conversation")


def _unknown_role(role: Any) -> UsageError:
    return UsageError(f"the chat template refuses this conversation: role {role!r}", "change the roles or the messages")
