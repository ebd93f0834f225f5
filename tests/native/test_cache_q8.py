"""The 8-bit KV cache: what it stores, and that attention over it is attention over the numbers that it stands for."""

import numpy as np
import pytest

from hetero.native import Kernels, Pool, cpu_tiers
from hetero.native.attention import PagedAttention, Store
from tests.native.attention_reference import attended, held, most_error, slots_of, store_of

PAGE = 64
TIERS = [t.name for t in cpu_tiers() if t.built and t.usable]


@pytest.fixture(params=TIERS)
def kernels(request):
    return Kernels(request.param)


class Cache:
    """Keys and values that were appended to shuffled pages of `fmt`."""

    def __init__(self, kernels, k, v, heads, fmt):
        (length, groups, d), e = k.shape, v.shape[2]
        pages = -(-length // PAGE)
        self.table, self.heads, self.e = np.random.default_rng(0).permutation(pages).astype(np.int32), heads, e
        self.stores = [store_of(pages * PAGE, groups, width, fmt) for width in (d, e)]
        keys, values = (
            Store(store.ctypes.data, len(store), groups, width, fmt)
            for store, width in zip(self.stores, (d, e), strict=True)
        )
        self.whole = PagedAttention(kernels, keys, values, heads, e, PAGE, 0.1)
        self.latent = PagedAttention(kernels, keys, None, heads, min(d, e), PAGE, 0.1)
        self.whole.append(self.table, 0, length, k.ctypes.data, v.ctypes.data)
        at = slots_of(self.table, PAGE, length)
        self.held = [held(store, width, fmt)[at] for store, width in zip(self.stores, (d, e), strict=True)]

    def attend(self, pool, q, first, latent=False):
        tokens, width = len(q), min(q.shape[2], self.e) if latent else self.e
        out = np.full((tokens, self.heads, width), np.nan, np.float32)
        paged = self.latent if latent else self.whole
        paged.attend(pool, self.table, first, tokens, q.ctypes.data, out.ctypes.data)
        return out


def random(length, heads, groups, d, e):
    rng = np.random.default_rng(7)
    shapes = (length, heads, d), (length, groups, d), (length, groups, e)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


SHAPES = [(1, 0, 1), (1, 130, 8), (5, 600, 4), (70, 30, 2), (130, 500, 3)]  # tokens, first, heads of a group
WIDTHS = [(128, 128), (576, 512), (40, 24), (33, 1), (64, 80)]


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("widths", WIDTHS)
def test_codes_have_the_bits_of_the_float32_numbers_they_stand_for(kernels, shape, widths, latent):
    """And these are right to within the rounding of float32."""
    (tokens, first, repeat), (d, e) = shape, widths
    q, k, v = random(first + tokens, 2 * repeat, 2, d, e)
    codes = Cache(kernels, k, v, 2 * repeat, "Q8_0")
    floats = Cache(kernels, *codes.held, 2 * repeat, "F32")
    with Pool([0, 1], kernels) as pool:
        found, same = (cache.attend(pool, q[first:], first, latent) for cache in (codes, floats))
    assert np.array_equal(found, same)
    keys, values = codes.held
    values = keys[..., : min(d, e)] if latent else values
    exact = attended(q[first:], keys, values, first, 0.1)
    assert (np.abs(found - exact) <= most_error(q[first:], keys, values, first, 0.1)).all()


@pytest.mark.parametrize("size", [1e-9, 1e-6, 1.0, 1e4])
def test_no_value_is_off_by_more_than_half_of_the_least_scale(kernels, size):
    rng = np.random.default_rng(8)
    k = (size * rng.standard_t(3, size=(300, 2, 72))).astype(np.float32)
    k[7] = 0
    stored = Cache(kernels, k, k, 2, "Q8_0").held[0]
    blocks = np.abs(np.pad(k, ((0, 0), (0, 0), (0, 24)))).reshape(300, 2, 3, 32).max(-1)
    scale = blocks.astype(np.float64) / 127 * (1 + 2.0**-10) + 2.0**-24  # fp16 above it, at the least the smallest
    off = np.abs(stored - k.astype(np.float64))
    assert (off <= 0.5000001 * np.repeat(scale, 32, axis=-1)[..., :72]).all()
    assert np.array_equal(stored[7], np.zeros((2, 72)))
    assert size < 1e-8 or off.max() > 0.3 * scale.max()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e7])
def test_a_value_that_cannot_be_stored_spoils_the_tokens_that_see_it_and_no_other(kernels, value):
    q, k, v = random(140, 4, 2, 64, 64)
    with Pool([0, 1], kernels) as pool:
        clean = Cache(kernels, k, v, 4, "Q8_0").attend(pool, q, 0)
        k[100, 1, 40] = value
        found = Cache(kernels, k, v, 4, "Q8_0").attend(pool, q, 0)
    assert np.array_equal(found[:100], clean[:100])
    assert np.array_equal(found[100:, :2], clean[100:, :2])  # the heads of the other group
    assert np.isnan(found[100:, 2:]).all()


def test_every_tier_stores_the_same_bytes():
    _, k, v = random(200, 2, 2, 72, 33)
    stores = [Cache(Kernels(tier), k, v, 2, "Q8_0").stores for tier in TIERS]
    for keys, values in stores:
        assert np.array_equal(keys, stores[0][0])
        assert np.array_equal(values, stores[0][1])
    padding = stores[0][1].reshape(-1, 2, 2, 34)[:, :, 1, 3:]
    assert not padding.any()
    assert stores[0][1].reshape(-1, 2, 2, 34)[:, :, 1, 2].any()
