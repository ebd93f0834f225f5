"""Which requests take part in the next step."""

from __future__ import annotations

from collections import deque

from hetero.engine.kvcache import KVCache
from hetero.engine.pages import PAGE
from hetero.engine.request import Request


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE)


class Schedule:
    """Admits waiting requests in order once the cache can hold each to its limit; so none is ever thrown out."""

    def __init__(self, kv: KVCache, chunk: int) -> None:
        self._kv, self._chunk = kv, chunk
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    def add(self, request: Request) -> None:
        self._waiting.append(request)

    def remove(self, request: Request) -> None:
        """Give the request's place in the cache back, wherever it stands."""
        if request in self._waiting:
            self._waiting.remove(request)
        if request in self._running:
            self._running.remove(request)
            assert request.sequence is not None
            self._kv.close(request.sequence)

    def admit(self) -> None:
        """Move waiting requests into the cache while their whole length still fits beside what is promised."""
        while self._waiting and self._kv.has_slot:
            request = self._waiting[0]
            sequence = self._kv.open(request.ids, request.reuse)
            promised = sum(_pages(r.limit) - len(r.sequence.pages) for r in self._running if r.sequence)
            if _pages(request.limit) - len(sequence.pages) > self._kv.pool.available - promised:
                self._kv.close(sequence)
                return
            self._waiting.popleft()
            self._kv.enter(sequence)
            request.start(sequence)
            self._running.append(request)

    def next(self) -> list[tuple[Request, list[int]]]:
        """Requests of the next step with their tokens: every decoding one, and prompts up to the chunk size."""
        budget, work = self._chunk, []
        for request in self._running:
            tokens = request.next_tokens(budget)
            if not tokens:
                continue
            assert request.sequence is not None
            reserved = self._kv.pool.reserve(request.sequence, request.sequence.length + len(tokens))
            assert reserved, "admitted without room for its whole length"
            budget -= len(tokens) if not request.new else 0
            work.append((request, tokens))
        return work
