"""From a block of calls, marks included, to parts. What cannot be read becomes text, with a note."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from hetero.models.text.answers.parts import Part, ToolCall, Tools, function_of
from hetero.models.text.answers.values import Malformed, arguments_of, bare_value, call_of, calls_of, load_json

Reader = Callable[[str, Tools], list[Part]]
ReadOne = Callable[["re.Match[str]", Tools], ToolCall]
MAX_BLOCK = 4 << 20
"""Characters of a block that is still taken for a call."""
MAX_NAME = 512
"""Characters in which the name of a call must have ended."""


def as_text(block: str, why: str) -> list[Part]:
    """A block that is no call."""
    return [Part("answer", block), Part("note", f"a tool call is left as text: {why}")]


def json_block(opening: str, closing: str) -> Reader:
    """One JSON call or a list of them between two marks; `closing` may be missing at the end of the output."""

    def read(block: str, tools: Tools) -> list[Part]:
        body = block.removeprefix(opening)
        body = body.removesuffix(closing) if closing else body
        try:
            calls = calls_of(load_json(body.strip(), "it"))
        except Malformed as error:
            return as_text(block, str(error))
        return [Part("call", block if i == 0 else "", call) for i, call in enumerate(calls)]

    return read


def section(marks: tuple[str, ...], each: re.Pattern[str], read_one: ReadOne) -> Reader:
    """Calls that `each` finds, between the section's `marks`; other text between them stays text."""
    ignored = re.compile("|".join(map(re.escape, marks)) + r"|\s")

    def between(gap: str) -> list[Part]:
        return as_text(gap, "it is not complete") if ignored.sub("", gap) else []

    def read(block: str, tools: Tools) -> list[Part]:
        parts: list[Part] = []
        last = 0
        for match in each.finditer(block):
            parts += between(block[last : match.start()])
            try:
                parts.append(Part("call", match[0], read_one(match, tools)))
            except Malformed as error:
                parts += as_text(match[0], str(error))
            last = match.end()
        parts += between(block[last:])
        return parts if any(part.kind == "call" for part in parts) else as_text(block, "there is no call in it")

    return read


def name_of(text: str) -> str:
    """A function's name; Malformed for one that is empty or holds what no name does."""
    name = text.strip()
    if not re.fullmatch(r"[^\s<>(){}\[\]\"']{1,256}", name):
        raise Malformed("the call has no name")
    return name


def deepseek(match: re.Match[str], tools: Tools) -> ToolCall:
    """`function<sep>NAME` and a fenced object (V3, R1), or `NAME<sep>` and the object (V3.1)."""
    head, separator, rest = match[1].partition("<｜tool▁sep｜>")
    if not separator:
        raise Malformed("the call has no name")
    if head.strip() == "function" and "```" in rest:
        head, _, rest = rest.partition("\n")
        rest = re.sub(r"^\s*```(?:json)?\s*|\s*```\s*$", "", rest)
    return ToolCall(name_of(head), arguments_of(load_json(rest.strip() or "{}", "the arguments' text")))


def dsml(match: re.Match[str], tools: Tools) -> ToolCall:
    """An `invoke` of DeepSeek-V3.2 and V4; `string` says whether a parameter is text or JSON."""
    values: dict[str, Any] = {}
    pattern = r'<｜DSML｜parameter name="([^"]*)" string="(true|false)">(.*?)</｜DSML｜parameter>'
    for key, is_text, value in re.findall(pattern, match[2], re.DOTALL):
        values[_new(values, key)] = value if is_text == "true" else load_json(value, key)
    _nothing_else(re.sub(pattern, "", match[2], flags=re.DOTALL))
    return ToolCall(name_of(match[1]), values)


def kimi(match: re.Match[str], tools: Tools) -> ToolCall:
    """Kimi's own id `functions.NAME:NUMBER` and a JSON object."""
    own = match[1].strip()
    bare = re.fullmatch(r"(?:functions\.)?(.+?)(?::\d+)?", own)
    if bare is None:
        raise Malformed("the call has no name")
    return ToolCall(name_of(bare[1]), arguments_of(load_json(match[2].strip() or "{}", "the arguments' text")), own)


def glm(match: re.Match[str], tools: Tools) -> ToolCall:
    """GLM: the name, then pairs of arg_key and arg_value."""
    head, mark, rest = match[1].partition("<arg_key>")
    name = name_of(head)
    pattern = r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>"
    values: dict[str, Any] = {}
    for key, value in re.findall(pattern, mark + rest, re.DOTALL):
        values[_new(values, key.strip())] = bare_value(value, tools, name, key.strip())
    _nothing_else(re.sub(pattern, "", mark + rest, flags=re.DOTALL))
    return ToolCall(name, values)


