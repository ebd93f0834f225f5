"""Columns of text for a screen of any width. Written here, as importing a library for it takes longer than a plan."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Collection, Iterator, Sequence

_GAP = 2


def cells(text: str) -> int:
    """Columns that `text` takes on a terminal: two for each wide character, none for what combines with another."""
    if text.isascii():
        return len(text)
    return sum(_cell(char) for char in text)


def _cell(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def grid(rows: Sequence[Sequence[str]], right: Collection[int], room: int) -> Iterator[tuple[int, list[str]]]:
    """The lines of a table of at most `room` columns: each the number of its row and its cells, padded up to the last
    one that is not empty, to be put two spaces apart.

    Where it is too wide the widest columns give way and their cells fold; those in `right` are flush right.
    """
    count = max(len(row) for row in rows)
    full = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = _widths([max(_widest(row[column]) for row in full) for column in range(count)], room)
    for number, row in enumerate(full):
        folded = [fold(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in range(max(map(len, folded))):
            parts = [cell[line] if line < len(cell) else "" for cell in folded]
            parts = [_padded(part, widths[i], i in right) for i, part in enumerate(parts)]
            while len(parts) > 1 and not parts[-1].strip():
                parts.pop()
            yield number, [*parts[:-1], parts[-1].rstrip()]


def fold(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns, broken between words where they fit."""
    lines: list[str] = []
    for line in text.split("\n"):
        if cells(line) <= width:
            lines.append(line)
        elif line.isascii():
            lines += textwrap.wrap(line, width, break_on_hyphens=False)
        else:
            lines += _broken(line, width)
    return lines


def _broken(line: str, width: int) -> Iterator[str]:
    """Broken anywhere: scripts with wide characters have no spaces."""
    part, taken = "", 0
    for char in line:
        size = _cell(char)
        if part and taken + size > width:
            yield part
            part, taken = "", 0
        part, taken = part + char, taken + size
    yield part


def _widest(text: str) -> int:
    return max(map(cells, text.split("\n")))


def _widths(widths: list[int], room: int) -> list[int]:
    """The widest column gives way until all fit, but none below one character."""
    while sum(widths) + _GAP * (len(widths) - 1) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    return widths


def _padded(text: str, width: int, right: bool) -> str:
    room = " " * (width - cells(text))
    return room + text if right else text + room
