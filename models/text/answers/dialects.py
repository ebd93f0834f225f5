"""The dialects in which models write reasoning and calls, and how a model's own is recognised.

A model's chat template and special tokens say which dialect it was trained on; its family does not, as templates
change between releases of one architecture.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from hetero.models.text.answers import harmony, readers
from hetero.models.text.answers.blocks import Ending, UntilClosed, UntilMark
from hetero.models.text.answers.parts import AnswerParser, Tools
from hetero.models.text.answers.standard import CallFormat, StandardParser


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a model marks reasoning and calls. `marks` are special tokens that decoded text must show for it."""

    name: str
    marks: tuple[str, ...] = ()
    calls: CallFormat | None = None
    wrapping: str = ""
    """A tag around the whole answer."""

    def parser(self, prompt: str, tools: Tools | None = None) -> AnswerParser:
        """A parser for one answer to `prompt` (its rendered text). Calls are looked for only if tools were offered."""
        if self.name == "harmony":
            return harmony.HarmonyParser(prompt, tools)
        return StandardParser(self.calls, prompt, tools, self.wrapping)


def _marked(opening: str, closing: str, read: readers.Reader, *, special: bool = True) -> CallFormat:
    return CallFormat((opening,), _until(closing), read, ends_thinking=special)


def _until(*closings: str) -> Callable[[str], Ending]:
    return lambda opening: UntilMark(len(opening), closings)


def _sectioned(opening: str, closing: str, each: str, read_one: readers.ReadOne) -> CallFormat:
    return _marked(opening, closing, readers.section((opening, closing), re.compile(each, re.DOTALL), read_one))


def _python_ending(opening: str) -> Ending:
    return UntilClosed(0, single=True) if opening == "[" else UntilMark(len(opening), ("<|python_end|>",))


class _MistralEnding:
    """The list after `[TOOL_CALLS]`, or the object after the name."""

    def __init__(self, opening: str) -> None:
        self._start = len(opening)
        self._inner: UntilClosed | None = None

    def find(self, block: str) -> int | None:
        if self._inner is None:
            body = block[self._start :].lstrip()
            begins = len(block) - len(body)
            at = block.find("{", begins, begins + readers.MAX_NAME)
            if body.startswith("["):
                self._inner = UntilClosed(begins)
            elif at >= 0:
                self._inner = UntilClosed(at)
            else:
                return None if len(body) < readers.MAX_NAME else begins + readers.MAX_NAME
        return self._inner.find(block)


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_KIMI = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_KIMI_INNER = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
_HUNYUAN = ("<tool_calls>", "</tool_calls>")
_XML_MARKS = ("<tool_call>", "</tool_call>")
_DSML = "｜DSML｜"
_DSML_EACH = r'<｜DSML｜invoke name="([^"]*)">(.*?)</｜DSML｜invoke>'
_KIMI_EACH = r"<\|tool_call_begin\|>(.*?)<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>"

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        Dialect("plain"),
        Dialect("harmony", harmony.MARKS),
        Dialect(
            "deepseek",
            (*_DEEPSEEK, "<｜tool▁sep｜>"),
            _sectioned(*_DEEPSEEK[:2], rf"{_DEEPSEEK[2]}(.*?){_DEEPSEEK[3]}", readers.deepseek),
        ),
        Dialect(
            "deepseek-v3.2",
            (_DSML,),
            _sectioned("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", _DSML_EACH, readers.dsml),
        ),
        Dialect(
            "deepseek-v4",
            (_DSML,),
            _sectioned("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", _DSML_EACH, readers.dsml),
        ),
        Dialect("kimi-k2", _KIMI + _KIMI_INNER, _sectioned(*_KIMI, _KIMI_EACH, readers.kimi)),
        Dialect(
            "glm",
            (*_XML_MARKS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
            _sectioned(*_XML_MARKS, r"<tool_call>(.*?)</tool_call>", readers.glm),
        ),
        Dialect("qwen-xml", _XML_MARKS, _sectioned(*_XML_MARKS, r"<tool_call>(.*?)</tool_call>", readers.qwen_xml)),
        Dialect("hermes", _XML_MARKS, _marked(*_XML_MARKS, readers.json_block(*_XML_MARKS), special=False)),
        Dialect(
            "minimax",
            ("<minimax:tool_call>", "</minimax:tool_call>"),
            _sectioned(
                "<minimax:tool_call>",
                "</minimax:tool_call>",
                r'<invoke name="([^"]*)">(.*?)</invoke>',
                readers.invoke,
            ),
        ),
        Dialect(
            "hunyuan",
            _HUNYUAN,
            _marked(*_HUNYUAN, readers.json_block(*_HUNYUAN), special=False),
            wrapping="answer",
        ),
        Dialect(
            "granite",
            ("<|tool_call|>",),
            CallFormat(
                ("<|tool_call|>",), lambda opening: UntilClosed(len(opening)), readers.json_block("<|tool_call|>", "")
            ),
            wrapping="response",
        ),
        Dialect(
            "mistral",
            ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
            CallFormat(("[TOOL_CALLS]",), _MistralEnding, readers.mistral),
        ),
        Dialect(
            "llama-4",
            ("<|python_start|>", "<|python_end|>"),
            CallFormat(("[", "<|python_start|>"), _python_ending, readers.pythonic, at_start=True, ends_thinking=False),
        ),
    )
}

_BY_TOKEN = {
    "<|channel|>": "harmony",
    "<|tool_calls_section_begin|>": "kimi-k2",
    "<minimax:tool_call>": "minimax",
    "<|header_start|>": "llama-4",
    "<｜tool▁calls▁begin｜>": "deepseek",
    "[TOOL_CALLS]": "mistral",
}
"""Special tokens that only models of one dialect have, whatever the template says."""

_BY_TEMPLATE = {
    "<｜tool▁calls▁begin｜>": "deepseek",
    "<|tool_calls_section_begin|>": "kimi-k2",
    "<minimax:tool_call>": "minimax",
    "<|channel|>": "harmony",
    "<arg_key>": "glm",
    "<function=": "qwen-xml",
    "<tool_calls>": "hunyuan",
    "[TOOL_CALLS]": "mistral",
    "<|tool_call|>": "granite",
    "<|header_start|>": "llama-4",
    "<tool_call>": "hermes",
}
"""What a template writes, the most particular first: several dialects share `<tool_call>`."""


def dialect_of(template: str, added: Collection[str]) -> Dialect:
    """The dialect of a model with this chat template ("" for none) and these special tokens; `plain` if it has none."""
    if _DSML in template:
        return DIALECTS["deepseek-v3.2" if "function_calls>" in template else "deepseek-v4"]
    for mark, name in _BY_TEMPLATE.items():
        if mark in template:
            return DIALECTS[name]
    for mark, name in _BY_TOKEN.items():
        if mark in added:
            return DIALECTS[name]
    return DIALECTS["plain"]
