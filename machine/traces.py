"""Recorded requests replayed against a cache of KV blocks: how many tokens must be kept for a hit rate.

Reads two kinds of JSON lines, plain or gzipped: Mooncake's (`timestamp` ms, `input_length`, `output_length`,
`hash_ids` of 512-token blocks, chained by prefix over all requests) and coding-agent sessions (`block_size`,
`requests` with `t` seconds, `in`, `out`, `hash_ids` of the session alone, sub-agents nested).
"""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hetero.machine.types import TierError, UsageError

MOONCAKE_BLOCK = 512
GRAIN = 512
"""Blocks of agents' sessions are joined to this many tokens: the hit rate falls by 0.2 points, time by 8."""
_LANES = 16
_PAUSE = 60.0
"""Seconds between two sessions of one agent."""
_BUSY_GAP = 600.0
"""Longer pauses are the user's, not the work's."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: seconds, tokens in and out, and its prompt's full blocks, equal where the whole prefix is."""

    at: float
    tokens_in: int
    tokens_out: int
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """All requests in order of time, of how many sessions that live at once; tokens of a block; busy gaps' mean."""

    requests: tuple[Request, ...]
    live_sessions: int
    block: int
    gap: float

    @property
    def tokens_in(self) -> int:
        return sum(r.tokens_in for r in self.requests)

    @property
    def tokens_out(self) -> int:
        return sum(r.tokens_out for r in self.requests)


@dataclass(frozen=True, slots=True)
class Hit:
    """The share of prompt tokens found in a cache of `tokens`."""

    tokens: int
    rate: float


def read_trace(path: Path) -> Trace:
    """The trace in a file. Raises UsageError naming the line that is no request, TierError on a bad disk."""
    sessions: list[list[Request]] = []
    loose: list[Request] = []
    for number, entry in _lines(path):
        try:
            if "requests" in entry:
                sessions.append(_session(entry, len(sessions)))
            else:
                loose.append(_mooncake(entry))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"{path}: line {number} is no request or session ({error!r})", _EXPECTED) from None
    if bool(sessions) == bool(loose):
        raise UsageError(f"{path}: holds {'two kinds of requests' if sessions else 'no requests'}", _EXPECTED)
    if loose:
        return Trace(tuple(loose), 1, MOONCAKE_BLOCK, 0.0)
    lanes = min(_LANES, len(sessions))
    return Trace(_in_lanes(sessions, lanes), lanes, GRAIN, _gap(sessions))


_EXPECTED = "JSON lines of Mooncake's traces or of agent sessions"


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _object(path, number, line)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", "name a trace") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise TierError(f"{path}: cannot be read: {error}", "check the file") from None


def _object(path: Path, number: int, line: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: line {number} is no JSON ({error})", _EXPECTED) from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: line {number} is no JSON object", _EXPECTED)
    return value


def _mooncake(entry: Mapping[str, Any]) -> Request:
    blocks = tuple((0, int(i)) for i in entry["hash_ids"])
    return Request(entry["timestamp"] / 1000, int(entry["input_length"]), int(entry["output_length"]), blocks)


def _session(entry: Mapping[str, Any], number: int) -> list[Request]:
    step = max(1, GRAIN // int(entry["block_size"]))
    found = [
        # Ids are chained, so that the last small block of a large one tells whether the whole prefix is the same.
        Request(at, int(r["in"]), int(r["out"]), tuple((number, int(i)) for i in r["hash_ids"][step - 1 :: step]))
        for at, r in _flat(entry["requests"], 0.0)
    ]
    return sorted(found, key=lambda r: r.at)


def _flat(requests: Sequence[Mapping[str, Any]], base: float) -> Iterator[tuple[float, Mapping[str, Any]]]:
    for request in requests:
        at = base + float(request["t"])
        if request.get("type") == "subagent":
            yield from _flat(request["requests"], at)
        else:
            yield at, request


def _in_lanes(sessions: Sequence[Sequence[Request]], count: int) -> tuple[Request, ...]:
    """Agents that work through the sessions one after another, each by its own clock."""
    ends = [0.0] * count
    out: list[Request] = []
    for session in sessions:
        lane = min(range(count), key=ends.__getitem__)
        out += [Request(ends[lane] + r.at, r.tokens_in, r.tokens_out, r.blocks) for r in session]
        ends[lane] = max((r.at for r in out[-len(session) :]), default=ends[lane]) + _PAUSE
    return tuple(sorted(out, key=lambda r: r.at))


def _gap(sessions: Sequence[Sequence[Request]]) -> float:
    gaps = [b.at - a.at for session in sessions for a, b in pairwise(session)]
    busy = [gap for gap in gaps if gap <= _BUSY_GAP]
    return sum(busy) / len(busy) if busy else 0.0


def replay(trace: Trace, capacity: int | None) -> Hit:
    """The hit rate of a least-recently-used cache of `capacity` tokens (None: everything is kept).

    Prefix hits only. A request's blocks are touched from its end to its start, so that a prefix outlives its ends.
    """
    kept: OrderedDict[tuple[int, int], None] = OrderedDict()
    most = None if capacity is None else capacity // trace.block
    hit = 0
    for request in trace.requests:
        found = 0
        for block in request.blocks:
            if block not in kept:
                break
            found += 1
        hit += min(found * trace.block, request.tokens_in)
        for block in reversed(request.blocks):
            kept[block] = None
            kept.move_to_end(block)
        while most is not None and len(kept) > most:
            kept.popitem(last=False)
    return Hit(len(kept) * trace.block if capacity is None else capacity, hit / max(1, trace.tokens_in))


def tokens_for(trace: Trace, wanted: float, steps: int = 9) -> tuple[Hit, Hit]:
    """The smallest cache that reaches `wanted`, found by halving to within a tenth, and what keeping all gives.

    Raises UsageError where not even everything gives it.
    """
    best = replay(trace, None)
    if best.rate < wanted:
        raise UsageError(
            f"this trace hits {best.rate:.1%} with everything kept, so not {wanted:.1%}",
            f"--hit-rate {max(0.0, best.rate - 0.005):.2f}",
        )
    low, high, found = trace.block, max(best.tokens, 2 * trace.block), best
    for _ in range(steps):
        middle = round((low * high) ** 0.5)
        tried = replay(trace, middle)
        if tried.rate >= wanted:
            high, found = middle, tried
        else:
            low = middle
        if high < 1.1 * low:
            break
    return found, best
