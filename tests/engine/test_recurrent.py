"""Recurrent states: one set per sequence, prefixes shared only where a checkpoint is, truncation to a checkpoint."""

import random

import pytest
import torch

from hetero.engine.batch import make_batch
from hetero.engine.kvcache import KVCache
from hetero.engine.pages import PAGE
from hetero.machine.types import STATE_SLOTS
from hetero.models.config import DeltaConfig, ModelConfig, RopeConfig

DELTA = DeltaConfig(layers=(0,), key_heads=1, value_heads=2, key_dim=4, value_dim=4, conv=4)
CONFIG = ModelConfig(
    family="x",
    model_type="x",
    vocab_size=64,
    hidden_size=8,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    head_dim=4,
    intermediate_size=8,
    rms_norm_eps=1e-6,
    max_context=1024,
    rope=RopeConfig(1e4, 4),
    delta=DELTA,
)


@pytest.fixture
def cache():
    return KVCache(CONFIG, 16 * PAGE, "bf16", torch.device("cpu"))


def step(cache, sequence, ids):
    """One step: the states become a digest of all tokens so far, written as a layer would."""
    assert cache.pool.reserve(sequence, sequence.length + len(ids))
    cache.prepare(sequence, len(ids))
    (span,) = make_batch([(sequence, ids, [])], torch.device("cpu")).spans
    for start, stop in span.parts:
        for state in cache.states.of(0, sequence.slot).values():
            for token in ids[start:stop]:
                state.mul_(0.5).add_(token)
        if span.first + stop == sequence.mark:
            cache.states.copy(0, sequence.slot, sequence.pending)
    cache.extend(sequence, ids)


def run(cache, prompt, *steps):
    """A sequence of `prompt`, computed from what is cached, then `steps` of more tokens."""
    sequence = cache.open(prompt)
    cache.enter(sequence)
    step(cache, sequence, prompt[sequence.length :])
    for ids in steps:
        step(cache, sequence, ids)
    return sequence


def value(cache, sequence):
    states = cache.states.of(0, sequence.slot)
    assert all((state == state.flatten()[0]).all() for state in states.values())
    return float(states["delta"].flatten()[0])


def digest(ids):
    total = torch.zeros(())
    for token in ids:
        total = total * 0.5 + token
    return float(total)


def tokens(n, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(64) for _ in range(n)]


def test_layers_keep_what_they_declare(cache):
    assert CONFIG.layer_states(0)["delta"].shape == (2, 4, 4)
    assert CONFIG.layer_states(0)["conv"].shape == (3, 16)
    assert CONFIG.kv_elements_per_token == 2 * 4
    assert CONFIG.recurrent_bytes == 4 * (2 * 4 * 4 + 3 * 16)
    assert cache._stores[0] == {}, "a layer without paged states takes no pages"
    assert cache.states.of(0, 0)["delta"].dtype == torch.float32, "whatever the KV type"


def test_a_prefix_is_shared_up_to_the_checkpoint_within_a_prompt(cache):
    ids = tokens(2 * PAGE + 10)
    cache.close(run(cache, ids))
    again = run(cache, ids)
    assert value(cache, again) == digest(ids)
    cache.close(again)
    other = cache.open([*ids[: 2 * PAGE], 1, 2, 3])
    cache.enter(other)
    assert other.length == 2 * PAGE
    assert value(cache, other) == digest(ids[: 2 * PAGE])


def test_pages_without_a_checkpoint_are_not_shared(cache):
    ids = tokens(3 * PAGE + 10)
    cache.close(run(cache, ids))
    sequence = cache.open([*ids[: 2 * PAGE], 1, 2, 3])
    cache.enter(sequence)
    assert sequence.length == 0
    assert value(cache, sequence) == 0


def test_an_answer_leaves_the_checkpoints_of_its_prompt_and_of_its_last_page(cache):
    prompt, answer = tokens(PAGE + 3), tokens(4 * PAGE, seed=1)
    cache.close(run(cache, prompt, *([token] for token in answer)))
    whole = prompt + answer
    assert cache.open([*whole, 0]).length == 5 * PAGE
    assert cache.open([*whole[: 4 * PAGE + 1], 0]).length == PAGE
    assert len(cache.states._kept) == 2


def test_truncation_goes_back_to_a_checkpoint(cache):
    prompt, answer = tokens(PAGE + 3), tokens(4 * PAGE, seed=1)
    sequence = run(cache, prompt, *([token] for token in answer))
    whole = prompt + answer
    assert cache.truncate(sequence, len(whole)) == len(whole)
    assert cache.truncate(sequence, 5 * PAGE + 1) == 5 * PAGE
    assert value(cache, sequence) == digest(whole[: 5 * PAGE])
    assert cache.truncate(sequence, 5 * PAGE - 1) == PAGE
    assert value(cache, sequence) == digest(whole[:PAGE])
    step(cache, sequence, whole[PAGE : 2 * PAGE + 5])
    assert value(cache, sequence) == digest(whole[: 2 * PAGE + 5])
    assert cache.truncate(sequence, 1) == 0
    assert value(cache, sequence) == 0


def test_sequences_go_before_checkpoints_and_take_the_last_over(cache):
    first = tokens(PAGE + 1)
    cache.close(run(cache, first))
    held = [run(cache, tokens(5, seed=n)) for n in range(2, 2 + STATE_SLOTS - 1)]
    last = run(cache, first)
    assert last.length == PAGE + 1
    assert value(cache, last) == digest(first)
    assert not cache.has_slot
    assert [value(cache, s) for s in held] == [digest(s.tokens) for s in held]
    cache.close(last)
    assert cache.has_slot


def test_a_step_that_fails_gives_its_checkpoints_slot_back(cache):
    sequence = cache.open(tokens(PAGE + 1))
    cache.enter(sequence)
    cache.prepare(sequence, PAGE + 1)
    assert sequence.mark == PAGE
    cache.close(sequence)
    assert cache.states.available == STATE_SLOTS


@pytest.mark.parametrize("seed", range(4))
def test_slots_are_never_lost_and_states_always_those_of_their_tokens(cache, seed):
    rng, live = random.Random(seed), []
    for _ in range(150):
        if live and rng.random() < 0.45:
            cache.close(live.pop(rng.randrange(len(live))))
            continue
        if live and rng.random() < 0.2:
            cache.truncate(live[0], rng.randrange(live[0].length + 1))
            assert value(cache, live[0]) == digest(live[0].tokens)
        if not cache.has_slot or cache.pool.available < 6:
            continue
        prompt = tokens(PAGE, seed=rng.randrange(2)) * rng.randrange(1, 4) + tokens(rng.randrange(1, 70), seed=7)
        live.append(run(cache, prompt, *(tokens(rng.randrange(1, 40), seed=8) for _ in range(rng.randrange(3)))))
        assert [value(cache, s) for s in live] == [digest(s.tokens) for s in live]
        assert cache.states.available + len(live) == STATE_SLOTS
