"""gpt-oss: an answer is a row of messages, each with a channel and perhaps a recipient in its header.

`analysis` is reasoning, `final` and `commentary` are for the user, and a message to `functions.NAME` is a call. The
format is documented in OpenAI's harmony guide.
"""

from __future__ import annotations

import re
from typing import Literal

from hetero.models.text.answers.parts import Kind, Part, ToolCall, Tools
from hetero.models.text.answers.readers import as_text, name_of
from hetero.models.text.answers.values import Malformed, arguments_of, load_json
from hetero.models.text.thinking import held_back

MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
_HEADER_ENDS = ("<|message|>", "<|end|>", "<|return|>", "<|call|>")
_BODY_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_HEADER_WORDS = frozenset({"assistant", "analysis", "commentary", "final", "json", "code"})
"""What a header says besides its recipient; any other word there is text that went astray."""
_LONGEST_HEADER = 1024
_LONGEST_MARK = max(len(mark) for mark in MARKS)


class HarmonyParser:
    """Goes through messages: a header up to `<|message|>`, then a body up to the mark that ends it."""

    def __init__(self, prompt: str, tools: Tools | None) -> None:
        self._tools = tools
        self._buffer = ""
        self._state: Literal["between", "header", "body"] = "between"
        self._kind: Kind = "answer"
        self._last: Kind | None = None
        """What was given out last, of a message that has ended."""
        self._new = True
        """Nothing of this message's body has been given out."""
        self._recipient = ""
        self._call = ""
        """The whole text of a message to a tool, while it grows."""
        self._prefix = self._continue(prompt[-_LONGEST_HEADER:])

    def feed(self, text: str) -> list[Part]:
        self._buffer += text
        parts: list[Part] = []
        moves = {"between": self._between, "header": self._header, "body": self._body}
        while moves[self._state](parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        if self._state == "body":
            self._write(parts, self._buffer)
            self._end_body(parts, "")
        else:
            self._plain(parts, _unmarked(self._buffer))
        self._buffer, self._state = "", "between"
        return parts

    def _continue(self, prompt: str) -> str:
        """Takes up the message that the prompt has begun; returns its header's beginning."""
        begun = prompt.rpartition("<|start|>")[2] if "<|start|>" in prompt else "<|end|>"
        header, message, body = begun.partition("<|message|>")
        if any(mark in body or mark in header for mark in _BODY_ENDS[:3]):
            return ""
        self._state = "header"
        if message:
            self._begin_body(header, "")
        return header

    def _between(self, parts: list[Part]) -> bool:
        """Text in front of any header is an answer without one; white space around it waits for what follows."""
        found = _first(self._buffer, MARKS)
        count = found[0] if found else len(self._buffer) - held_back(self._buffer, MARKS)
        text = self._buffer[:count].rstrip()
        self._plain(parts, text)
        self._buffer = self._buffer[count if found else len(text) :]
        if found:
            self._state = "header"
        return found is not None

    def _header(self, parts: list[Part]) -> bool:
        found = _first(self._buffer, _HEADER_ENDS)
        if found is None or found[0] > _LONGEST_HEADER:
            if len(self._buffer) <= _LONGEST_HEADER + _LONGEST_MARK:
                return False
            text, self._buffer = self._buffer[:_LONGEST_HEADER], self._buffer[_LONGEST_HEADER:]
            self._plain(parts, _unmarked(text))
            self._state, self._prefix = "between", ""
            return True
        at, mark = found
        header, self._buffer = self._buffer[:at], self._buffer[at + len(mark) :]
        if mark == "<|message|>":
            if not _RECIPIENT.search(self._prefix + header):
                self._plain(parts, " ".join(word for word in _unmarked(header).split() if word not in _HEADER_WORDS))
            self._begin_body(self._prefix + header, header + mark)
        else:  # a header without a body: its words are all there is
            self._plain(parts, _unmarked(header))
            self._state = "between"
        self._prefix = ""
        return True

    def _plain(self, parts: list[Part], text: str) -> None:
        if text.strip():
            parts.append(Part("answer", text))
            self._last = "answer"

    def _begin_body(self, header: str, shown: str) -> None:
        channel = header.rpartition("<|channel|>")[2].split("<|")[0].split(maxsplit=1)
        recipient = _RECIPIENT.search(header)
        self._recipient = "" if recipient is None else recipient[1]
        self._kind = "thinking" if channel[:1] == ["analysis"] else "answer"
        self._call, self._new, self._state = shown, True, "body"

    def _body(self, parts: list[Part]) -> bool:
        found = _first(self._buffer, _BODY_ENDS)
        if found is None:
            count = len(self._buffer) - held_back(self._buffer, _BODY_ENDS)
            self._write(parts, self._buffer[:count])
            self._buffer = self._buffer[count:]
            return False
        at, mark = found
        self._write(parts, self._buffer[:at])
        begins_next = mark in ("<|start|>", "<|channel|>")
        self._buffer = self._buffer[at if begins_next else at + len(mark) :]
        self._end_body(parts, "" if begins_next else mark)
        return True

    def _write(self, parts: list[Part], text: str) -> None:
        if self._recipient:
            self._call += text
        elif text:
            if self._new and self._last == self._kind:
                text = "\n" + text  # the next message of the same kind
            parts.append(Part(self._kind, text))
            self._new, self._last = False, self._kind

    def _end_body(self, parts: list[Part], mark: str) -> None:
        self._state = "between"
        if self._recipient:
            block = self._call + mark
            parts += self._read(block) if self._tools else [Part("answer", block)]
            self._recipient = self._call = ""
            self._last = None

    def _read(self, block: str) -> list[Part]:
        body = block.partition("<|message|>")[2] if "<|message|>" in block else block
        for mark in _BODY_ENDS[:3]:
            body = body.removesuffix(mark)
        try:
            name = name_of(self._recipient.removeprefix("functions."))
            call = ToolCall(name, arguments_of(load_json(body.strip() or "{}", "the arguments' text")))
        except Malformed as error:
            return as_text(block, str(error))
        return [Part("call", block, call)]


def _first(text: str, marks: tuple[str, ...]) -> tuple[int, str] | None:
    places = [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]
    return min(places) if places else None


def _unmarked(text: str) -> str:
    for mark in MARKS:
        text = text.replace(mark, " ")
    return text
