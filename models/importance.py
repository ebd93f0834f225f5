"""How much each input of the experts' matrices counts, and how much each layer: what running a text has shown.

The output error of a matrix W whose inputs are uncorrelated is sum_k E[x_k^2] sum_n dW[n, k]^2, so an input counts by
its mean square; llama.cpp's importance matrices hold the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_PRIOR = 32
"""Tokens' worth of the layer's mean that each expert's own is blended with: rarely chosen experts have seen few."""
_LEAST = 1e-3
"""Of an expert's mean, the least that an input counts: what the text did not use may be used by another."""


@dataclass(frozen=True, slots=True)
class LayerImportance:
    """One layer of experts. Rows have the mean 1 and no zeros.

    `inputs` float32 [E, hidden] is of gate and up, `hiddens` float32 [E, inter] of down, `usage` float32 [E] each
    expert's share of the layer. `sensitivity` is the KL of the model's answers, in nats per token, per relative squared
    error of the layer's output.
    """

    inputs: Floats
    hiddens: Floats
    usage: Floats
    sensitivity: float = 1.0

    def of(self, part: str, expert: int) -> Floats:
        """float32 [k]: of the inputs of one of an expert's matrices (gate, up, down)."""
        row: Floats = (self.hiddens if part == "down" else self.inputs)[expert]
        return row


@dataclass(frozen=True, slots=True)
class Importance:
    """Of every layer of experts. `name` tells the text, the same for the same text."""

    name: str
    tokens: int
    layers: Mapping[int, LayerImportance]


def importance_of(squares: Floats, weights: Floats, visits: npt.NDArray[np.int64]) -> Floats:
    """float32 [E, k] from sums over tokens: `squares` [E, k] of w^2 x^2, `weights` [E] of w^2, and `visits` [E]."""
    total = max(float(weights.sum()), 1e-30)
    layer = squares.sum(0) / total
    own = squares / np.maximum(weights, 1e-30)[:, None]
    share = (visits / (visits + _PRIOR))[:, None]
    mixed = share * own + (1 - share) * layer
    mean = np.maximum(mixed.mean(axis=1, keepdims=True), 1e-30)
    floored = np.maximum(mixed / mean, _LEAST)
    out: Floats = (floored / floored.mean(axis=1, keepdims=True)).astype(np.float32)
    return out
