"""Products with packed matrices: close to float64, and the same bits whatever else is computed beside them."""

import numpy as np
import pytest

from hetero.native import FORMATS, Kernels, PackedMatrix, Pool
from tests.native.weights import (
    THINNED,
    USABLE,
    WITH_MINIMUM,
    as_read,
    cpus,
    dequantized,
    normal,
    packed,
    raw_rows,
    with_scales,
)

TOKENS = (0, 1, 2, 3, 5, 8, 16, 17, 33, 64, 129)
SHAPES = {fmt: [(16, 256), (40, 512), (7, 2304)] for fmt in FORMATS}
for _fmt, _info in FORMATS.items():
    if _info.block_k < 256:
        SHAPES[_fmt] += [(16, _info.block_k), (40, 3 * _info.block_k)]
    if _info.plain:
        SHAPES[_fmt] += [(9, 1), (33, 301)]


@pytest.fixture(params=USABLE)
def kernels(request):
    return Kernels(request.param)


@pytest.fixture
def pool(kernels):
    with Pool(cpus(2), kernels) as pool:
        yield pool


def product(kernels, pool, matrix, x, bias=None):
    out = np.full((len(x), matrix.n), np.nan, np.float32)
    kernels.linear(pool, matrix, x, out, bias)
    return out


@pytest.mark.parametrize("fmt", THINNED)
def test_products_are_within_rounding_of_float64_for_every_shape(kernels, pool, fmt):
    check_products(kernels, pool, fmt, TOKENS)


@pytest.mark.soak
@pytest.mark.parametrize("fmt", FORMATS)
def test_products_of_all_formats_and_513_tokens(kernels, pool, fmt):
    check_products(kernels, pool, fmt, (*TOKENS, 513))


def check_products(kernels, pool, fmt, token_counts):
    for n, k in SHAPES[fmt]:
        rows = raw_rows(fmt, n, k, n + k)
        weights, matrix = dequantized(fmt, rows, n, k).astype(np.float64), packed(kernels, fmt, rows, n, k)
        steps = k if FORMATS[fmt].plain else 8 * k / 32
        x = normal(np.random.default_rng(k), max(token_counts), k)
        for tokens in token_counts:
            read = as_read(fmt, x[:tokens])
            bound = (steps + 4) * 2.0**-24 * (np.abs(read) @ _magnitude(fmt, rows, n, k, weights).T)
            assert (np.abs(product(kernels, pool, matrix, x[:tokens]) - read @ weights.T) <= bound).all()


def _magnitude(fmt, rows, n, k, weights):
    """|w|, or where code and minimum may cancel, an upper bound of the parts' magnitudes."""
    if fmt not in WITH_MINIMUM:
        return np.abs(weights)
    group = 16 if fmt == "Q2_K" else 32
    return np.broadcast_to(2 * np.abs(weights).reshape(n, -1, group).max(-1).repeat(group, axis=-1), (n, k))


@pytest.mark.parametrize("fmt", THINNED)
def test_a_token_has_the_same_bits_alone_in_a_batch_and_with_any_threads(kernels, fmt):
    n, k = 120, 2304
    matrix = packed(kernels, fmt, raw_rows(fmt, n, k), n, k)
    x = normal(np.random.default_rng(5), 300, k)
    with Pool(cpus(1), kernels) as one, Pool(cpus(2), kernels) as two, Pool(cpus(3), kernels) as three:
        whole = product(kernels, one, matrix, x)
        assert np.array_equal(product(kernels, two, matrix, x), whole)
        assert np.array_equal(product(kernels, three, matrix, x), whole)
        for start, count in ((0, 1), (7, 2), (20, 3), (40, 7), (50, 15), (100, 16), (120, 61)):
            part = product(kernels, two, matrix, x[start : start + count])
            assert np.array_equal(part, whole[start : start + count])


