"""Attention by its definition in float64: what every implementation is compared with."""

import numpy as np


def attended(q, k, v, first, scale, window=None, chunk=None, sinks=None):
    """q [T, H, d] at positions first.. over k [L, G, d] and v [L, G, e]: [T, H, e]."""
    tokens, heads, _ = q.shape
    out = np.empty((tokens, heads, v.shape[2]))
    for t in range(tokens):
        own = first + t
        seen = [p for p in range(own + 1) if window is None or own - p < window]
        seen = [p for p in seen if chunk is None or p // chunk == own // chunk]
        for h in range(heads):
            g = h * k.shape[1] // heads
            scores = k[seen, g].astype(np.float64) @ q[t, h].astype(np.float64) * scale
            extra = [] if sinks is None else [np.float64(sinks[h])]
            top = max([scores.max(), *extra])
            weights = np.exp(scores - top)
            out[t, h] = weights @ v[seen, g].astype(np.float64) / (weights.sum() + sum(np.exp(s - top) for s in extra))
    return out
