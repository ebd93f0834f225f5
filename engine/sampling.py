"""From one row of logits to one token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hetero.machine.types import ModelError, UsageError

Floats = npt.NDArray[np.float32]
_FIRST_LOOK = 64
"""Likeliest tokens among which top-p is first looked for: with most models it ends there."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. `temperature` 0 is greedy; `top_k` 0 and `max_tokens` None mean no limit.

    `repetition_penalty` divides positive and multiplies negative logits of every token seen (Keskar et al. 2019).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        limits = {
            "temperature": (self.temperature, 0.0, 100.0),
            "top_k": (self.top_k, 0, 2**31),
            "top_p": (self.top_p, 0.0, 1.0),
            "min_p": (self.min_p, 0.0, 1.0),
            "repetition_penalty": (self.repetition_penalty, 1e-3, 100.0),
            "max_tokens": (1 if self.max_tokens is None else self.max_tokens, 1, 2**31),
            "seed": (0 if self.seed is None else self.seed, 0, 2**63),
        }
        for name, (value, low, high) in limits.items():
            if not low <= value <= high:  # also catches NaN
                raise UsageError(f"{name} is {value}, must lie in {low} to {high}", "see hetero chat --help")


class Sampler:
    """Chooses the tokens of one request; the same seed and logits give the same tokens."""

    def __init__(self, sampling: Sampling, vocab: int) -> None:
        self.sampling = sampling
        self._rng = np.random.Generator(np.random.Philox(sampling.seed))
        self._seen = np.zeros(vocab, dtype=bool)

    def observe(self, token_ids: list[int]) -> None:
        """Count `token_ids` as seen by the repetition penalty."""
        self._seen[token_ids] = True

    def choose(self, logits: Floats) -> int:
        """The next token for float32 `logits` [vocab]. Raises ModelError where the best of them is not finite."""
        if self.sampling.repetition_penalty != 1.0:
            logits = self._penalised(logits)
        best = int(logits.argmax())  # a NaN counts as the largest
        if not np.isfinite(logits[best]):
            raise ModelError(
                f"the model's logits are not finite ({logits[best]} for token {best})",
                "the weights may be damaged: get the model again; or its activations overflow: try --kv-dtype f32",
            )
        if self.sampling.temperature == 0.0:
            return best
        ids, weights = self._candidates(logits)
        up_to = np.cumsum(weights, dtype=np.float64)
        index = int(np.searchsorted(up_to, self._rng.random() * up_to[-1], side="right"))
        return int(ids[min(index, len(ids) - 1)])

    def _penalised(self, logits: Floats) -> Floats:
        penalty = np.float32(self.sampling.repetition_penalty)
        changed = np.where(logits > 0, logits / penalty, logits * penalty)
        return np.where(self._seen, changed, logits)

    def _candidates(self, logits: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
        """Tokens left by top-k, then top-p, then min-p, and their probabilities up to a common factor.

        Sorting a whole vocabulary takes longer than a small model's step, so only what may stay is ever sorted.
        """
        s = self.sampling
        ids = np.arange(len(logits))
        if 0 < s.top_k < len(logits):
            ids = np.argpartition(logits, -s.top_k)[-s.top_k :]
        kept = logits[ids]
        # float32 has no smaller temperature whose quotients are numbers; this one is greedy already
        with np.errstate(over="ignore"):
            weights = np.exp((kept - kept.max()) / max(s.temperature, 1e-30))
        if s.top_p < 1.0:
            ids, weights = _nucleus(ids, weights, s.top_p)
        keep = (weights > 0) & (weights >= s.min_p * weights.max())
        return ids[keep], weights[keep]


def _nucleus(ids: npt.NDArray[np.int64], weights: Floats, top_p: float) -> tuple[npt.NDArray[np.int64], Floats]:
    """The fewest tokens whose share of all weights reaches `top_p`, the likeliest first; at least one."""
    wanted, count = top_p * weights.sum(dtype=np.float64), _FIRST_LOOK
    part = np.arange(len(weights))
    while count < len(weights):
        best = np.argpartition(weights, -count)[-count:]
        if weights[best].sum(dtype=np.float64) > wanted:
            part = best
            break
        count *= 8
    order = part[np.lexsort((ids[part], -weights[part]))]
    before = np.cumsum(weights[order], dtype=np.float64) - weights[order]
    keep = before < wanted  # the token that crosses top-p stays
    keep[0] = True
    return ids[order[keep]], weights[order[keep]]
