"""Attention by its definition in float64: what every implementation is compared with."""

import gguf
import numpy as np

BYTES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "Q8_0": np.uint8}
"""What arrays that a store lies in are made of."""


def store_of(slots, groups, width, fmt):
    """An empty store [slots, groups, row]."""
    return np.zeros((slots, groups, -(-width // 32) * 34 if fmt == "Q8_0" else width), BYTES[fmt])


def held(store, width, fmt):
    """What a store holds as float32 [slots, groups, width], by the gguf package."""
    rows = store.view(np.uint8).reshape(len(store) * store.shape[1], -1)
    values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[fmt])
    return values.reshape(*store.shape[:2], -1)[..., :width].astype(np.float32)


def slots_of(table, page, count):
    """Where the positions 0 .. count - 1 lie."""
    at = np.arange(count)
    return table[at // page] * page + at % page


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


def most_error(q, k, v, first, scale):
    """What rounding to float32 may do to `attended`, [T, H, 1].

    A score is off by at most gamma(d + 2) sum |q_i k_i|, as is the exponent of its weight; every rescaling to a higher
    score (at most one per block of 64 and one per segment of 512, whose exponents add up to no more than the scores'
    range) and the exponential itself add a few units; so do the sums over positions. The quotient doubles all of it.
    """
    unit = 2.0**-24
    tokens, heads, d = q.shape
    repeat = heads // k.shape[1]
    keys, values = (np.repeat(np.abs(x.astype(np.float64)), repeat, axis=1) for x in (k, v))
    products = np.einsum("thd,lhd->thl", np.abs(q.astype(np.float64)), keys).max(axis=-1) * scale
    length = first + tokens
    rescalings = length // 64 + length // 512 + 2
    exponent = (d + 2) * unit * products + 4 * products * unit
    weights = exponent + 6 * unit * rescalings + (length + rescalings) * unit
    return 1.01 * (2 * weights + 2 * unit)[..., None] * values.max(axis=(0, 2))[None, :, None]
