"""Sparse attention's parts against float64: what an indexer chooses, and attention over only that."""

import numpy as np
import pytest
import torch

from hetero.engine import selection
from hetero.engine.attention import NativeAttention, TorchAttention
from hetero.engine.batch import make_batch
from hetero.engine.kvcache import KVCache
from hetero.engine.selection import Indexers
from hetero.models.config import State
from hetero.native import Kernels, Pool, cpu_tiers

HEADS, DIM, RANK, ROPE, TOP = 6, 16, 32, 8, 24


class Config:
    n_layers = 1
    recurrent_bytes = 0

    def layer_states(self, layer):
        return {"latent": State((RANK + ROPE,)), "index": State((DIM,))}


@pytest.fixture
def kv():
    return KVCache(Config(), 512, "f32", torch.device("cpu"))


def scattered(kv, length):
    """A sequence of so many tokens whose pages do not follow each other."""
    first, second = kv.open([1] * length, reuse=False), kv.open([1] * length, reuse=False)
    for reserved in range(64, length + 64, 64):
        assert kv.pool.reserve(first, min(reserved, length))
        assert kv.pool.reserve(second, min(reserved, length))
    kv.close(second)
    return first


def span_of(kv, sequence, tokens):
    return make_batch([(sequence, [1] * tokens, [])], torch.device("cpu")).spans[0]


def filled(kv, past, tokens, seed=0):
    """A span of `tokens` after `past`, and all latents and index keys up to its end, the past ones in the cache."""
    g = torch.Generator().manual_seed(seed)
    sequence = scattered(kv, past + tokens)
    latents, keys = (torch.randn(past + tokens, n, generator=g) for n in (RANK + ROPE, DIM))
    kv.append(0, "latent", sequence, 0, latents[:past])
    kv.append(0, "index", sequence, 0, keys[:past])
    kv.pool.extend(sequence, [1] * past)
    return span_of(kv, sequence, tokens), latents, keys


def scores64(q, weights, keys):
    """[T, L] by the formula, -inf after a token's own position."""
    out = (np.maximum(np.einsum("thd,ld->thl", q, keys), 0) * weights[..., None]).sum(1)
    own = len(keys) - len(q) + np.arange(len(q))[:, None]
    return np.where(np.arange(len(keys)) > own, -np.inf, out)


@pytest.mark.parametrize("products", [1 << 24, 1000])
@pytest.mark.parametrize("block", [8192, 40])
@pytest.mark.parametrize(("past", "tokens"), [(0, 150), (130, 1), (100, 40), (10, 30)])
def test_the_best_positions_are_chosen(kv, past, tokens, products, block, monkeypatch):
    monkeypatch.setattr(selection, "_PRODUCTS", products)
    monkeypatch.setattr(selection, "_KEYS", block)
    span, _, keys = filled(kv, past, tokens)
    q, weights = torch.randn(tokens, HEADS, DIM), torch.randn(tokens, HEADS)
    indexers = Indexers(kv)
    indexers.append(0, span, keys[past:])
    chosen = indexers.choose(0, span, q, weights, TOP).numpy()
    assert (np.diff(chosen, axis=1) > 0).all()
    truth = scores64(*(x.double().numpy() for x in (q, weights, keys)))
    for row, positions in enumerate(chosen):
        visible = min(TOP, past + row + 1)
        assert positions[visible - 1] <= past + row
        best = np.sort(truth[row])[::-1][:visible]
        np.testing.assert_allclose(np.sort(truth[row, positions[:visible]])[::-1], best, rtol=1e-5, atol=1e-5)


def test_nothing_is_chosen_while_all_is_seen(kv):
    span, _, keys = filled(kv, TOP - 2, 2)
    indexers = Indexers(kv)
    indexers.append(0, span, keys[TOP - 2 :])
    assert indexers.choose(0, span, torch.randn(2, HEADS, DIM), torch.randn(2, HEADS), TOP) is None


@pytest.fixture(params=["torch", *(tier.name for tier in cpu_tiers() if tier.built and tier.usable)])
def attention(request, kv):
    if request.param == "torch":
        yield TorchAttention(kv)
        return
    kernels = Kernels(request.param)
    pool = Pool([0, 1], kernels)
    yield NativeAttention(kv, kernels, pool)
    pool.close()


@pytest.mark.parametrize(("past", "tokens"), [(0, 60), (130, 1), (100, 40)])
def test_attention_over_the_chosen_equals_float64(attention, kv, past, tokens):
    span, latents, _ = filled(kv, past, tokens)
    q = torch.randn(tokens, HEADS, RANK + ROPE)
    chosen = choose_randomly(past, tokens)
    found = attention.latent_chosen(0, span, q, latents[past:], RANK, 0.2, chosen).numpy()
    for t in range(tokens):
        seen = [p for p in chosen[t].tolist() if p <= past + t]
        keys = latents[seen].double().numpy()
        weights = np.exp(0.2 * q[t].double().numpy() @ keys.T)
        expected = weights / weights.sum(1, keepdims=True) @ keys[:, :RANK]
        np.testing.assert_allclose(found[t], expected, atol=2e-5)


def choose_randomly(past, tokens):
    """For each token TOP positions in ascending order with its own; all of them and later ones if they are few."""
    rng, rows = np.random.default_rng(1), []
    for own in range(past, past + tokens):
        picked = [*rng.permutation(own)[: TOP - 1].tolist(), own]
        rows.append(sorted(picked + list(range(own + 1, own + 1 + TOP - len(picked)))))
    return torch.tensor(rows)


def test_a_decode_reads_nothing_but_the_chosen(attention, kv):
    span, latents, _ = filled(kv, 130, 1)
    chosen = choose_randomly(130, 1)
    store = kv.store(0, "latent").rows
    hidden = sorted(set(range(130)) - set(chosen[0].tolist()))
    store[kv.slots(span.sequence, torch.tensor(hidden))] = float("nan")
    out = attention.latent_chosen(0, span, torch.randn(1, HEADS, RANK + ROPE), latents[130:], RANK, 0.2, chosen)
    assert out.isfinite().all()
