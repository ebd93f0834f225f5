"""Native attention, KV append, norm and rotation against float64 formulae."""

import numpy as np
import pytest

from hetero.native import Kernels, Pool, cpu_tiers
from hetero.native.attention import PagedAttention, Sight, Store, Turn
from hetero.native.prepared import PreparedNorm
from tests.native.attention_reference import attended, held, slots_of, store_of

PAGE = 64
NO_LIMIT = Sight()
TIERS = [t.name for t in cpu_tiers() if t.built and t.usable]
FORMATS = ["F32", "F16", "BF16", "Q8_0"]


@pytest.fixture(params=TIERS)
def kernels(request):
    return Kernels(request.param)


def address(array):
    return array.ctypes.data


CASES = [  # tokens, first, heads, groups, d, e
    (1, 0, 8, 2, 64, 64),
    (1, 63, 8, 2, 64, 64),
    (1, 64, 4, 4, 128, 128),
    (3, 62, 32, 4, 128, 128),
    (2, 300, 6, 2, 20, 12),
    (5, 129, 20, 1, 48, 32),
    (1, 1000, 16, 1, 576, 512),
    (70, 30, 8, 2, 64, 64),
    (40, 500, 20, 1, 72, 40),
]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("latent", [False, True])
def test_attention_over_shuffled_pages_equals_float64(kernels, fmt, case, latent):
    tokens, first, heads, groups, d, e = case
    rng = np.random.default_rng(1)
    length = first + tokens
    q = rng.normal(size=(tokens, heads, d)).astype(np.float32)
    k = rng.normal(size=(length, groups, d)).astype(np.float32)
    v = rng.normal(size=(length, groups, e)).astype(np.float32)
    n_pages = length // PAGE + 3
    table = rng.permutation(n_pages)[: -(-length // PAGE)].astype(np.int32)
    slots = n_pages * PAGE
    k_store, v_store = store_of(slots, groups, d, fmt), store_of(slots, groups, e, fmt)
    keys = Store(address(k_store), slots, groups, d, fmt)
    values = None if latent else Store(address(v_store), slots, groups, e, fmt)
    attention = PagedAttention(kernels, keys, values, heads, e, PAGE, 0.1)
    out = np.full((tokens, heads, e), np.nan, np.float32)
    with Pool([0, 1], kernels) as pool:
        attention.append(table, 0, length, address(k), address(v))
        attention.attend(pool, table, first, tokens, address(q), address(out))
    at = slots_of(table, PAGE, length)
    k_held, v_held = held(k_store, d, fmt)[at], held(v_store, e, fmt)[at]
    assert np.abs(k_held - k).max() < {"F32": 0, "F16": 2e-3, "BF16": 2e-2, "Q8_0": 2e-2}[fmt] + 1e-30
    expected = attended(q, k_held, k_held[..., :e] if latent else v_held, first, 0.1)
    assert np.abs(out - expected).max() < 2e-6 * np.sqrt(d) + 2e-6


LIMITS = [  # window, chunk; positions 127.. are asked for, so that each edge is met from both sides
    (1, 0),
    (63, 0),
    (64, 0),
    (65, 0),
    (128, 0),
    (1000, 0),
    (0, 64),
    (0, 65),
    (0, 127),
    (0, 128),
    (0, 129),
    (5, 3),
    (70, 130),
]


@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize(("window", "chunk"), [(0, 0), *LIMITS])
@pytest.mark.parametrize("first", [0, 127])
def test_windows_chunks_and_sinks_equal_float64(kernels, window, chunk, sunk, first):
    rng = np.random.default_rng(5)
    tokens, heads, groups, d = 8, 4, 2, 32
    q = rng.normal(size=(tokens, heads, d)).astype(np.float32)
    k, v = (rng.normal(size=(first + tokens, groups, d)).astype(np.float32) for _ in range(2))
    sinks = rng.normal(1, 2, heads).astype(np.float32) if sunk else None
    table = np.array([3, 0, 2], np.int32)
    k_store, v_store = np.full((256, groups, d), np.nan, np.float32), np.full((256, groups, d), np.nan, np.float32)
    stores = [Store(address(s), 256, groups, d, "F32") for s in (k_store, v_store)]
    sight = Sight(window, chunk, 0 if sinks is None else address(sinks))
    attention = PagedAttention(kernels, *stores, heads, d, PAGE, 0.3, sight)
    out = np.zeros((tokens, heads, d), np.float32)
    with Pool([0, 1], kernels) as pool:
        attention.append(table, 0, first + tokens, address(k), address(v))
        attention.attend(pool, table, first, tokens, address(q), address(out))
    expected = attended(q, k, v, first, 0.3, window or None, chunk or None, sinks)
    assert np.abs(out - expected).max() < 1e-5


class Cached:
    """One layer's cache of `length` random positions on shuffled pages, and queries for each of them."""

    def __init__(self, kernels, length, heads, groups, d, e, fmt="F32", sight=NO_LIMIT, latent=False):
        rng = np.random.default_rng(2)
        self.q, self.k, self.v = (
            rng.normal(size=(length, n, w)).astype(np.float32) for n, w in ((heads, d), (groups, d), (groups, e))
        )
        pages = -(-length // PAGE)
        self.table = rng.permutation(pages).astype(np.int32)
        self.stores = [store_of(pages * PAGE, groups, w, fmt) for w in (d, e)]
        stores = zip(self.stores, (d, e), strict=True)
        keys, values = (Store(address(a), pages * PAGE, groups, w, fmt) for a, w in stores)
        self.paged = PagedAttention(kernels, keys, None if latent else values, heads, e, PAGE, d**-0.5, sight)
        self.paged.append(self.table, 0, length, address(self.k), address(self.v))
        self.out_shape = (heads, e)

    def attend(self, pool, first, tokens):
        out = np.full((tokens, *self.out_shape), np.nan, np.float32)
        self.paged.attend(pool, self.table, first, tokens, address(self.q[first:]), address(out))
        return out


SHAPES = {  # heads, groups, d, e, latent
    "grouped": (16, 2, 32, 32, False),
    "single": (3, 3, 40, 24, False),
    "latent": (20, 1, 48, 32, True),
}


@pytest.mark.parametrize("fmt", ["F16", "Q8_0"])
@pytest.mark.parametrize("sight", [NO_LIMIT, Sight(70, 130)], ids=["all", "limited"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_token_has_the_same_bits_whatever_is_asked_beside_it(kernels, shape, sight, fmt):
    """Alone, in chunks of any size, and with one or three threads, which share out the segments of few rows."""
    *sizes, latent = SHAPES[shape]
    length = 600
    cached = Cached(kernels, length, *sizes, fmt, sight, latent)
    with Pool([0, 1, 0], kernels) as three, Pool([0], kernels) as one:
        whole = cached.attend(one, 0, length)
        for step in (600, 129, 37):
            parts = [cached.attend(three, at, min(step, length - at)) for at in range(0, length, step)]
            assert np.array_equal(np.concatenate(parts), whole)
        for at in (0, 63, 64, 511, 512, 599):
            assert np.array_equal(cached.attend(one, at, 1)[0], whole[at])
            assert np.array_equal(cached.attend(three, at, 1)[0], whole[at])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sunk", [False, True])
def test_many_tokens_over_several_segments_equal_float64(kernels, shape, sunk):
    heads, groups, d, e, latent = SHAPES[shape]
    sinks = np.random.default_rng(6).normal(0, 3, heads).astype(np.float32)
    sight = Sight(sinks=address(sinks)) if sunk else NO_LIMIT
    cached = Cached(kernels, 1100, heads, groups, d, e, "F32", sight, latent)
    with Pool([0, 1], kernels) as pool:
        found = cached.attend(pool, 1000, 100)
    values = cached.k[..., :e] if latent else cached.v
    expected = attended(cached.q[1000:], cached.k, values, 1000, d**-0.5, sinks=sinks if sunk else None)
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.skipif("avx512" not in TIERS, reason="NOT TESTED: a CPU without AVX-512")
@pytest.mark.parametrize("fmt", ["BF16", "Q8_0"])
def test_avx2_and_avx512_give_the_same_bits(fmt):
    found = []
    for tier in ("avx2", "avx512"):
        kernels = Kernels(tier)
        cached = Cached(kernels, 700, 8, 2, 72, 40, fmt)
        with Pool([0, 1], kernels) as pool:
            found.append(cached.attend(pool, 500, 200))
    assert np.array_equal(*found)


@pytest.mark.parametrize("what", ["stores", "key"])
def test_no_token_sees_nan_beyond_its_own_position(kernels, what):
    """Also where several tokens with different limits share a block."""
    cached = Cached(kernels, 130, 4, 2, 32, 32)
    with Pool([0, 1], kernels) as pool:
        clean = cached.attend(pool, 0, 130)
        slot = int(cached.table[1]) * PAGE + 100 - PAGE
        for store in cached.stores if what == "stores" else cached.stores[:1]:
            store[slot] = np.nan
        found = cached.attend(pool, 0, 130)
    assert np.array_equal(found[:100], clean[:100])
    assert np.isnan(found[100:]).all()


def test_nan_stays_with_its_token(kernels):
    store = np.ones((64, 1, 16), np.float32)
    attention = PagedAttention(
        kernels, Store(address(store), 64, 1, 16, "F32"), Store(address(store), 64, 1, 16, "F32"), 2, 16, PAGE, 1.0
    )
    q = np.ones((2, 2, 16), np.float32)
    q[0, 1, 3] = np.nan
    out = np.zeros((2, 2, 16), np.float32)
    with Pool([0], kernels) as pool:
        attention.attend(pool, np.zeros(1, np.int32), 4, 2, address(q), address(out))
    assert np.isnan(out[0, 1]).all()
    assert np.isfinite(out[0, 0]).all()
    assert np.isfinite(out[1]).all()


def test_a_page_that_does_not_exist_is_refused(kernels):
    store = np.zeros((64, 1, 16), np.float32)
    attention = PagedAttention(kernels, Store(address(store), 64, 1, 16, "F32"), None, 1, 16, PAGE, 1.0)
    q = np.zeros((1, 1, 16), np.float32)
    with Pool([0], kernels) as pool, pytest.raises(ValueError, match="page 7"):
        attention.attend(pool, np.array([7], np.int32), 0, 1, address(q), address(q))
    with pytest.raises(ValueError, match="page -1"):
        attention.append(np.array([-1], np.int32), 0, 1, address(q))


def test_appending_to_a_page_that_does_not_exist_leaves_the_others_as_they_were(kernels):
    store, keys = np.zeros((2 * PAGE, 1, 8), np.float32), np.ones((8, 8), np.float32)
    attention = PagedAttention(kernels, Store(address(store), 2 * PAGE, 1, 8, "F32"), None, 1, 8, PAGE, 1.0)
    with pytest.raises(ValueError, match="page 2 does not exist"):
        attention.append(np.array([1, 2], np.int32), 60, 8, address(keys))
    assert not store.any()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("tokens", "heads", "d", "half", "normed"), [(1, 4, 128, 64, True), (300, 3, 20, 6, False)])
def test_norm_and_rotation_equal_float64(kernels, interleaved, tokens, heads, d, half, normed):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(tokens, heads, d)).astype(np.float32)
    weight = rng.normal(size=d).astype(np.float32)
    angle = rng.uniform(0, 6, (tokens, half))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    out = np.zeros_like(x)
    with Pool([0, 1], kernels) as pool:
        norm = PreparedNorm(kernels, heads, d, address(weight) if normed else 0, 1e-6, half, interleaved)
        norm(pool, tokens, address(x), heads * d, address(out), address(cos), address(sin))
    y = x.astype(np.float64)
    if normed:
        y = y / np.sqrt((y * y).mean(-1, keepdims=True) + 1e-6) * weight
    halves = (y[..., :half], y[..., half : 2 * half])
    a, b = (y[..., 0 : 2 * half : 2], y[..., 1 : 2 * half : 2]) if interleaved else halves
    c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
    expected = np.concatenate([a * c - b * s, b * c + a * s, y[..., 2 * half :]], -1)
    assert np.abs(out - expected).max() < 5e-6


@pytest.mark.parametrize("fmt", ["F16", "Q8_0"])
def test_a_fused_step_equals_its_parts(kernels, fmt):
    rng = np.random.default_rng(4)
    tokens, heads, groups, d, half, first = 3, 8, 2, 64, 24, 100
    q, k, v = (rng.normal(size=(tokens, n, d)).astype(np.float32) for n in (heads, groups, groups))
    past = rng.normal(size=(first, groups, d)).astype(np.float32)
    weights = rng.normal(size=(2, d)).astype(np.float32)
    angle = rng.uniform(0, 6, (tokens, half))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    table, outs, stores = np.array([1, 0], np.int32), [], []
    with Pool([0, 1], kernels) as pool:
        for fused in (True, False):
            k_store, v_store = store_of(128, groups, d, fmt), store_of(128, groups, d, fmt)
            keys, values = (Store(address(s), 128, groups, d, fmt) for s in (k_store, v_store))
            attention = PagedAttention(kernels, keys, values, heads, d, PAGE, 0.1)
            attention.append(table, 0, first, address(past), address(past))
            out = np.zeros((tokens, heads, d), np.float32)
            if fused:
                turn = Turn(address(cos), address(sin), half, True, address(weights[0]), address(weights[1]), 1e-6)
                attention.step(pool, table, first, tokens, address(q), address(k), address(v), turn, address(out))
            else:
                turned = []
                for x, weight in ((q, weights[0]), (k, weights[1])):
                    norm = PreparedNorm(kernels, x.shape[1], d, address(weight), 1e-6, half, True)
                    turned.append(np.zeros_like(x))
                    norm(pool, tokens, address(x), x[0].size, address(turned[-1]), address(cos), address(sin))
                attention.append(table, first, tokens, address(turned[1]), address(v))
                attention.attend(pool, table, first, tokens, address(turned[0]), address(out))
            outs.append(out)
            stores.append((k_store, v_store))
    assert np.array_equal(outs[0], outs[1])
    assert np.array_equal(stores[0][0], stores[1][0])
    assert np.array_equal(stores[0][1], stores[1][1])
