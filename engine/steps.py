"""A step's forward pass. One token of one request, which is how answers are written, takes the same native calls every
time: they are recorded once and made again without Python, whose part would else be a tenth of the step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hetero.engine.batch import Batch, make_batch
from hetero.engine.ops import Ops, Runtime
from hetero.engine.pages import PAGE, Sequence
from hetero.engine.timing import Stopwatch, TimedOps
from hetero.models.config import ModelConfig
from hetero.native import Kernels, Pool
from hetero.native.replay import Recording, Replay

Part = tuple[Sequence, list[int], list[int]]
"""A sequence, its new tokens and the rows among them whose logits are wanted."""
Forward = Callable[[ModelConfig, Batch, Ops], torch.Tensor]
Floats = npt.NDArray[np.float32]
_AHEAD = 64
"""Positions whose angles are computed at a time."""
_ATTEMPTS = 2
"""Steps that are recorded at most: the first may have been the one that packs a router."""


class _Watch(TorchDispatchMode):  # type: ignore[misc]  # torch gives it no type
    """Keeps the tensors that are made, and tells whether torch has computed anything."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; to say so to torch would load its compiler: 80 MB and a second."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []
        self.computed: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__.startswith(("empty", "new_empty")):
            self.made.append(out)
        elif not func.is_view:
            self.computed = func.overloadpacket.__name__
        return out


@dataclass(frozen=True, slots=True)
class Kept:
    """What else a recorded step needs: the tensors made in it, each call's stage, and the angles of positions."""

    made: list[torch.Tensor]
    stages: list[str | None]
    angles_of: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


class _Recorded:
    """The calls of a token's step with the tensors that they work on."""

    def __init__(self, replay: Replay, batch: Batch, ops: Ops, logits: torch.Tensor, kept: Kept) -> None:
        self._replay, self._kept = replay, (ops, batch, kept.made)
        self._angles_of, self.stages = kept.angles_of, kept.stages
        self._ids = batch.token_ids.numpy()
        self._logits: Floats = logits.numpy()
        self._cos, self._sin = (part.numpy() for part in ops.angles)
        self._ahead: tuple[int, list[Floats]] = (-_AHEAD, [])

    def run(self, sequence: Sequence, token: int, watch: Stopwatch | None) -> Floats:
        """Logits [1, vocab], which the next run overwrites."""
        self._ids[0] = token
        self._turn(sequence.length)
        self._replay.run(sequence.length, sequence.pages, timed=watch is not None)
        if watch is not None:
            watch.add(self.stages, self._replay.seconds.tolist())
            self._replay.seconds[:] = 0
        return self._logits

    def _turn(self, position: int) -> None:
        """Put in the angles of a position; those of the next ones are computed with them."""
        first, angles = self._ahead
        if not first <= position < first + _AHEAD:
            with torch.inference_mode():
                angles = [part.numpy() for part in self._angles_of(torch.arange(position, position + _AHEAD))]
            first, self._ahead = position, (position, angles)
        self._cos[0], self._sin[0] = (part[position - first] for part in angles)


class Steps:
    """Runs `forward` on batches."""

    def __init__(self, config: ModelConfig, forward: Forward, runtime: Runtime, pool: Pool, context: int) -> None:
        self._config, self._forward, self._runtime, self._pool = config, forward, runtime, pool
        self._most_pages = -(-context // PAGE)
        self._watch: Stopwatch | None = None
        self._make_ops: Callable[[Runtime, Batch], Ops] = Ops
        self._forget()

    def _forget(self) -> None:
        self._recorded: _Recorded | None = None
        self._attempts = _ATTEMPTS if self._runtime.repeats else 0

    @contextlib.contextmanager
    def timed(self) -> Iterator[Stopwatch]:
        """While it lasts, steps are timed by stage; only where the dense parts are on the CPU."""
        self._watch = watch = Stopwatch()
        self._forget()
        try:
            yield watch
        finally:
            self._watch = None
            self._forget()

    @contextlib.contextmanager
    def using(self, make_ops: Callable[[Runtime, Batch], Ops]) -> Iterator[None]:
        """While it lasts, steps are run by the operations that `make_ops` gives, all of them in Python."""
        self._make_ops = make_ops
        self._forget()
        self._attempts = 0
        try:
            yield
        finally:
            self._make_ops = Ops
            self._forget()

    def logits(self, parts: list[Part]) -> Floats:
        """Logits float32 [wanted rows, vocab] of one ragged batch, good until the next one.

        Sequences must have been prepared; the caller extends them.
        """
        one = len(parts) == 1 and len(parts[0][1]) == len(parts[0][2]) == 1
        if one and self._recorded is not None:
            sequence, (token,), _ = parts[0]
            return self._recorded.run(sequence, token, self._watch)
        with torch.inference_mode():
            batch = make_batch(parts, self._runtime.owner.device)
            make_ops = self._make_ops if self._watch is None else partial(TimedOps, self._watch)
            ops = make_ops(self._runtime, batch)
            if one and self._attempts:
                self._attempts -= 1
                logits = self._record(batch, ops)
            else:
                logits = self._forward(self._config, batch, ops)
        rows: Floats = logits.to("cpu").numpy()
        return rows

    def _record(self, batch: Batch, ops: Ops) -> torch.Tensor:
        kernels: Kernels = self._runtime.kernels
        recording, watch, stages = Recording(kernels), _Watch(), list[str | None]()

        def listen(function: str, arguments: tuple[Any, ...]) -> None:
            recording(function, arguments)
            stages.append(None if self._watch is None else self._watch.stage)

        with kernels.heard_by(listen), watch:
            logits = self._forward(self._config, batch, ops)
        if ops.repeatable and watch.computed is None and recording.foreign is None:
            replay = Replay(kernels, self._pool, recording, self._most_pages)
            kept = Kept(watch.made, stages, self._runtime.angles)
            self._recorded = _Recorded(replay, batch, ops, logits, kept)
        return logits
