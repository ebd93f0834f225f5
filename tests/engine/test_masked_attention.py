"""Ops.attention with every owner: masks, sinks and rotation for several requests at once, in chunks and at once."""

import numpy as np
import pytest
import torch

from hetero.engine import ops
from hetero.engine.attention import NativeAttention, TorchAttention
from hetero.engine.batch import make_batch
from hetero.engine.kvcache import KVCache
from hetero.engine.ops import Ops
from hetero.models.config import State
from hetero.models.rope import rotate
from hetero.native import Kernels, Pool, cpu_tiers
from tests.native.attention_reference import attended

HEADS, GROUPS, D, SCALE = 4, 2, 16, 0.4
LENGTHS = (90, 7, 131)
SINKS, NORM = "sinks", "norm"
OWNERS = ["torch", *(t.name for t in cpu_tiers() if t.built and t.usable)]


class Config:
    """What Ops and KVCache read of a model's."""

    n_layers, rms_norm_eps, recurrent_bytes = 1, 1e-6, 0

    class rope:
        interleaved = False

    @staticmethod
    def layer_states(layer):
        return dict.fromkeys(("k", "v"), State((GROUPS, D)))


class Owner:
    """Torch's norm and rotation with two small tensors."""

    def __init__(self, small):
        self.small = small.get

    def norm(self, x, weight, eps):
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)

    def rotate(self, x, angles, weight, eps):
        x = x if weight is None else self.norm(x, weight, eps)
        return rotate(x, angles.cos[:, None], angles.sin[:, None], angles.interleaved)


class Runtime:
    """A runtime of one layer whose rotation covers half of each head."""

    config, rotation_scale = Config(), 1.0
    inverse = 1 / 100 ** (torch.arange(D // 4) / (D // 4))
    angles = ops.Runtime.angles

    def __init__(self, attention, small):
        self.attention, self.owner = attention, Owner(small)


@pytest.fixture(params=OWNERS)
def make(request):
    """(KVCache, its attention) by the owner under test."""
    kernels = None if request.param == "torch" else Kernels(request.param)
    pools = []

    def new():
        kv = KVCache(Config(), 1024, "f32", torch.device("cpu"))
        if kernels is None:
            return kv, TorchAttention(kv)
        pools.append(Pool([0, 1], kernels))
        return kv, NativeAttention(kv, kernels, pools[-1])

    yield new
    for pool in pools:
        pool.close()


def run(kv, attention, inputs, small, step, **options):
    """Every request's outputs, its tokens given `step` at a time beside the others'."""
    sequences = [kv.open([1] * length, reuse=False) for length in LENGTHS]
    outs = [[] for _ in LENGTHS]
    runtime = Runtime(attention, small)
    while any(s.length < length for s, length in zip(sequences, LENGTHS, strict=True)):
        parts, rows = [], []
        for i, sequence in enumerate(sequences):
            count = min(step, LENGTHS[i] - sequence.length)
            if count:
                assert kv.pool.reserve(sequence, sequence.length + count)
                parts.append((sequence, [1] * count, []))
                rows.append((i, sequence.length, count))
        batch = make_batch(parts, torch.device("cpu"))
        q, k, v = (torch.cat([inputs[i][j][at : at + n] for i, at, n in rows]) for j in range(3))
        out = Ops(runtime, batch).attention(0, q, k, v, SCALE, **options)
        for (i, _, _), span in zip(rows, batch.spans, strict=True):
            outs[i].append(out[span.start : span.stop])
            kv.pool.extend(sequences[i], [1] * (span.stop - span.start))
    return [torch.cat(parts).numpy() for parts in outs]


def turned(x, weight, rope):
    """x normed and turned in float64."""
    x = x.double()
    if weight is not None:
        x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight
    if rope:
        angles = torch.arange(len(x)).double()[:, None, None] * Runtime.inverse.double()
        x = rotate(x, angles.cos(), angles.sin(), False)
    return x.numpy()


CASES = [
    {},
    {"rope": False},
    {"window": 7},
    {"window": 64, "sinks": SINKS},
    {"chunk": 65, "rope": False, "norms": (NORM, NORM)},
    {"window": 100, "chunk": 128, "sinks": SINKS, "norms": (NORM, NORM)},
]


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("step", [3, 64, 200])
def test_every_request_attends_to_what_it_may_see(make, options, step):
    torch.manual_seed(2)
    inputs = [[torch.randn(length, n, D) for n in (HEADS, GROUPS, GROUPS)] for length in LENGTHS]
    small = {SINKS: torch.randn(HEADS) * 2, NORM: torch.randn(D)}
    found = run(*make(), inputs, small, step, **options)
    weight = small[NORM] if "norms" in options else None
    for (q, k, v), out in zip(inputs, found, strict=True):
        rope = options.get("rope", True)
        q, k = (turned(x, weight, rope) for x in (q, k))
        sinks = small[SINKS].numpy() if "sinks" in options else None
        expected = attended(q, k, v.numpy(), 0, SCALE, options.get("window"), options.get("chunk"), sinks)
        assert np.abs(out - expected).max() < 2e-5
