"""Steps of one token that are recorded and made again give the bits of those that Python leads through."""

import contextlib

import numpy as np
import pytest

from hetero.engine import Engine, Sampling, Token
from tests.tiny import tiny_hf
from tests.tiny_gguf import tiny_gguf

REPEATED = ["llama", "qwen3_moe", "gpt_oss", "deepseek_v3", "mixtral", "glm4_moe"]
LED = ["deepseek_v32", "qwen3_next", "llama4"]
LONG = Sampling(max_tokens=80, ignore_eos=True)


def load(path, kv_dtype="auto", recorded=True):
    engine = Engine.load(path, device="cpu", threads=2, context=256, kv_dtype=kv_dtype)
    if not recorded:
        engine._steps._forget()  # what loading has recorded already
        engine._steps._attempts = 0
    return engine


def heard(engine):
    """Logits of every step, as the sampler is given them."""
    rows, emit = [], engine._emit

    def listen(work, logits):
        rows.append(logits.copy())
        emit(work, logits)

    engine._emit = listen
    return rows


def tokens(events):
    return [event.id for event in events if isinstance(event, Token)]


def assert_same(path, kv_dtype, repeats):
    found = []
    for recorded in (True, False):
        with contextlib.closing(load(path, kv_dtype, recorded)) as engine:
            rows = heard(engine)
            written = tokens(engine.generate([5, 6, 7], LONG))  # over the edge of a page
            assert (engine._steps._recorded is not None) is (recorded and repeats)
            found.append((written, np.concatenate(rows)))
    assert found[0][0] == found[1][0]
    assert np.array_equal(found[0][1], found[1][1])
    assert len(found[0][0]) == 80


@pytest.mark.parametrize("family", REPEATED + LED)
def test_repeated_steps_have_the_bits_of_led_ones(family, tmp_path):
    assert_same(tiny_hf(family, tmp_path), "auto", family in REPEATED)


@pytest.mark.parametrize("arch", ["qwen3moe", "deepseek2"])
def test_repeated_steps_of_quantised_models_and_caches(arch, tmp_path):
    assert_same(tiny_gguf(arch, tmp_path / "m.gguf", type="Q8_0"), "q8", True)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_other_requests_between_repeated_steps_change_nothing(family, tmp_path):
    """They move pages apart, work in the same native scratch and come in batches of two."""
    with contextlib.closing(load(tiny_hf(family, tmp_path))) as engine:
        alone = [tokens(engine.generate(ids, LONG, reuse=False)) for ids in ([5, 6, 7], [9] * 70)]
        first = engine.generate([5, 6, 7], LONG, reuse=False)
        begun = [next(first) for _ in range(20)]
        between = tokens(engine.generate([9] * 70, LONG, reuse=False))
        assert tokens(begun) + tokens(first) == alone[0]
        assert between == alone[1]
        assert engine._steps._recorded is not None


def test_logits_of_prompts_of_one_token_are_kept(tmp_path):
    with contextlib.closing(load(tiny_hf("qwen3_moe", tmp_path))) as engine:
        several = [engine.logits([token]) for token in (3, 4, 5, 6)]
        assert engine._steps._recorded is not None
        whole = [engine.logits([token, token])[:1] for token in (3, 4, 5, 6)]
    assert np.array_equal(np.concatenate(several), np.concatenate(whole))


def test_repeated_steps_are_timed_by_stage(tmp_path):
    with contextlib.closing(load(tiny_hf("deepseek_v3", tmp_path))) as engine, engine.timed() as watch:
        tokens(engine.generate([5, 6], LONG))
        assert engine._steps._recorded is not None
        watch.clear()
        tokens(engine.generate([5], LONG))
        assert all(watch.seconds[stage] > 0 for stage in ("experts", "projections", "attention", "dense mlp", "head"))
