"""The routed experts of a layer against numpy: routing, merging, determinism, refusals."""

import numpy as np
import pytest

from hetero.native import FORMATS as ALL
from hetero.native import ExpertBank, Kernels, Pool
from tests.native.weights import USABLE, as_read, bank, cpus, normal

EXPERTS, HIDDEN, INTER, TOP_K = 9, 256, 512, 3


@pytest.fixture(params=USABLE)
def kernels(request):
    return Kernels(request.param)


@pytest.fixture
def pool(kernels):
    with Pool(cpus(2), kernels) as pool:
        yield pool


def run(kernels, pool, experts, x, ids, weights):
    out = np.full(x.shape, np.nan, np.float32)
    kernels.moe(pool, experts, x, ids, weights, out)
    return out


def reference(experts, gate, up, down, x, ids, weights):
    out = np.zeros(x.shape)
    for t in range(len(x)):
        for slot, e in enumerate(ids[t]):
            if e < 0:
                continue
            g = as_read(experts.gate_format, x[t : t + 1]) @ gate[e].T
            u = as_read(experts.up_format, x[t : t + 1]) @ up[e].T
            h = as_read(experts.down_format, (g / (1 + np.exp(-g)) * u).astype(np.float32))
            out[t] += float(weights[t, slot]) * (h @ down[e].T)[0]
    return out


def routes(tokens, seed=0, experts=EXPERTS, top_k=TOP_K):
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(tokens)]).astype(np.int32)
    return ids, rng.uniform(0.1, 1, (tokens, top_k)).astype(np.float32)


FORMATS = [
    ("F32", "F32", "F32"),
    ("BF16", "BF16", "BF16"),
    ("F16", "F16", "F16"),
    ("Q4_0", "Q4_0", "Q4_0"),
    ("Q4_K", "Q4_K", "Q6_K"),
    ("Q8_0", "Q5_0", "Q4_1"),
    ("Q5_1", "F16", "Q5_K"),
    ("Q4_0", "Q8_0", "BF16"),
    ("Q2_K", "Q2_K", "Q3_K"),
    ("IQ4_XS", "IQ4_XS", "IQ4_NL"),
    ("MXFP4", "MXFP4", "NVFP4"),
    ("FP8_E4M3", "FP8_E4M3", "FP8_E4M3"),
    ("I4_32", "U4_64_F16", "I4_128"),
    ("NVFP4_F32_256", "NVFP4_F32_256", "NVFP4_F32_64"),
    ("I8_32", "I8_128_F32", "I8_64_F16"),
]


@pytest.mark.parametrize("formats", FORMATS)
def test_experts_agree_with_numpy(kernels, pool, formats):
    check_experts(kernels, pool, formats, (1, 2, 7, 60))


@pytest.mark.soak
@pytest.mark.parametrize("fmt", ALL)
def test_experts_of_every_format_and_token_count(kernels, pool, fmt):
    check_experts(kernels, pool, (fmt,) * 3, (0, 1, 2, 3, 5, 8, 16, 17, 33, 64, 513))


def check_experts(kernels, pool, formats, token_counts):
    """Against float64, with experts that no token goes to, and with all tokens in one expert."""
    experts, *dense = bank(kernels, formats, EXPERTS, HIDDEN, INTER)
    for tokens in token_counts:
        x = normal(np.random.default_rng(tokens), tokens, HIDDEN)
        none = np.zeros((0, 1), np.int32), np.zeros((0, 1), np.float32)
        scattered = routes(tokens, tokens, EXPERTS - 2) if tokens else none
        for ids, weights in (scattered, (np.full((tokens, 1), 4, np.int32), np.ones((tokens, 1), np.float32))):
            expected = reference(experts, *dense, x, ids, weights)
            # a quantised intermediate may round one code the other way: one step of 127
            allowed = (2e-5 if ALL[formats[2]].plain else 1e-2) * expected.std() if tokens else 0
            assert (np.abs(run(kernels, pool, experts, x, ids, weights) - expected) <= allowed).all()


@pytest.mark.parametrize("formats", [("F32",) * 3, ("Q4_0",) * 3, ("Q4_K", "Q4_K", "Q6_K")])
def test_a_token_has_the_same_bits_alone_in_a_batch_and_with_any_threads(kernels, formats):
    experts, *_ = bank(kernels, formats, EXPERTS, HIDDEN, INTER)
    x = normal(np.random.default_rng(1), 150, HIDDEN)
    ids, weights = routes(150)
    with Pool(cpus(1), kernels) as one, Pool(cpus(2), kernels) as two, Pool(cpus(3), kernels) as three:
        whole = run(kernels, one, experts, x, ids, weights)
        assert np.array_equal(run(kernels, two, experts, x, ids, weights), whole)
        assert np.array_equal(run(kernels, three, experts, x, ids, weights), whole)
        for start, stop in ((0, 1), (3, 5), (10, 20), (50, 117)):
            part = run(kernels, two, experts, x[start:stop], ids[start:stop], weights[start:stop])
            assert np.array_equal(part, whole[start:stop])


@pytest.mark.parametrize("inter", [16, 40, 100])
def test_plain_experts_of_ragged_width(kernels, pool, inter):
    experts, *dense = bank(kernels, ("F32", "BF16", "F16"), 4, 72, inter)
    x = normal(np.random.default_rng(2), 9, 72)
    ids, weights = routes(9, experts=4, top_k=2)
    expected = reference(experts, *dense, x, ids, weights)
    np.testing.assert_allclose(run(kernels, pool, experts, x, ids, weights), expected, atol=2e-5 * expected.std())


