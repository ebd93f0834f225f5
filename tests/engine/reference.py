"""transformers as the independent reference: logits of a checkpoint directory in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hetero.engine import Engine
from hetero.engine.batch import Span
from hetero.engine.pages import Sequence
from tests.tiny import load_reference

Floats = npt.NDArray[np.float32]


class Choices:
    """What the indexers of an engine choose, and a reference that follows them where its own are undecided.

    Two float32 implementations score a position differently in the last bits, which decides between equals.
    """

    def __init__(self, engine: Engine) -> None:
        self._choose = engine._runtime.indexers.choose
        self._seen: list[tuple[Sequence, dict[tuple[int, int], list[int]]]] = []
        engine._runtime.indexers.choose = self._record  # type: ignore[method-assign]

    def _record(
        self, layer: int, span: Span, q: torch.Tensor, weights: torch.Tensor, top_k: int
    ) -> torch.Tensor | None:
        chosen = self._choose(layer, span, q, weights, top_k)
        if not self._seen or all(sequence is not span.sequence for sequence, _ in self._seen):
            self._seen.append((span.sequence, {}))
        table = next(table for sequence, table in self._seen if sequence is span.sequence)
        for row, positions in enumerate([] if chosen is None else chosen.tolist()):
            table[layer, span.first + row] = positions
        return chosen

    def teach(self, model: Any, ids: list[int]) -> None:
        """Make the indexers of transformers' `model` follow what was last chosen for `ids`, or all of them but one."""
        lengths = len(ids), len(ids) - 1
        seen = reversed(self._seen)
        known = (table for s, table in seen if len(s.tokens) in lengths and s.tokens == ids[: len(s.tokens)])
        table = next(known, {})
        for name, module in getattr(model, "named_modules", list)():
            if name.endswith(".self_attn.indexer"):
                layer = int(name.removesuffix(".self_attn.indexer").rpartition(".")[2])
                module.forward = partial(_follow, module.forward, layer, table)


def _follow(
    forward: Callable[..., torch.Tensor], layer: int, table: dict[tuple[int, int], list[int]], *args: Any, **rest: Any
) -> torch.Tensor:
    own = forward(*args, **rest)
    changed = 0
    decided = own.shape[1] - ((layer, own.shape[1] - 1) not in table)
    for position in range(own.shape[2], decided):
        mine = set(table[layer, position])
        differing = len(mine - set(own[0, position].tolist()))
        assert differing <= 1, f"layer {layer} chooses {differing} other positions for token {position}"
        if differing:
            changed += 1
            own[0, position] = torch.tensor(sorted(mine), dtype=own.dtype)
    assert changed <= 0.02 * own.shape[1], "choices differ more often than an undecided indexer explains"
    return own


def hf_logits(directory: Path, ids: list[int], choices: Choices | None = None) -> Floats:
    """float32 [T, vocab] by transformers, eager attention."""
    model = load_reference(directory)
    if choices is not None:
        choices.teach(model, ids)
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float().numpy()


def relative(found: Floats, expected: Floats) -> float:
    """Largest absolute difference, in standard deviations of the expected logits."""
    return float(np.abs(found - expected).max() / expected.std())
