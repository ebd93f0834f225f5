"""One request on its way through the engine."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from hetero.engine.events import Done, Event, Prefill, Token
from hetero.engine.pages import Sequence
from hetero.engine.sampling import Sampler
from hetero.models.text import IncrementalDecoder

Floats = npt.NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Request:
    """Prompt `ids`, at most `limit` tokens in all, and what has become of it.

    With `collect` set nothing is sampled: the logits of every prompt token are kept instead.
    """

    ids: list[int]
    limit: int
    sampler: Sampler
    decoder: IncrementalDecoder
    stop_ids: frozenset[int]
    reuse: bool = True
    collect: bool = False
    sequence: Sequence | None = None
    cached: int = 0
    new: list[int] = field(default_factory=list)
    events: deque[Event] = field(default_factory=deque)
    rows: list[Floats] = field(default_factory=list)
    finished: bool = False
    started: float = 0.0
    first_token: float = 0.0

    def start(self, sequence: Sequence) -> None:
        """Enter the cache with the prefix that `sequence` already holds."""
        self.sequence, self.cached, self.started = sequence, sequence.length, time.perf_counter()

    def next_tokens(self, budget: int) -> list[int]:
        """The tokens to compute next: the last generated one, or up to `budget` of the prompt."""
        assert self.sequence is not None
        if self.new:
            return self.new[-1:]
        return self.ids[self.sequence.length : self.sequence.length + budget]

    def wanted_rows(self, n_tokens: int) -> list[int]:
        """Which of the next `n_tokens` need logits."""
        assert self.sequence is not None
        if self.collect:
            return list(range(n_tokens))
        done = self.sequence.length + n_tokens
        return [n_tokens - 1] if done >= len(self.ids) else []

    def accept(self, logits: Floats) -> None:
        """Take the logits [wanted rows, vocab] of a step that is now in the cache; emit what follows from them.

        They may be overwritten afterwards.
        """
        assert self.sequence is not None
        if not self.new:
            self.events.append(Prefill(self.sequence.length, len(self.ids), self.cached))
        if self.collect:
            self.rows.append(logits.copy())
            self.finished = self.sequence.length == len(self.ids)
        elif len(logits):
            self._take_token(self.sampler.choose(logits[-1]))

    def _take_token(self, token: int) -> None:
        if not self.new:
            self.first_token = time.perf_counter()
        if token in self.stop_ids:
            self.finish("stop")
            return
        self.new.append(token)
        self.sampler.observe([token])
        self.events.append(Token(token, self.decoder.push(token)))
        if len(self.ids) + len(self.new) >= self.limit:
            self.finish("length")

    def finish(self, reason: Literal["stop", "length", "cancelled"]) -> None:
        """End the request; its Done event is the last."""
        now = time.perf_counter()
        first = self.first_token or now
        prefill = first - self.started if self.started else 0.0
        done = Done(reason, len(self.ids), self.cached, len(self.new), prefill, now - first, self.decoder.finish())
        self.events.append(done)
        self.finished = True
