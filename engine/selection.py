"""The indexer of sparse attention: which positions of its request each new token attends to."""

from __future__ import annotations

import torch

from hetero.engine.batch import Span
from hetero.engine.kvcache import KVCache

_PRODUCTS = 1 << 24
"""Products of queries and keys that are held at a time, so that a long context needs no more memory than 64 MiB."""
_KEYS = 8192
"""Keys that are float32 at a time: those of a narrower cache are then widened without leaving the CPU's caches."""


class Indexers:
    """Keeps the keys of a model's indexers in the KV cache and ranks positions by them."""

    def __init__(self, kv: KVCache) -> None:
        self._kv = kv

    def append(self, layer: int, span: Span, keys: torch.Tensor) -> None:
        """Store the keys [T, d] of a span's tokens."""
        self._kv.append(layer, "index", span.sequence, span.first, keys)

    def choose(
        self, layer: int, span: Span, q: torch.Tensor, weights: torch.Tensor, top_k: int
    ) -> torch.Tensor | None:
        """The `top_k` best positions for each token of a span, int64 [T, top_k] ascending; None where all are seen.

        A position's score is sum_h w_h relu(q_h . k) for q [T, H, d] and weights [T, H] (DeepSeek-V3.2, equation 1; its
        positive factors change no order). A token that has fewer positions gets all of them and some after its own.
        """
        if span.length <= top_k:
            return None
        step = max(1, _PRODUCTS // (q.shape[1] * min(span.length, _KEYS)))
        positions = torch.arange(span.length, device=q.device)
        parts = []
        for start in range(0, len(q), step):
            some = slice(start, start + step)
            blocks = self._kv.blocks(layer, "index", span.sequence, span.length, _KEYS)
            scores = torch.cat([rank(q[some], weights[some], keys) for keys in blocks], dim=1)
            scores.masked_fill_(positions > positions[span.first :][some, None], float("-inf"))
            parts.append(scores.topk(top_k, dim=-1).indices)
        return torch.cat(parts).sort(dim=-1).values


def rank(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Scores [T, L] of keys [L, d] for q [T, H, d] and weights [T, H]."""
    tokens, heads, _ = q.shape
    products = (q.flatten(0, 1) @ keys.T).relu_().view(tokens, heads, -1)
    return torch.bmm(weights[:, None], products)[:, 0]