def qwen_xml(match: re.Match[str], tools: Tools) -> ToolCall:
    """Qwen3-Coder: `<function=NAME>` with `<parameter=KEY>` on lines of their own."""
    function = re.fullmatch(r"\s*<function=([^>]*)>(.*)</function>\s*", match[1], re.DOTALL)
    if function is None:
        raise Malformed("it is not complete")
    name = name_of(function[1])
    pattern = r"<parameter=([^>]*)>\n?(.*?)\n?</parameter>"
    return ToolCall(name, _named(pattern, function[2], tools, name))


def invoke(match: re.Match[str], tools: Tools) -> ToolCall:
    """MiniMax: `<invoke name="NAME">` with `<parameter name="KEY">`."""
    name = name_of(match[1])
    return ToolCall(name, _named(r'<parameter name="([^"]*)">(.*?)</parameter>', match[2], tools, name))


def _named(pattern: str, text: str, tools: Tools, name: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in re.findall(pattern, text, re.DOTALL):
        values[_new(values, key.strip())] = bare_value(value, tools, name, key.strip())
    _nothing_else(re.sub(pattern, "", text, flags=re.DOTALL))
    return values


def _new(values: dict[str, Any], key: str) -> str:
    if key in values:
        raise Malformed(f"the argument {key[:40]} is there twice")
    return key


def _nothing_else(rest: str) -> None:
    if rest.strip():
        raise Malformed("there is text between the arguments")


def mistral(block: str, tools: Tools) -> list[Part]:
    """`[TOOL_CALLS]` and a JSON list, or (since 2025) `NAME[CALL_ID]ID[ARGS]{...}` with the middle part optional."""
    body = block.removeprefix("[TOOL_CALLS]").strip()
    try:
        if body.startswith("["):
            calls = calls_of(load_json(body, "it"))
        else:
            named = re.fullmatch(r"([^\[{]+)(?:\[CALL_ID\]([^\[{]*))?(?:\[ARGS\])?\s*(\{.*\})", body, re.DOTALL)
            if named is None:
                raise Malformed("it is not complete")
            arguments = arguments_of(load_json(named[3], "the arguments' text"))
            calls = [ToolCall(name_of(named[1]), arguments, (named[2] or "").strip())]
    except Malformed as error:
        return as_text(block, str(error))
    return [Part("call", block if i == 0 else "", call) for i, call in enumerate(calls)]


def pythonic(block: str, tools: Tools) -> list[Part]:
    """Llama 4: a list of Python calls with keyword arguments. Any other list is text, and no call is missed."""
    body = block.removeprefix("<|python_start|>").removesuffix("<|python_end|>")
    try:
        calls = _python_calls(body)
    except Malformed as error:
        known = re.match(r"\s*\[\s*([\w.]+)\s*\(", body)
        meant = body != block or (known is not None and function_of(tools, known[1]) is not None)
        return as_text(block, str(error)) if meant else [Part("answer", block)]
    if not all(function_of(tools, call.name) for call in calls):
        return [Part("answer", block)]
    return [Part("call", block if i == 0 else "", call) for i, call in enumerate(calls)]


def _python_calls(block: str) -> list[ToolCall]:
    try:
        tree = ast.parse(block.strip(), mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            raise Malformed("it is no list of calls")
        return [_python_call(node) for node in tree.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise error if isinstance(error, Malformed) else Malformed("it is no list of calls") from None


def _python_call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
        raise Malformed("it is no list of calls with named arguments")
    values = {str(word.arg): _literal(word.value) for word in node.keywords}
    return call_of({"name": ast.unparse(node.func), "arguments": values})


def _literal(node: ast.expr) -> Any:
    """A Python literal; JSON's true, false and null are names there."""
    if isinstance(node, ast.Name) and node.id in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(entry) for entry in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else ast.literal_eval(key) for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise Malformed("an argument is no plain value")
        return {str(key): _literal(value) for key, value in zip(keys, node.values, strict=True)}
    value = ast.literal_eval(node)
    if value is not None and not isinstance(value, str | int | float | bool):
        raise Malformed("an argument is no plain value")
    return load_json(_dumped(value), "an argument")


def _dumped(value: Any) -> str:
    import json

    return json.dumps(value)
