"""Operations that say how long they take, by stage, for `hetero bench --roofline`. Nothing else uses them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from hetero.engine.batch import Batch
from hetero.engine.ops import Ops, Runtime
from hetero.models.blocks import Passage, Recurrence, Selection
from hetero.models.stages import STAGES, stage_of

Result = TypeVar("Result")


class Stopwatch:
    """Seconds of each stage since it was last cleared."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.stage: str | None = None
        """The stage that is being timed."""

    def clear(self) -> None:
        """Start again."""
        self.seconds = dict.fromkeys(STAGES, 0.0)

    def time(self, stage: str, work: Callable[[], Result]) -> Result:
        """The result of `work`, whose time is added to `stage`."""
        self.stage, began = stage, time.perf_counter()
        result = work()
        self.seconds[stage] += time.perf_counter() - began
        self.stage = None
        return result

    def add(self, stages: Sequence[str | None], seconds: Sequence[float]) -> None:
        """Count times of stages that were taken elsewhere; None is no stage."""
        for stage, taken in zip(stages, seconds, strict=True):
            if stage is not None:
                self.seconds[stage] += taken


class TimedOps(Ops):
    """Ops on the CPU, where a call has finished when it returns."""

    def __init__(self, watch: Stopwatch, runtime: Runtime, batch: Batch) -> None:
        super().__init__(runtime, batch)
        self._watch = watch

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._watch.time("embedding", lambda: super(TimedOps, self).embed(token_ids))

    def norm(self, name: str, x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
        return self._watch.time("norms", lambda: super(TimedOps, self).norm(name, x, eps))

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self._watch.time(stage_of(name), lambda: super(TimedOps, self).linear(name, x))

    def linears(self, names: list[str], x: torch.Tensor) -> list[torch.Tensor]:
        return self._watch.time(stage_of(names[0]), lambda: super(TimedOps, self).linears(names, x))

    def gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return self._watch.time("dense mlp", lambda: super(TimedOps, self).gated(gate, up))

    def rotate(self, x: torch.Tensor, interleaved: bool | None = None) -> torch.Tensor:
        return self._watch.time("attention", lambda: super(TimedOps, self).rotate(x, interleaved))

    def experts(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self._watch.time("experts", lambda: super(TimedOps, self).experts(layer, x, ids, weights))

    def attention(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        norms: tuple[str, str] | None = None,
        *,
        rope: bool = True,
        window: int | None = None,
        chunk: int | None = None,
        sinks: str | None = None,
    ) -> torch.Tensor:
        attend = partial(super().attention, rope=rope, window=window, chunk=chunk, sinks=sinks)
        return self._watch.time("attention", lambda: attend(layer, q, k, v, scale, norms))

    def recurrent(self, layer: int, step: Recurrence, inputs: list[torch.Tensor]) -> torch.Tensor:
        return self._watch.time("attention", lambda: super(TimedOps, self).recurrent(layer, step, inputs))

    def heads(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self._watch.time(stage_of(name), lambda: super(TimedOps, self).heads(name, x))

    def keeping(self, layer: int, step: Passage, inputs: list[torch.Tensor]) -> torch.Tensor:
        return self._watch.time("attention", lambda: super(TimedOps, self).keeping(layer, step, inputs))

    def index(self, layer: int, keys: torch.Tensor) -> None:
        self._watch.time("attention", lambda: super(TimedOps, self).index(layer, keys))

    def choose(self, layer: int, q: torch.Tensor, weights: torch.Tensor, top_k: int) -> Selection:
        return self._watch.time("attention", lambda: super(TimedOps, self).choose(layer, q, weights, top_k))

    def latent_attention(
        self,
        layer: int,
        q_nope: torch.Tensor,
        q_rope: torch.Tensor,
        latent: torch.Tensor,
        scale: float,
        select: Selection | None = None,
    ) -> torch.Tensor:
        parts = layer, q_nope, q_rope, latent, scale, select
        return self._watch.time("attention", lambda: super(TimedOps, self).latent_attention(*parts))
