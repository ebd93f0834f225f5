"""Sampling follows its definition; the same seed gives the same tokens."""

import numpy as np
import pytest

from hetero.engine.sampling import Sampler, Sampling
from hetero.machine.types import ModelError, UsageError

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.07, 0.03], dtype=np.float32))


def frequencies(sampling, n=4000):
    sampler = Sampler(sampling, len(LOGITS))
    counts = np.bincount([sampler.choose(LOGITS) for _ in range(n)], minlength=len(LOGITS))
    return counts / n


def test_temperature_zero_is_greedy():
    assert Sampler(Sampling(), 5).choose(LOGITS) == 0


def test_temperature_one_follows_the_softmax():
    assert np.abs(frequencies(Sampling(temperature=1.0, seed=1)) - np.exp(LOGITS)).max() < 0.03


def test_temperature_sharpens():
    expected = np.exp(2 * LOGITS) / np.exp(2 * LOGITS).sum()
    assert np.abs(frequencies(Sampling(temperature=0.5, seed=2)) - expected).max() < 0.03


def test_top_k_keeps_the_k_best():
    found = frequencies(Sampling(temperature=1.0, top_k=2, seed=3))
    assert found[2:].sum() == 0
    assert abs(found[0] - 2 / 3) < 0.03


def test_top_p_keeps_the_token_that_crosses_it():
    found = frequencies(Sampling(temperature=1.0, top_p=0.6, seed=4))
    assert found[2:].sum() == 0
    assert found[1] > 0


@pytest.mark.parametrize("top_p", [0.0, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.5, 4.0])
@pytest.mark.parametrize("top_k", [0, 300])
def test_top_p_of_a_large_vocabulary_is_what_a_full_sort_gives(top_p, spread, top_k):
    logits = (np.random.default_rng(0).standard_normal(5000) * spread).astype(np.float32)
    order = np.argsort(-logits)[: top_k or None]
    p = np.exp(logits[order].astype(np.float64))
    p /= p.sum()
    expected = order[: max(1, int((np.cumsum(p) - p < top_p).sum()))]
    ids, weights = Sampler(Sampling(temperature=1.0, top_p=top_p, top_k=top_k), 5000)._candidates(logits)
    assert set(ids.tolist()) == set(expected.tolist())
    assert np.allclose(weights / weights.sum(), p[: len(ids)] / p[: len(ids)].sum(), atol=1e-6)


@pytest.mark.parametrize("temperature", [1e-320, 1e-40, 1e-6])
def test_a_tiny_temperature_is_greedy(temperature):
    assert Sampler(Sampling(temperature=temperature, seed=1), 5).choose(LOGITS[::-1].copy()) == 4


def test_min_p_is_relative_to_the_best():
    found = frequencies(Sampling(temperature=1.0, min_p=0.2, seed=5))
    assert found[3:].sum() == 0
    assert found[2] > 0


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    sampler = Sampler(Sampling(repetition_penalty=2.0), 3)
    sampler.observe([0])
    assert sampler.choose(np.array([3.0, 2.0, 0.0], dtype=np.float32)) == 1
    assert sampler.choose(np.array([-1.0, -1.5, -9.0], dtype=np.float32)) == 1
    assert sampler.choose(np.array([5.0, 2.0, 0.0], dtype=np.float32)) == 0


def test_the_same_seed_repeats_and_another_differs():
    def tokens(seed):
        sampler = Sampler(Sampling(temperature=1.5, seed=seed), 5)
        return [sampler.choose(LOGITS) for _ in range(50)]

    assert tokens(7) == tokens(7)
    assert tokens(7) != tokens(8)


def test_masked_tokens_are_never_drawn():
    logits = LOGITS.copy()
    logits[0] = -np.inf
    sampler = Sampler(Sampling(temperature=3.0, seed=1), 5)
    assert 0 not in {sampler.choose(logits) for _ in range(500)}


@pytest.mark.parametrize(
    "field",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"top_k": -1},
        {"max_tokens": 0},
        {"repetition_penalty": 0.0},
    ],
)
def test_settings_out_of_range_are_refused_by_name(field):
    with pytest.raises(UsageError, match=next(iter(field))):
        Sampling(**field)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_an_error_not_a_token(bad, temperature):
    logits = LOGITS.copy()
    logits[3] = bad
    with pytest.raises(ModelError, match="token 3"):
        Sampler(Sampling(temperature=temperature), 5).choose(logits)
