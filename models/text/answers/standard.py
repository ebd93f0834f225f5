"""The parser of most dialects: reasoning between tags, then an answer in which blocks of calls may stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hetero.models.text.answers.blocks import Ending
from hetero.models.text.answers.parts import Part, Tools
from hetero.models.text.answers.readers import MAX_BLOCK, Reader, as_text
from hetero.models.text.thinking import ThinkingSplitter, held_back


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a dialect writes calls. With `at_start` an opening counts only where the answer begins."""

    openings: tuple[str, ...]
    ending: Callable[[str], Ending]
    """For the opening that was found, what finds the end of its block."""
    read: Reader
    at_start: bool = False
    ends_thinking: bool = True
    """The opening is a token that no prose has, so it also ends reasoning that was not closed."""


class StandardParser:
    """See the module's text. Without `tools` (or `calls`) what looks like a call is text."""

    def __init__(self, calls: CallFormat | None, prompt: str, tools: Tools | None, wrapping: str = "") -> None:
        until = calls.openings if calls is not None and tools and calls.ends_thinking else ()
        self._thinking = ThinkingSplitter(prompt[-256:], until)
        self._wrapping = Unwrapper(wrapping) if wrapping else None
        self._calls = CallSplitter(calls, tools) if calls is not None and tools else None

    def feed(self, text: str) -> list[Part]:
        return self._parts(self._thinking.feed(text))

    def finish(self) -> list[Part]:
        parts = self._parts(self._thinking.finish())
        if self._wrapping is not None:
            parts += self._answer(self._wrapping.finish())
        return parts + (self._calls.finish() if self._calls is not None else [])

    def _parts(self, pieces: Sequence[tuple[str, str]]) -> list[Part]:
        parts: list[Part] = []
        for kind, text in pieces:
            if kind == "thinking":
                parts.append(Part("thinking", text))
            else:
                parts += self._answer(self._wrapping.feed(text) if self._wrapping is not None else text)
        return parts

    def _answer(self, text: str) -> list[Part]:
        if self._calls is not None:
            return self._calls.feed(text)
        return [Part("answer", text)] if text else []


class CallSplitter:
    """Takes calls out of an answer. White space beside a call is dropped."""

    def __init__(self, calls: CallFormat, tools: Tools) -> None:
        self._format = calls
        self._tools = tools
        self._buffer = ""
        self._gap = ""
        """White space in front of the block that is open."""
        self._ending: Ending | None = None
        self._fresh = True
        """Nothing but white space has come yet."""
        self._after_call = False

    def feed(self, text: str) -> list[Part]:
        self._buffer += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        if self._ending is not None:
            self._close(parts, len(self._buffer))
        if self._buffer and (self._buffer.strip() or not self._after_call):
            parts.append(Part("answer", self._buffer))
        self._buffer = ""
        return parts

    def _step(self, parts: list[Part]) -> bool:
        """One move; False when more text is needed."""
        if self._ending is not None:
            return self._in_block(parts, self._ending)
        at, opening = self._opening()
        if opening:
            self._emit(parts, at)
            body = self._buffer.lstrip()
            self._gap, self._buffer = self._buffer[: len(self._buffer) - len(body)], body
            self._ending = self._format.ending(opening)
            return True
        self._emit(parts, len(self._buffer) - self._kept())
        return False

    def _opening(self) -> tuple[int, str]:
        """The first opening in the buffer and where it is, "" where there is none."""
        if self._format.at_start:
            body = self._buffer.lstrip()
            found = [o for o in self._format.openings if body.startswith(o)] if self._fresh else []
            return 0, (found[0] if found else "")
        places = [(at, o) for o in self._format.openings if (at := self._buffer.find(o)) >= 0]
        return min(places) if places else (0, "")

    def _kept(self) -> int:
        """Characters at the end of the buffer that may belong to an opening, or be white space beside one."""
        if self._format.at_start:
            body = self._buffer.lstrip()
            return len(self._buffer) if self._fresh and any(o.startswith(body) for o in self._format.openings) else 0
        kept = held_back(self._buffer, self._format.openings)
        body = self._buffer[: len(self._buffer) - kept]
        return kept + len(body) - len(body.rstrip())

    def _emit(self, parts: list[Part], count: int) -> None:
        """Gives out text, but not yet the white space at its end, nor what stands between a call and text."""
        body = self._buffer[:count].rstrip()
        if body:
            self._buffer = self._buffer[len(body) :]
            parts.append(Part("answer", body.lstrip() if self._after_call else body))
            self._fresh = self._after_call = False

    def _in_block(self, parts: list[Part], ending: Ending) -> bool:
        end = ending.find(self._buffer)
        if end is None and len(self._buffer) <= MAX_BLOCK:
            return False
        if end is None or end > MAX_BLOCK:
            self._close(parts, MAX_BLOCK, too_long=True)
        else:
            self._close(parts, end)
        return True

    def _close(self, parts: list[Part], end: int, too_long: bool = False) -> None:
        block, self._buffer = self._buffer[:end], self._buffer[end:]
        found = as_text(block, "it is too long") if too_long else self._format.read(block, self._tools)
        if self._gap and found[0].kind == "answer":
            parts.append(Part("answer", self._gap))
        parts += found
        self._ending = None
        self._fresh = False
        self._after_call = any(part.kind == "call" for part in found)


class Unwrapper:
    """Takes the tags `<NAME>` and `</NAME>` off an answer that is wrapped in them as a whole."""

    def __init__(self, name: str) -> None:
        self._opening, self._closing = f"<{name}>", f"</{name}>"
        self._buffer = ""
        self._state = "start"

    def feed(self, text: str) -> str:
        self._buffer += text
        if self._state == "start":
            body = self._buffer.lstrip()
            if body.startswith(self._opening):
                self._buffer = body[len(self._opening) :].lstrip("\r\n")
                self._state = "opened" if self._buffer else "breaks"
            elif body and not self._opening.startswith(body):
                self._state = "bare"
            else:
                return ""
        if self._state == "breaks":
            self._buffer = self._buffer.lstrip("\r\n")
            if not self._buffer:
                return ""
            self._state = "opened"
        return self._give(len(self._buffer) - (self._tail() if self._state == "opened" else 0))

    def finish(self) -> str:
        body = self._buffer.rstrip()
        if self._state == "opened" and body.endswith(self._closing):
            self._buffer = body.removesuffix(self._closing).rstrip("\r\n")
        return self._give(len(self._buffer))

    def _tail(self) -> int:
        """Characters at the end that may be the closing tag with the white space around it."""
        body = self._buffer.rstrip()
        kept = len(self._closing) if body.endswith(self._closing) else held_back(self._buffer, (self._closing,))
        head = (body if body.endswith(self._closing) else self._buffer)[: -kept or None]
        return len(self._buffer) - len(head.rstrip())

    def _give(self, count: int) -> str:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        return text
