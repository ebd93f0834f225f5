"""States with one entry for several tokens: where the cache keeps them, in pages that follow each other or do not."""

import pytest
import torch

from hetero.engine.kept import KeptOfRequest
from hetero.engine.kvcache import KVCache, in_page
from hetero.engine.pages import PAGE
from hetero.models.config import PAGED_TOKENS
from hetero.models.families import FAMILIES
from tests.tiny_v4 import V4

RATES = (2, 3, 4, 64, 128)


def config_of(rate):
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": rate}
    raw = V4 | {"compress_rates": rates, "architectures": ["DeepseekV4ForCausalLM"], "max_position_embeddings": 4096}
    return FAMILIES["deepseek_v4"].config_from_hf(raw)


def opened(cache, tokens, scattered):
    """A sequence of so many tokens whose pages follow each other, or lie between those of another."""
    sequence, other = (cache.open(list(range(first, first + tokens)), reuse=False) for first in (0, 5000))
    for one in (sequence, other):
        cache.enter(one)
    for length in range(PAGE, tokens + PAGE, PAGE):
        assert cache.pool.reserve(sequence, length)
        assert not scattered or cache.pool.reserve(other, length)
    return sequence


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "q8"])
def test_entries_come_back_whole_in_runs_and_one_by_one(rate, scattered, dtype):
    cache = KVCache(config_of(rate), 1024, dtype, torch.device("cpu"))
    sequence = opened(cache, 400, scattered)
    assert sequence.contiguous != scattered
    kept, count = KeptOfRequest(cache, 2, sequence, 0), 400 // rate
    values = torch.randn(count, 32, generator=torch.Generator().manual_seed(rate))
    for start in range(0, count, 7):  # as chunks of a prompt complete them
        kept.add("entries", start, values[start : start + 7])
    near = {"atol": 0.0 if dtype == "f32" else 0.03, "rtol": 0.0}
    torch.testing.assert_close(kept.entries("entries", 0, count), values, **near)
    torch.testing.assert_close(kept.entries("entries", 1, count), values[1:], **near)
    index = torch.tensor([[count - 1, 0], [1, 1]])
    torch.testing.assert_close(kept.chosen("entries", index), values[index], **near)


@pytest.mark.parametrize("rate", RATES)
def test_the_configuration_counts_what_the_cache_holds(rate):
    assert PAGED_TOKENS == PAGE
    config = config_of(rate)
    held = KVCache(config, 10 * PAGE, "f32", torch.device("cpu")).held_bytes
    counted = 4 * 10 * PAGE * config.kv_elements_per_token
    assert held["kv cache"] == sum(
        4 * 10 * in_page(state.every) * torch.Size(state.shape).numel()
        for layer in range(config.n_layers)
        for state in config.layer_states(layer).values()
        if not state.recurrent
    )
    assert held["kv cache"] <= 1.02 * counted + 4096
    assert held["recurrent states"] % config.recurrent_bytes == 0
