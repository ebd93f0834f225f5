"""What the engine tells about a request while it works on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens are in the KV cache, `cached` of them from earlier requests."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token and the text that it completes ("" while a character is incomplete)."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The request's end. `tail` is text that was held back; seconds are wall clock of this request."""

    reason: Literal["stop", "length", "cancelled"]
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    tail: str = ""


Event = Prefill | Token | Done
