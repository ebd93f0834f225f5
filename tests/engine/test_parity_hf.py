"""Every family in exact mode against transformers on the same random weights: all positions, chunked, batched."""

import numpy as np
import pytest

from hetero.engine import Engine, Sampling, Token
from hetero.engine.engine import Engine as _Engine
from tests.engine.reference import Choices, hf_logits, relative
from tests.tiny import FAMILIES, tiny_hf

BOUND = 1e-3


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def checkpoint(request, tmp_path_factory):
    return tiny_hf(request.param, tmp_path_factory.mktemp(request.param), max_position_embeddings=1024)


def prompt(n, vocab=256, seed=0):
    return np.random.default_rng(seed).integers(0, vocab, n).tolist()


@pytest.fixture(scope="module")
def engine(checkpoint):
    loaded = Engine.load(checkpoint, device="cpu", threads=2, context=1024)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def expected(engine, checkpoint):
    """The reference's logits of tokens that the engine has already computed."""
    choices = Choices(engine)
    return lambda ids: hf_logits(checkpoint, ids, choices)


def test_all_positions_agree_also_past_the_original_context(engine, expected):
    ids = prompt(400)
    assert engine.plan.kv_dtype == "f32"
    assert relative(engine.logits(ids), expected(ids)) <= BOUND


@pytest.mark.parametrize("chunk", [1, 63, 64, 65, 127])
def test_chunks_of_any_size_agree(engine, expected, chunk, monkeypatch):
    ids = prompt(130, seed=1)
    monkeypatch.setattr(engine._schedule, "_chunk", chunk)
    assert relative(engine.logits(ids), expected(ids)) <= BOUND


def greedy(engine, ids, n):
    events = engine.generate(ids, Sampling(max_tokens=n, ignore_eos=True), reuse=False)
    return [event.id for event in events if isinstance(event, Token)]


def test_decoding_follows_the_references_argmax(engine, expected):
    ids = prompt(20, seed=2)
    new = greedy(engine, ids, 64)
    logits = expected(ids + new)[len(ids) - 1 : -1, : engine.text.n_tokens]
    top = np.sort(logits, axis=1)[:, -2:]
    clear = top[:, 1] - top[:, 0] > 2 * BOUND * logits.std()
    assert clear.sum() >= 58
    assert np.array_equal(np.array(new)[clear], logits.argmax(1)[clear])


def test_requests_side_by_side_answer_as_they_do_alone(engine: _Engine):
    prompts = [prompt(n, seed=n) for n in (3, 70, 129)]
    alone = [greedy(engine, ids, 12) for ids in prompts]
    sampling = Sampling(max_tokens=12, ignore_eos=True)
    streams = [engine.generate(ids, sampling, reuse=False) for ids in prompts]
    together = [[] for _ in prompts]
    live = list(range(len(prompts)))
    while live:
        for i in list(live):
            event = next(streams[i], None)
            if event is None:
                live.remove(i)
            elif isinstance(event, Token):
                together[i].append(event.id)
    assert together == alone


def test_a_batch_of_many_agrees_at_every_position(engine: _Engine, expected, monkeypatch):
    monkeypatch.setattr(engine._schedule, "_chunk", 150)  # one step holds ends and beginnings of several prompts
    prompts = [prompt(n, seed=n) for n in (5, 100, 130, 64)]
    requests = [engine._request(ids, Sampling(max_tokens=1), reuse=False, collect=True) for ids in prompts]
    while engine.step():
        pass
    for ids, request in zip(prompts, requests, strict=True):
        assert request.finished
        assert relative(np.concatenate(request.rows), expected(ids)) <= BOUND


def test_a_reused_prefix_gives_the_same_answer(engine):
    ids = prompt(200, seed=5)
    fresh = greedy(engine, ids, 10)
    for _ in range(2):
        events = list(engine.generate(ids, Sampling(max_tokens=10, ignore_eos=True)))
        assert [event.id for event in events if isinstance(event, Token)] == fresh
    assert events[-1].cached_tokens == 192


def test_logits_are_bit_equal_for_one_and_two_threads(engine, checkpoint):
    ids = prompt(100, seed=6)
    single = Engine.load(checkpoint, device="cpu", threads=1, context=256)
    try:
        assert np.array_equal(single.logits(ids), engine.logits(ids))
    finally:
        single.close()
