"""Where a block of calls ends: at a closing mark, or where its brackets close. Each character is looked at once."""

from __future__ import annotations

from typing import Protocol


class Ending(Protocol):
    """Finds the end of a block that grows."""

    def find(self, block: str) -> int | None:
        """The length of the block's text up to its end, or None while it is open; `block` only grows."""


class UntilMark:
    """Ends with the first of `marks` after the opening one."""

    def __init__(self, start: int, marks: tuple[str, ...]) -> None:
        self._next = start
        self._marks = marks
        self._longest = max(len(mark) for mark in marks)

    def find(self, block: str) -> int | None:
        found = [(at, len(mark)) for mark in self._marks if (at := block.find(mark, self._next)) >= 0]
        if found:
            at, length = min(found)
            return at + length
        self._next = max(self._next, len(block) - self._longest + 1)
        return None


class UntilClosed:
    """Ends with the bracket that closes the first one. Quotes are those of JSON, with `single` also Python's."""

    def __init__(self, start: int, single: bool = False) -> None:
        self._at = start
        self._quotes = "\"'" if single else '"'
        self._depth = 0
        self._quote = ""
        self._escaped = False

    def find(self, block: str) -> int | None:
        while self._at < len(block):
            char = block[self._at]
            self._at += 1
            if self._quote:
                self._in_text(char)
            elif char in self._quotes:
                self._quote = char
            elif char in "[{(":
                self._depth += 1
            elif char in "]})":
                self._depth -= 1
                if self._depth <= 0:
                    return self._at
        return None

    def _in_text(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == self._quote:
            self._quote = ""
