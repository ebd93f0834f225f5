"""Formats of 1 to 3 bits: exact values against the gguf package, and the loss of the kept formats."""

import gguf
import numpy as np
import pytest

from hetero.models.iquants import FOREIGN, dequantize, repack
from hetero.native import FORMATS, Kernels
from tests.native.weights import USABLE

SCALE_AT = {"TQ1_0": 52, "TQ2_0": 64}


def random_rows(fmt, n=6, blocks=4):
    rng = np.random.default_rng(3)
    size = FOREIGN[fmt].block_bytes
    rows = rng.integers(0, 256, (n, blocks, size), dtype=np.uint8)
    d = rng.uniform(0.001, 0.02, (n, blocks)).astype(np.float16)
    if fmt == "IQ1_M":  # four bits of the scale in each of four words
        words = rows[..., 48:].copy().view(np.uint16) & 0x0FFF
        bits = d.view(np.uint16)[..., None] >> np.array([0, 4, 8, 12], np.uint16) & 15
        rows[..., 48:] = (words | bits << 12).astype(np.uint16).view(np.uint8)
    else:
        at = SCALE_AT.get(fmt, 0)
        rows[..., at : at + 2] = d[..., None].view(np.uint8)
    return rows.reshape(n, -1)


@pytest.mark.parametrize("fmt", FOREIGN)
def test_values_equal_the_gguf_package_to_the_bit(fmt):
    rows = random_rows(fmt)
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[fmt])
    assert np.array_equal(dequantize(fmt, rows), expected)
    assert np.unique(np.abs(expected)).size > 3


@pytest.mark.parametrize("fmt", FOREIGN)
def test_the_kept_format_is_as_near_as_stated(fmt):
    rows = random_rows(fmt)
    target, packed, error = repack(fmt, rows)
    info = FORMATS[target]
    k = 4 * 256
    assert packed.shape == (6, k // info.block_k * info.block_bytes)
    exact = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[fmt]).astype(np.float64)
    kept = Kernels(USABLE[0]).dequantize(target, packed, 6, k).astype(np.float64)
    measured = np.sqrt(np.square(kept - exact).sum() / np.square(exact).sum())
    assert measured <= FOREIGN[fmt].loss <= 1.6 * measured
    assert measured == pytest.approx(error, rel=1e-3)


def test_ternary_weights_of_llama_cpp_are_kept_exactly():
    x = np.random.default_rng(1).choice([-0.5, 0, 0.5], (4, 512)).astype(np.float32)
    for fmt in ("TQ1_0", "TQ2_0"):
        rows = gguf.quants.quantize(x, gguf.GGMLQuantizationType[fmt])
        target, packed, error = repack(fmt, rows)
        assert error == 0
        assert np.array_equal(Kernels(USABLE[0]).dequantize(target, packed, 4, 512), x)


def test_a_block_of_zeros_has_no_error_and_a_bad_scale_shows():
    rows = random_rows("IQ3_S")
    assert repack("IQ3_S", rows[:0])[1].shape == (0, 4 * 256 // 32 * 20)
    rows[:] = 0
    assert repack("IQ3_S", rows)[2] == 0
    rows[:, 1] = 0x7C  # infinite
    target, packed, error = repack("IQ3_S", rows)
    assert np.isnan(error)
    assert Kernels(USABLE[0]).check_scales(target, packed, 6, 1024) == 0
