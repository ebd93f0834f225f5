"""How numbers and names read on the screen; nothing here prints."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# Control characters could drive the terminal (a checkpoint or a model's answer may hold any), so they are shown
# as U+FFFD; carriage returns vanish. Newline and tab stay.
_CONTROLS: dict[int, str | None] = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "\ufffd")
_CONTROLS.update({ord("\t"): "\t", ord("\n"): "\n", ord("\r"): None})


def clean(text: str) -> str:
    """`text` without control characters other than newline and tab."""
    return text.translate(_CONTROLS)


def one_line(text: str) -> str:
    """`text` cleaned, with every run of white space as one space."""
    return " ".join(clean(text).split())


def rate(per_second: float) -> str:
    """Tokens per second with as many digits as mean something."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.1f}"


def plural(count: int, noun: str) -> str:
    """`1 token`, `2 tokens`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def amount(value: float) -> str:
    """Parameters as people count them: `671 B`, `9.66 M`."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:,.0f}"


def nearest(word: str, known: Iterable[str], likeness: float = 0.5) -> str | None:
    """The known word most like `word`, or None when none is near; a `likeness` of 1 is the same word."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=likeness)
    return matches[0] if matches else None


def per_second(count: int, seconds: float) -> float | None:
    """A rate, or None where nothing was counted or timed."""
    return count / seconds if count > 0 and seconds > 0 else None
