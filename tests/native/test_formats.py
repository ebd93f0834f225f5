"""Packing without loss, dequantisation to the bit, quantisation with small error."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero.native import FORMATS, Kernels, PackedMatrix, expert_bytes, packed_bytes, row_bytes
from tests.native.weights import HALVES, USABLE, dequantized, normal, packed, raw_rows, with_scales

SHAPES = [(16, 256), (40, 512), (7, 256), (1, 1024)]


@pytest.fixture(params=USABLE)
def kernels(request):
    return Kernels(request.param)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_unpack_gives_back_the_bits_that_were_packed(kernels, fmt, shape):
    n, k = shape
    rows = np.random.default_rng(1).integers(0, 256, (n, row_bytes(fmt, k)), dtype=np.uint8)
    if fmt.startswith("U4"):
        rows.reshape(n, -1, FORMATS[fmt].block_bytes)[..., 3] = 0
    tiles = kernels.pack(fmt, rows, n, k)
    assert tiles.size == packed_bytes(fmt, n, k)
    assert np.array_equal(kernels.unpack(fmt, tiles, n, k), rows)


@pytest.mark.parametrize("fmt", ["F32", "F16", "BF16", "FP8_E4M3"])
def test_plain_rows_of_any_length_survive_packing(kernels, fmt):
    for k in (1, 31, 33, 100):
        rows = raw_rows(fmt, 5, k)
        assert np.array_equal(kernels.unpack(fmt, kernels.pack(fmt, rows, 5, k), 5, k), rows)


@pytest.mark.parametrize("fmt", FORMATS)
def test_tiers_pack_alike_and_padding_is_zero(fmt):
    rows = raw_rows(fmt, 7, 256)
    tiles = [Kernels(tier).pack(fmt, rows, 7, 256) for tier in USABLE]
    assert all(np.array_equal(tiles[0], other) for other in tiles)
    blank = Kernels(USABLE[0]).pack(fmt, np.concatenate([rows, np.zeros((9, rows.shape[1]), np.uint8)]), 16, 256)
    assert np.array_equal(blank, tiles[0])


@pytest.mark.parametrize("fmt", FORMATS)
def test_dequantize_equals_ggml_to_the_bit(kernels, fmt):
    rows = raw_rows(fmt, 24, 512)
    expected = dequantized(fmt, rows, 24, 512)
    assert np.array_equal(kernels.dequantize(fmt, rows, 24, 512), expected)
    matrix = packed(kernels, fmt, rows, 24, 512)
    assert np.array_equal(kernels.dequantize_packed(matrix), expected)
    ids = np.array([23, 0, 0, 17], np.int32)
    assert np.array_equal(kernels.gather_rows(matrix, ids), expected[ids])


def test_every_half_is_widened_exactly(kernels):
    rows = np.arange(65536, dtype=np.uint16).reshape(64, 1024)
    got = kernels.dequantize("F16", rows.view(np.uint8), 64, 1024)
    assert np.array_equal(got, rows.view(np.float16).astype(np.float32), equal_nan=True)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(width=32), min_size=32, max_size=32))
def test_half_and_bfloat16_round_to_nearest_even(values):
    kernels = Kernels(USABLE[-1])
    x = np.array([values], np.float32)
    with np.errstate(over="ignore"):
        half = x.astype(np.float16)
    assert np.array_equal(kernels.quantize("F16", x).view(np.float16), half, equal_nan=True)
    bits = x.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    got = kernels.quantize("BF16", x).view(np.uint16)
    assert np.array_equal(got[~np.isnan(x)], rounded[~np.isnan(x)])
    assert np.isnan((got[np.isnan(x)].astype(np.uint32) << 16).view(np.float32)).all()


@pytest.mark.parametrize(("fmt", "share"), [("Q4_0", 0.95), ("Q8_0", 0.97)])
@pytest.mark.parametrize("shape", ["normal", "heavy", "one-sided"])
def test_quantised_scales_leave_less_error_than_ggml(kernels, shape, fmt, share):
    x = normal(np.random.default_rng(3), 64, 512)
    x = {"normal": x, "heavy": x**3, "one-sided": np.abs(x)}[shape]
    x[0, :32] = 0

    def error(rows):
        return np.square(dequantized(fmt, rows, 64, 512).astype(np.float64) - x).mean()

    ours = kernels.quantize(fmt, x)
    theirs = gguf.quants.quantize(x, gguf.GGMLQuantizationType[fmt])
    assert error(ours) < share * error(theirs)
    assert not dequantized(fmt, ours, 64, 512)[0, :32].any()


def test_the_error_of_inputs_that_count_more_is_made_less(kernels):
    rng = np.random.default_rng(5)
    x, counts = normal(rng, 40, 64), rng.lognormal(0, 1.5, 64).astype(np.float32)

    def error(fmt, *importance):
        rows = kernels.quantize(fmt, x, *importance)
        return (counts * np.square(dequantized(fmt, rows, 40, 64).astype(np.float64) - x)).sum()

    blocks, weights = x.reshape(-1, 32).astype(np.float64), np.tile(counts, 40).reshape(-1, 32)
    best = np.full(len(blocks), np.inf)
    for size in np.linspace(5.5, 10, 400):  # all scales that can be the best one, of either sign
        for sign in (-1, 1):
            d = sign * np.abs(blocks).max(1, keepdims=True) / size
            codes = np.clip(np.rint(blocks / d), -8, 7)
            d = (weights * blocks * codes).sum(1, keepdims=True) / (weights * codes**2).sum(1, keepdims=True)
            best = np.minimum(best, (weights * np.square(codes * d - blocks)).sum(1))
    assert error("Q4_0", counts) <= 1.05 * best.sum()
    assert error("Q4_0", counts) <= 0.9 * error("Q4_0")
    assert error("Q8_0", counts) < error("Q8_0")


@pytest.mark.parametrize("fmt", ["Q4_0", "Q8_0", "BF16"])
def test_inputs_that_all_count_alike_change_nothing(kernels, fmt):
    x = normal(np.random.default_rng(6), 9, 96)
    assert np.array_equal(kernels.quantize(fmt, x, np.full(96, 1, np.float32)), kernels.quantize(fmt, x))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_what_is_no_importance_is_refused(kernels, bad):
    counts = np.ones(64, np.float32)
    counts[7] = bad
    with pytest.raises(ValueError, match="importance 7 is not a positive number"):
        kernels.quantize("Q4_0", normal(np.random.default_rng(6), 2, 64), counts)
    with pytest.raises(ValueError, match="expected"):
        kernels.quantize("Q4_0", normal(np.random.default_rng(6), 2, 64), counts[:32])


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e4])
def test_q8_0_is_within_a_step_of_every_value(kernels, scale):
    x = normal(np.random.default_rng(2), 20, 256) * np.float32(scale)
    steps = np.abs(x).reshape(20, 8, 32).max(-1, keepdims=True) / 127
    error = np.abs(dequantized("Q8_0", kernels.quantize("Q8_0", x), 20, 256) - x).reshape(20, 8, 32)
    assert (error <= 0.95 * steps + 1e-6 * scale).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt != "NVFP4"])  # every ue4m3 scale is a number
def test_the_first_block_with_a_bad_scale_is_found(kernels, fmt, bad):
    k, info = 512, FORMATS[fmt]
    rows = raw_rows(fmt, 6, k)
    assert kernels.check_scales(fmt, rows, 6, k) == -1
    blocks = rows.reshape(6, k // info.block_k, info.block_bytes)
    if fmt == "MXFP4":
        blocks[4, 1, 0] = 255
    elif not info.quantised:
        kind = {"F32": np.float32, "BF16": np.uint16}.get(fmt, np.float16)
        value = np.array([bad], np.float32).view(np.uint16)[1:] if fmt == "BF16" else np.array([bad]).astype(kind)
        blocks[4, 1, : value.nbytes] = value.view(np.uint8)
    else:
        with_scales(fmt, blocks[4:5, 1:2], np.full((1, 1, 1), bad, np.float32))
    assert kernels.check_scales(fmt, rows, 6, k) == 4 * (k // info.block_k) + 1


def test_an_fp8_code_that_is_no_number_is_found(kernels):
    rows = raw_rows("FP8_E4M3", 3, 200)
    assert kernels.check_scales("FP8_E4M3", rows, 3, 200) == -1
    rows[2, 132 + 4 + 71] = 0xFF
    assert kernels.check_scales("FP8_E4M3", rows, 3, 200) == 5


@pytest.mark.parametrize("fmt", ["Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q2_K"])
def test_a_bad_minimum_is_found(kernels, fmt):
    rows, at = raw_rows(fmt, 1, 256), HALVES[fmt][1]
    rows[0, at : at + 2] = np.array([np.nan], np.float16).view(np.uint8)
    assert kernels.check_scales(fmt, rows, 1, 256) == 0


@pytest.mark.parametrize("target", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_a_nan_survives_quantisation_so_that_the_check_finds_it(kernels, target):
    x = normal(np.random.default_rng(4), 1, 64)
    x[0, 40] = np.nan
    rows = kernels.quantize(target, x)
    assert kernels.check_scales(target, rows, 1, 64) == (1 if FORMATS[target].quantised else 40)


def test_an_expert_survives_packing_and_is_page_aligned(kernels):
    hidden, inter = 256, 320
    fmts = ("Q4_0", "Q8_0", "F16")
    rows = [
        raw_rows(fmt, n, k, i)
        for i, (fmt, n, k) in enumerate([(fmts[0], inter, hidden), (fmts[1], inter, hidden), (fmts[2], hidden, inter)])
    ]
    out = np.full(expert_bytes(*fmts, hidden, inter), 255, np.uint8)
    assert out.size % 4096 == 0
    kernels.pack_expert(rows[0], fmts[0], rows[1], fmts[1], rows[2], fmts[2], hidden, inter, out)
    for got, raw in zip(kernels.unpack_expert(out, *fmts, hidden, inter), rows, strict=True):
        assert np.array_equal(got, raw)


def test_sizes_follow_the_formats():
    assert row_bytes("Q4_K", 2048) == 8 * 144
    assert packed_bytes("Q4_0", 768, 2048) == 768 * 2048 * 4.5 / 8
    assert FORMATS["Q4_K"].bits_per_weight == 4.5
    with pytest.raises(ValueError, match="256"):
        row_bytes("Q6_K", 128)
    with pytest.raises(ValueError, match="unknown weight format IQ2_S"):
        row_bytes("IQ2_S", 256)
    assert row_bytes("FP8_E4M3", 130) == 2 * 132
    # as in the files that have them; groups of integers are 4 bits, a 16-bit scale and a byte of zero point
    bits = {"Q2_K": 2.625, "Q3_K": 3.4375, "IQ4_NL": 4.5, "IQ4_XS": 4.25, "MXFP4": 4.25, "NVFP4": 4.5, "FP8_E4M3": 8.25}
    for fmt, expected in {**bits, "I4_32": 4.5, "I4_128_F16": 4.125, "U4_64": 4.375}.items():
        assert FORMATS[fmt].bits_per_weight == expected


def test_wrong_lengths_and_types_are_refused(kernels):
    rows = raw_rows("Q4_0", 16, 64)
    with pytest.raises(ValueError, match="rows: 576 bytes given, 612 expected"):
        kernels.pack("Q4_0", rows, 17, 64)
    with pytest.raises(ValueError, match="out"):
        kernels.pack("Q4_0", rows, 16, 64, out=np.empty(10, np.uint8))
    with pytest.raises(ValueError, match="scattered"):
        kernels.pack("Q4_0", rows[:, ::2], 16, 64)
    with pytest.raises(ValueError, match="tiles"):
        kernels.unpack("Q4_0", np.zeros(100, np.uint8), 16, 64)
    with pytest.raises(ValueError, match="nothing is quantised to Q4_K"):
        kernels.quantize("Q4_K", np.zeros((1, 256), np.float32))
    with pytest.raises(ValueError, match="packed matrix"):
        PackedMatrix("Q4_0", 16, 64, np.zeros(100, np.uint8), (16, 64))
    with pytest.raises(ValueError, match="row 16 of a matrix of 16 rows"):
        kernels.gather_rows(packed(kernels, "Q4_0", rows, 16, 64), np.array([16]))