def test_all_tokens_may_go_to_one_expert_and_none_to_others(kernels, pool):
    experts, *dense = bank(kernels, ("Q4_0",) * 3, EXPERTS, HIDDEN, INTER)
    x = normal(np.random.default_rng(3), 140, HIDDEN)
    ids, weights = np.full((140, 1), 4, np.int32), np.ones((140, 1), np.float32)
    expected = reference(experts, *dense, x, ids, weights)
    assert np.abs(run(kernels, pool, experts, x, ids, weights) - expected).max() <= 1e-2 * expected.std()


def test_slots_without_expert_add_nothing(kernels, pool):
    experts, *_ = bank(kernels, ("Q4_0",) * 3, EXPERTS, HIDDEN, INTER)
    x = normal(np.random.default_rng(4), 3, HIDDEN)
    ids, weights = routes(3, top_k=2)
    expected = run(kernels, pool, experts, x, ids, weights)
    padded = np.array([[-1, *ids[0]], [ids[1][0], -1, ids[1][1]], [-1, -1, -1]], np.int32)
    spread = np.array([[9, *weights[0]], [weights[1][0], 9, weights[1][1]], [9, 9, 9]], np.float32)
    got = run(kernels, pool, experts, x, padded, spread)
    assert np.array_equal(got[:2], expected[:2])
    assert not got[2].any()
    assert not run(kernels, pool, experts, x, np.full((3, 2), -1, np.int32), weights).any()


def test_slots_are_merged_in_their_own_order(kernels, pool):
    experts, *_ = bank(kernels, ("F32",) * 3, EXPERTS, HIDDEN, INTER)
    x = normal(np.random.default_rng(5), 1, HIDDEN)
    ids, weights = routes(1)
    total = np.zeros_like(x)
    for slot in range(TOP_K):
        one = np.ascontiguousarray(ids[:, slot : slot + 1])
        total += weights[0, slot] * run(kernels, pool, experts, x, one, np.ones((1, 1), np.float32))
    assert np.array_equal(run(kernels, pool, experts, x, ids, weights), total)


@pytest.mark.parametrize("formats", [("F32",) * 3, ("Q4_0",) * 3])
@pytest.mark.parametrize("tokens", [4, 70])
def test_a_bad_activation_spoils_its_own_token_only(kernels, pool, formats, tokens):
    experts, *_ = bank(kernels, formats, EXPERTS, HIDDEN, INTER)
    x = normal(np.random.default_rng(6), tokens, HIDDEN)
    ids, weights = routes(tokens)
    clean = run(kernels, pool, experts, x, ids, weights)
    x[2, 11] = np.nan
    spoilt = run(kernels, pool, experts, x, ids, weights)
    assert np.isnan(spoilt[2]).all()
    kept = [t for t in range(tokens) if t != 2]
    assert np.array_equal(spoilt[kept], clean[kept])


def test_more_tokens_than_one_pass_holds(kernels, pool):
    experts, *_ = bank(kernels, ("Q4_0",) * 3, 3, 32, 32)
    x = normal(np.random.default_rng(7), 4500, 32)
    ids, weights = routes(4500, experts=3, top_k=2)
    whole = run(kernels, pool, experts, x, ids, weights)
    assert np.array_equal(
        run(kernels, pool, experts, x[2040:2060], ids[2040:2060], weights[2040:2060]), whole[2040:2060]
    )
    assert run(kernels, pool, experts, x[:0], ids[:0], weights[:0]).shape == (0, 32)


def test_many_tokens_take_no_memory_for_all_of_their_outputs(kernels):
    """Outputs of single experts are kept whole only where pairs are few, and merged strip by strip otherwise."""
    experts, *_ = bank(kernels, ("Q4_0",) * 3, 4, 4096, 32)
    x = np.ones((2048, 4096), np.float32)
    ids, weights = routes(2048, experts=4, top_k=4)
    out = np.empty_like(x)
    with Pool(cpus(1), kernels) as pool:
        before = address_space()
        kernels.moe(pool, experts, x, ids, weights, out)
        assert address_space() - before < out.nbytes * 4 / 2  # an output is as large for each of the four


def address_space():
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[0]) * 4096


def test_wrong_ids_shapes_and_banks_are_refused(kernels, pool):
    experts, *_ = bank(kernels, ("Q4_0",) * 3, EXPERTS, HIDDEN, INTER)
    x = np.zeros((2, HIDDEN), np.float32)
    ids, weights = routes(2)
    for bad in (EXPERTS, -2, 2**31 - 1):
        wrong = ids.copy()
        wrong[1, 2] = bad
        with pytest.raises(ValueError, match=f"expert id {bad} at 5: expected -1 to {EXPERTS - 1}"):
            run(kernels, pool, experts, x, wrong, weights)
    with pytest.raises(ValueError, match="weights: shape"):
        run(kernels, pool, experts, x, ids, weights[:1])
    with pytest.raises(ValueError, match="int64"):
        run(kernels, pool, experts, x, ids.astype(np.int64), weights)
    with pytest.raises(ValueError, match="x: shape"):
        run(kernels, pool, experts, x[:, :32].copy(), ids, weights)
    data, stride = experts.data, experts.stride
    with pytest.raises(ValueError, match="stride"):
        ExpertBank(EXPERTS, HIDDEN, INTER, "Q8_0", "Q4_0", "Q4_0", data, stride, experts.down_offset)
    with pytest.raises(ValueError, match="expert bank: shape"):
        ExpertBank(EXPERTS, HIDDEN, INTER, *("Q4_0",) * 3, data[:-1], stride, experts.down_offset)