@pytest.mark.parametrize("fmt", ["Q4_0", "Q6_K", "Q2_K"])
def test_however_tokens_are_divided_into_passes_their_bits_stay(kernels, fmt, monkeypatch):
    """Every number of tokens up to that of several passes, on two tiles at once and on one alone."""
    monkeypatch.setenv("HETERO_DETERMINISTIC", "1")
    n, k = 48, 2304
    matrix = packed(kernels, fmt, raw_rows(fmt, n, k, 5), n, k)
    x = normal(np.random.default_rng(6), 38, k)
    with Pool(cpus(2), kernels) as pinned:
        alone = np.concatenate([product(kernels, pinned, matrix, x[i : i + 1]) for i in range(len(x))])
        for tokens in range(2, len(x) + 1):
            assert np.array_equal(product(kernels, pinned, matrix, x[:tokens]), alone[:tokens]), tokens


@pytest.mark.parametrize("fmt", THINNED)
def test_extreme_codes_do_not_overflow(kernels, pool, fmt):
    k = 512
    info = FORMATS[fmt]
    for fill in (0x00, 0x80, 0xFF, 0x7F):
        rows = np.full((16, k // info.block_k, info.block_bytes), fill, np.uint8)
        if info.plain:
            continue
        with_scales(fmt, rows, np.full((2, *rows.shape[:2]), 0.5, np.float32))
        if fmt == "MXFP4":
            rows[..., 0] = 127
        if fmt.startswith("NVFP4_"):
            rows[..., 4 : 4 + info.block_k // 16] &= 0x7E
        if fmt.startswith("U4"):
            rows[..., 2:4] = (15, 0)
        raw = rows.reshape(16, -1)
        weights, matrix = dequantized(fmt, raw, 16, k).astype(np.float64), packed(kernels, fmt, raw, 16, k)
        x = np.concatenate([np.full((9, k), 3.0), np.full((9, k), -3.0)]).astype(np.float32)
        x[2::3, ::2] *= -1
        read = as_read(fmt, x)
        bound = 1e-5 * (np.abs(read) @ (np.abs(weights).T + 64))
        for tokens in (1, 18):
            assert (
                np.abs(product(kernels, pool, matrix, x[:tokens]) - (read @ weights.T)[:tokens]) <= bound[:tokens]
            ).all()


@pytest.mark.parametrize("fmt", THINNED)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_activation_spoils_its_own_token_only(kernels, pool, fmt, bad):
    n, k = 24, 256
    matrix = packed(kernels, fmt, raw_rows(fmt, n, k), n, k)
    for tokens in (3, 20):
        x = normal(np.random.default_rng(6), tokens, k)
        clean = product(kernels, pool, matrix, x)
        x[1, 70] = bad
        spoilt = product(kernels, pool, matrix, x)
        assert not np.isfinite(spoilt[1]).any()
        kept = [t for t in range(tokens) if t != 1]
        assert np.array_equal(spoilt[kept], clean[kept])


@pytest.mark.parametrize("fmt", THINNED)
def test_tiers_agree(fmt):
    rows, x = raw_rows(fmt, 48, 768), normal(np.random.default_rng(7), 20, 768)
    results = []
    for tier in USABLE:
        kernels = Kernels(tier)
        with Pool(cpus(2), kernels) as pool:
            results.append(product(kernels, pool, packed(kernels, fmt, rows, 48, 768), x))
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], rtol=0, atol=2e-6 * np.abs(results[0]).max())


@pytest.mark.skipif(not {"avx2", "avx512"} <= set(USABLE), reason="NOT TESTED: this CPU lacks AVX-512")
@pytest.mark.parametrize("fmt", THINNED)
def test_avx512_gives_the_bits_of_avx2(fmt):
    libraries = [Kernels("avx2"), Kernels("avx512")]
    for n, k in ((48, 768), (40, 2304)) if not FORMATS[fmt].plain else ((33, 301), (9, 1)):
        rows, x = raw_rows(fmt, n, k), normal(np.random.default_rng(11), 140, k)
        for tokens in (1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 140):
            results = []
            for kernels in libraries:
                with Pool(cpus(2), kernels) as pool:
                    results.append(product(kernels, pool, packed(kernels, fmt, rows, n, k), x[:tokens]))
            assert np.array_equal(*results)


@pytest.mark.parametrize(("fmt", "group"), [("MXFP4", 32), ("NVFP4", 16)])
def test_every_scale_of_one_byte_is_read_as_ggml_does(kernels, pool, fmt, group):
    k, scales = 16 * group, np.arange(256, dtype=np.uint8).reshape(16, 16)
    rows = raw_rows(fmt, 16, k).reshape(16, -1, FORMATS[fmt].block_bytes)
    if fmt == "MXFP4":
        rows[..., 0] = np.minimum(scales, 230)  # greater ones overflow, and 255 is no number
    else:
        rows[..., :4] = scales.reshape(16, 4, 4)
    raw = rows.reshape(16, -1)
    x = np.zeros((16, k), np.float32)
    for token in range(16):  # each sees one scale of each row
        x[token, token * group : (token + 1) * group] = normal(np.random.default_rng(token), group) * 1e6
    weights = dequantized(fmt, raw, 16, k).astype(np.float64)
    expected, found = as_read(fmt, x) @ weights.T, product(kernels, pool, packed(kernels, fmt, raw, 16, k), x)
    assert np.isfinite(expected).all()
    assert (np.abs(found - expected) <= 1e-5 * (np.abs(as_read(fmt, x)) @ np.abs(weights).T)).all()


def test_tiny_and_zero_activations_give_finite_results(kernels, pool):
    matrix = packed(kernels, "Q4_0", raw_rows("Q4_0", 16, 64), 16, 64)
    x = np.array([[0.0] * 64, [1e-38] * 64, [1e-45] * 64, [1e36] * 64], np.float32)
    out = product(kernels, pool, matrix, x)
    assert not out[:3].any()
    assert np.isfinite(out[3]).all()


def test_bias_is_added_to_whole_and_ragged_tiles(kernels, pool):
    matrix = packed(kernels, "F32", raw_rows("F32", 23, 64), 23, 64)
    x, bias = normal(np.random.default_rng(8), 5, 64), normal(np.random.default_rng(9), 23)
    expected = product(kernels, pool, matrix, x) + bias
    assert np.array_equal(product(kernels, pool, matrix, x, bias), expected)


@pytest.mark.parametrize("tokens", [1, 40])
def test_many_matrices_at_once_equal_one_by_one(kernels, tokens):
    shapes = (("Q4_K", 48), ("Q8_0", 200), ("F16", 7), ("Q6_K", 16))
    matrices = [packed(kernels, fmt, raw_rows(fmt, n, 512), n, 512) for fmt, n in shapes]
    x = normal(np.random.default_rng(10), tokens, 512)
    with Pool(cpus(3), kernels) as pool:
        outs = [np.full((tokens, matrix.n), np.nan, np.float32) for matrix in matrices]
        kernels.linear_many(pool, matrices, x, outs)
        for matrix, out in zip(matrices, outs, strict=True):
            assert np.array_equal(out, product(kernels, pool, matrix, x))


def test_wrong_shapes_are_refused(kernels, pool):
    matrix = packed(kernels, "Q4_0", raw_rows("Q4_0", 16, 64), 16, 64)
    x, out = np.zeros((2, 64), np.float32), np.zeros((2, 16), np.float32)
    with pytest.raises(ValueError, match="x: shape"):
        kernels.linear(pool, matrix, np.zeros((2, 32), np.float32), out)
    with pytest.raises(ValueError, match="out: shape"):
        kernels.linear(pool, matrix, x, np.zeros((3, 16), np.float32))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out: a read-only array"):
        kernels.linear(pool, matrix, x, out)
    out.flags.writeable = True
    with pytest.raises(ValueError, match="float64"):
        kernels.linear(pool, matrix, x.astype(np.float64), out)
    with pytest.raises(ValueError, match="bias"):
        kernels.linear(pool, matrix, x, out, np.zeros(15, np.float32))
    with pytest.raises(ValueError, match="0 matrices"):
        kernels.linear_many(pool, [], x, [])
    other = PackedMatrix("Q4_0", 16, 32, kernels.pack("Q4_0", raw_rows("Q4_0", 16, 32), 16, 32), (16, 32))
    with pytest.raises(ValueError, match="64 and 32 inputs"):
        kernels.linear_many(pool, [matrix, other], x, [out, out])
