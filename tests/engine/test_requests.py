"""Cancelling, limits, admission and refusals of the engine."""

import pytest
import torch

from hetero.engine import Done, Engine, Prefill, Sampling, Token
from hetero.engine.kvcache import KVCache
from hetero.machine.types import HardwareError, UsageError
from tests.tiny import tiny_hf


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    loaded = Engine.load(tiny_hf("qwen3_moe", tmp_path_factory.mktemp("m")), device="cpu", threads=2, context=256)
    yield loaded
    loaded.close()


def endless(n=None):
    return Sampling(max_tokens=n, ignore_eos=True)


def test_closing_the_stream_frees_the_cache_at_once(engine):
    before = engine._kv.pool.available
    stream = engine.generate(list(range(100)), endless())
    for event in stream:
        if isinstance(event, Token):
            break
    stream.close()
    assert engine._kv.pool.available == before
    assert not engine.step(), "a cancelled request takes no further part"


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_a_stream_that_nobody_reads_leaves_no_request_behind(engine, leave):
    stream = engine.generate(list(range(100)), endless())
    if leave == "close":
        stream.close()
    del stream
    assert not engine.step()


def test_max_tokens_and_the_context_end_with_length(engine):
    done = list(engine.generate([1, 2, 3], endless(5)))[-1]
    assert (done.reason, done.new_tokens, done.prompt_tokens) == ("length", 5, 3)
    done = list(engine.generate(list(range(200)), endless()))[-1]
    assert (done.reason, done.new_tokens) == ("length", 56)


def test_a_prompt_of_several_chunks_ends_in_the_same_answer(engine, monkeypatch):
    def answer():
        return [
            event.id for event in engine.generate(list(range(150)), endless(8), reuse=False) if isinstance(event, Token)
        ]

    whole = answer()
    monkeypatch.setattr(engine._schedule, "_chunk", 64)
    assert answer() == whole


def test_a_prompt_of_exactly_context_minus_one_gives_one_token(engine):
    done = list(engine.generate([1] * 255, endless()))[-1]
    assert (done.reason, done.new_tokens) == ("length", 1)


@pytest.mark.parametrize("n", [256, 257, 1000])
def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers(engine, n):
    with pytest.raises(UsageError, match=f"{n} tokens.*256"):
        next(engine.generate([1] * n, endless()))


def test_no_tokens_and_foreign_tokens_are_refused(engine):
    with pytest.raises(UsageError, match="no tokens"):
        engine.generate([])
    with pytest.raises(UsageError, match="99999999"):
        engine.generate([1, 99999999])


def test_a_request_that_does_not_fit_waits_for_the_one_before(engine):
    first = engine.generate([1] * 200, endless())
    second = engine.generate([2] * 200, endless(3))
    assert isinstance(next(first), Prefill)
    events = list(second)
    assert isinstance(events[-1], Done)
    assert events[-1].new_tokens == 3
    assert [e for e in first if isinstance(e, Done)][-1].new_tokens == 56


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(engine):
    ids = [5, 6, 7]
    tokens = [e.id for e in engine.generate(ids, endless(8)) if isinstance(e, Token)]
    stop = tokens[3]
    request = engine._request(ids, Sampling(max_tokens=8), reuse=False)
    request.stop_ids = frozenset({stop})
    events = list(engine._events(request))
    assert [e.id for e in events if isinstance(e, Token)] == tokens[: tokens.index(stop)]
    assert events[-1].reason == "stop"


def test_prefill_events_count_up_to_the_prompt(engine):
    events = [e for e in engine.generate([3] * 150, endless(1), reuse=False) if isinstance(e, Prefill)]
    assert events[-1].done == events[-1].total == 150


def test_a_cache_that_finds_no_memory_is_a_hardware_error(engine, monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nand a page of C++ frames")

    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(HardwareError, match="KV cache of 128 tokens: DefaultCPUAllocator") as caught:
        KVCache(engine.model.config, 100, "f32", torch.device("cpu"))
    assert "\n" not in caught.value.message
