"""Perplexity, divergence, and differences of the two window by window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


def log_softmax(logits: npt.NDArray[Any]) -> Values:
    """float64, over the last axis."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    out: Values = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return out


def divergence(p: Values, q: Values) -> Values:
    """KL(p || q) of each token, both log probabilities [T, vocab]."""
    out: Values = (np.exp(p) * (p - q)).sum(axis=-1)
    return out


def loss(p: Values, ids: Sequence[int]) -> float:
    """Mean negative log likelihood of every token but the first."""
    return float(-p[np.arange(len(ids) - 1), ids[1:]].mean())


@dataclass(frozen=True, slots=True)
class Paired:
    """A mean over windows of differences, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, a: Sequence[float], b: Sequence[float]) -> Paired:
        delta = np.subtract(a, b)
        return cls(float(delta.mean()), float(delta.std(ddof=1) / len(delta) ** 0.5))

    def above(self, errors: float) -> bool:
        """Whether the first is larger by more than `errors` standard errors."""
        return self.mean > errors * self.error

    def __str__(self) -> str:
        return f"{self.mean:+.1e} ± {self.error:.0e}"
