"""The 8-bit KV cache in torch: the native kernels' bytes, and whole models on either owner of the dense parts."""

import contextlib

import gguf
import numpy as np
import pytest
import torch

from hetero.engine import Engine
from hetero.engine.cachetypes import CACHE_TYPES
from hetero.machine.ledger import kv_bytes
from hetero.native import Kernels
from hetero.native.attention import PagedAttention, Store
from tests.engine.test_owners import two_owners
from tests.tiny import tiny_hf

Q8 = CACHE_TYPES["q8"]
IDS = np.random.default_rng(0).integers(0, 256, 150).tolist()


def odd_values():
    """float32 [64, 3, 72] of all sizes, with rows of zeros and some that no scale reaches."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(64, 3, 72)) * 10.0 ** rng.integers(-9, 6, (64, 3, 1))
    values[3, 1] = 0
    values[4, 0, 5], values[5, 1, 40], values[6, 2, 71] = np.nan, -np.inf, 1e7
    return values.astype(np.float32)


def test_torch_stores_the_bytes_of_the_native_kernels():
    values = odd_values()
    store = np.zeros((64, 3, 102), np.uint8)
    keys = Store(store.ctypes.data, 64, 3, 72, "Q8_0")
    paged = PagedAttention(Kernels("generic"), keys, None, 3, 72, 64, 1.0)
    paged.append(np.zeros(1, np.int32), 0, 64, values.ctypes.data)
    assert np.array_equal(Q8.narrow(torch.from_numpy(values)).numpy(), store)


def test_torch_reads_what_the_gguf_package_reads():
    rows = Q8.narrow(torch.from_numpy(odd_values()))
    expected = gguf.quants.dequantize(rows.view(64 * 3, 102).numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(Q8.widen(rows, 72).numpy(), expected.reshape(64, 3, 96)[..., :72], equal_nan=True)


def middle(found, wanted):
    """Of all tokens the median of the largest difference over the spread: a few tokens take another expert."""
    return np.median(np.abs(found - wanted).max(axis=1)) / wanted.std()


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "deepseek_v32", "gpt_oss"])
def test_an_8_bit_cache_is_near_a_float32_one_on_either_owner(family, tmp_path):
    path = tiny_hf(family, tmp_path)
    exact, native = (Engine.load(path, device="cpu", threads=2, kv_dtype=t) for t in ("f32", "q8"))
    split = two_owners(path, torch.float32, "q8")
    with contextlib.closing(exact), contextlib.closing(native), contextlib.closing(split):
        wanted = exact.logits(IDS)
        assert 1e-5 < middle(native.logits(IDS), wanted) < 5e-2
        assert 1e-5 < middle(split.logits(IDS), wanted) < 5e-2


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_rows_that_are_no_whole_blocks_are_in_the_ledger(family, tmp_path):
    """Whose heads are 24 wide, and whose latents are 48 with their rope's key."""
    widths = {"qwen3_moe": {"head_dim": 24}, "deepseek_v3": {}}[family]
    with contextlib.closing(Engine.load(tiny_hf(family, tmp_path, **widths), context=128, kv_dtype="q8")) as engine:
        index = engine.model.index
        assert index.kv_padding
        assert engine.held_bytes()["kv cache"] == kv_bytes(index, 128, "q8")
        assert engine.plan.ledger[3].bytes == kv_bytes(index, 128, "q8")
