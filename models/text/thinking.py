"""Separates what a model thinks from what it answers, by the tags around the thinking."""

from __future__ import annotations

from typing import Literal

Part = tuple[Literal["thinking", "answer"], str]

TAGS: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
)


def held_back(text: str, tags: tuple[str, ...]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `tags`."""
    if not tags:
        return 0
    longest = min(len(text), max(len(tag) for tag in tags) - 1)
    for count in range(longest, 0, -1):
        if any(tag.startswith(text[-count:]) for tag in tags):
            return count
    return 0


def _opened_by(prompt_tail: str) -> tuple[str, str] | None:
    """The pair of tags that the template opened: only at the very end, as users may write about tags before."""
    end = prompt_tail.rstrip()
    return next((pair for pair in TAGS if end.endswith(pair[0])), None)


class ThinkingSplitter:
    """Feed it an answer as it streams in; it yields ("thinking" | "answer", text) parts in order.

    It starts inside the thinking if the rendered prompt ends with an opening tag. Otherwise a tag counts only at the
    beginning of the output, so that an answer may talk about tags. Thinking that is never closed stays thinking.
    Line breaks just inside the opening and just after the closing tag are dropped. The marks `until` end thinking as
    well, but belong to the answer.
    """

    def __init__(self, prompt_tail: str, until: tuple[str, ...] = ()) -> None:
        self._until = until
        opened = _opened_by(prompt_tail)
        self._closing = opened[1] if opened else ""
        self._state: Literal["start", "thinking", "answer"] = "thinking" if opened else "start"
        self._buffer = ""
        self._drop_breaks = opened is not None

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain after `text`; what may be half a tag is held back."""
        self._buffer += text
        parts: list[Part] = []
        if self._state == "start":
            self._look_for_opening()
        if self._state == "thinking":
            self._think(parts)
        if self._state == "answer":
            self._emit(parts, "answer", len(self._buffer))
        return parts

    def finish(self) -> list[Part]:
        """Ends the output: gives out what was held back, as what it would have been."""
        parts: list[Part] = []
        self._emit(parts, "thinking" if self._state == "thinking" else "answer", len(self._buffer))
        return parts

    def _look_for_opening(self) -> None:
        body = self._buffer.lstrip()
        for opening, closing in TAGS:
            if body.startswith(opening):
                self._buffer, self._closing = body[len(opening) :], closing
                self._state, self._drop_breaks = "thinking", True
                return
        if body and not any(opening.startswith(body) for opening, _ in TAGS):
            self._state = "answer"

    def _think(self, parts: list[Part]) -> None:
        ends = (self._closing, *self._until)
        found = [(at, end) for end in ends if (at := self._buffer.find(end)) >= 0]
        if not found:
            self._emit(parts, "thinking", len(self._buffer) - held_back(self._buffer, ends))
            return
        at, end = min(found)
        self._emit(parts, "thinking", at)
        if end == self._closing:
            self._buffer = self._buffer[len(end) :]
        self._state, self._drop_breaks = "answer", end == self._closing

    def _emit(self, parts: list[Part], kind: Literal["thinking", "answer"], count: int) -> None:
        text, self._buffer = self._buffer[:count], self._buffer[count:]
        if self._drop_breaks:
            text = text.lstrip("\r\n")
            self._drop_breaks = not text
        if text:
            parts.append((kind, text))
