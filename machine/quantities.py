"""Sizes, rates and ranges as people type them: `24G`, `400GB/s`, `context=4k..128k`."""

from __future__ import annotations

import re

from hetero.machine.types import UsageError

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)
_BINARY = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DECIMAL = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_TOKENS = {"": 1, "k": 1024, "m": 1 << 20}
_LARGEST = 1 << 60


def parse_bytes(text: str, what: str) -> int:
    """A size above zero: `24G` and `24GiB` are 2^30 each, `24GB` is 10^9. Raises UsageError naming `what`."""
    return _parse(text, what, _sizes(), "a size such as 24G, 512GiB or 64M")


def parse_bytes_or_zero(text: str, what: str) -> int:
    """As `parse_bytes`, but nothing may be meant: `0`."""
    return 0 if text.strip() in ("0", "0G", "0g", "0GB", "0B") else parse_bytes(text, what)


def parse_rate(text: str, what: str) -> float:
    """Bytes per second above zero: `400GB/s`, `25G/s` (10^9 each) or `400GiB/s`. Raises UsageError."""
    stem, slash, unit = text.partition("/")
    if slash and unit.strip().lower() != "s":
        raise _wrong(text, what, "a rate such as 400GB/s")
    sizes = _sizes() | {letter: _DECIMAL[letter + "b"] for letter in "kmgt"}
    if not slash and stem.strip().replace(".", "", 1).isdigit():
        raise _wrong(text, what, "a rate with its unit, such as 400GB/s")
    return float(_parse(stem, what, sizes, "a rate such as 400GB/s", shown=text))


def parse_tokens(text: str, what: str) -> int:
    """A number of tokens above zero: `8192`, `8k` (1024 each), `200k`. Raises UsageError."""
    return _parse(text, what, _TOKENS, "a number of tokens such as 8192 or 128k")


def parse_count(text: str, what: str) -> int:
    """A whole number above zero. Raises UsageError."""
    return _parse(text, what, {"": 1}, "a whole number above 0")


def _sizes() -> dict[str, int]:
    return _BINARY | {letter + "ib": size for letter, size in _BINARY.items() if size > 1} | _DECIMAL


def _parse(text: str, what: str, units: dict[str, int], expected: str, shown: str | None = None) -> int:
    match = _NUMBER.fullmatch(text)
    unit = match[2].lower() if match else ""
    if match is None or unit not in units:
        raise _wrong(shown or text, what, expected)
    value = float(match[1]) * units[unit]
    if not 1 <= value < _LARGEST:
        raise _wrong(shown or text, what, expected + ", above 0")
    return round(value)


def _wrong(text: str, what: str, expected: str) -> UsageError:
    return UsageError(f"{what} is {text!r}; expected {expected}", "hetero plan --help shows examples")
