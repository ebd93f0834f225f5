"""One timed run of a loaded engine at a time, with the same random prompts in every run and for every engine."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hetero.engine import Engine

_SEED = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """Prompt tokens to read, tokens to write (0: not measured) and tokens in the context before writing."""

    prefill: int
    decode: int
    depth: int


class Turns:
    """The runs of one engine."""

    def __init__(self, engine: Engine, sizes: Sizes) -> None:
        self._engine, self._count = engine, sizes.decode
        draw, tokens = random.Random(_SEED), engine.text.n_tokens
        self.prompt = [draw.randrange(tokens) for _ in range(sizes.prefill)]
        self.start = [draw.randrange(tokens) for _ in range(max(sizes.depth, 1))]

    def prefill(self) -> float:
        """Prompt tokens per second until the first token is there; no earlier run's KV cache is used."""
        from hetero.engine import Sampling

        began = time.perf_counter()
        for _ in self._engine.generate(self.prompt, Sampling(max_tokens=1, ignore_eos=True), reuse=False):
            pass
        return len(self.prompt) / (time.perf_counter() - began)

    def decode(self) -> float:
        """Tokens per second over steps of one token each, counted from the token that prefill yields."""
        from hetero.engine import Sampling, Token

        times: list[float] = []
        for event in self._engine.generate(self.start, Sampling(max_tokens=self._count + 1, ignore_eos=True)):
            if isinstance(event, Token):
                times.append(time.perf_counter())
                if len(times) == 1:
                    self.decode_begins()
        return (len(times) - 1) / (times[-1] - times[0])

    def decode_begins(self) -> None:
        """Called when the prompt has been read and single tokens follow."""
