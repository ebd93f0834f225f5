"""The built avx512 and amx objects on an emulated Sapphire Rapids, so that machines without AVX-512 test them too."""

from __future__ import annotations

import ctypes
import platform
import subprocess

import numpy as np
import pytest

from hetero.native import FORMATS, Kernels, Pool
from hetero.native.attention import PagedAttention, Sight, Store
from hetero.native.library import ffi, library_path
from tests.native.attention_reference import store_of
from tests.native.emulation.cpu import EmulatedCpu
from tests.native.test_amx import TILED, bound
from tests.native.weights import THINNED, USABLE, cpus, dequantized, normal, packed, raw_rows

BAD_ARGUMENT = 1


@pytest.fixture(scope="module")
def cpu(tmp_path_factory):
    if platform.machine() != "x86_64" or library_path("avx512") is None:
        pytest.skip("NOT TESTED: no avx512 kernels were built")
    try:
        return EmulatedCpu(tmp_path_factory.mktemp("shim"))
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NOT TESTED: AVX-512 kernels on an emulated CPU, which does not load: {error}")


def function_of(tier):
    """The address of that tier's hetero_tile."""
    library = ctypes.CDLL(str(library_path(tier)))
    return ctypes.cast(library.hetero_tile, ctypes.c_void_p).value


@pytest.fixture(scope="module")
def tile_function():
    return function_of("avx512")


def emulated_product(cpu, function, matrix, x, scratch_bytes=None):
    """(code, out) of one tile of 16 rows on the emulated CPU. No message: printf needs thread-local storage."""
    tokens, k = x.shape
    out = np.full((tokens, 16), np.nan, np.float32)
    scratch = np.zeros(20 * tokens * k + 16384 if scratch_bytes is None else scratch_bytes, np.uint8)
    arguments = [FORMATS[matrix.format].code, k]
    for array in (matrix.data, x):
        arguments += [array.ctypes.data, array.nbytes]
    arguments.append(tokens)
    for array in (scratch, out):
        arguments += [array.ctypes.data, array.nbytes]
    return cpu.call(function, *arguments, 0, 0), out


@pytest.mark.skipif("avx2" not in USABLE, reason="NOT TESTED: nothing to compare with on a CPU without AVX2")
@pytest.mark.parametrize("fmt", THINNED)
def test_the_avx512_object_gives_the_bits_of_avx2_on_an_emulated_cpu(cpu, tile_function, fmt):
    k = 256 if not FORMATS[fmt].plain else 75
    kernels = Kernels("avx2")
    matrix = packed(kernels, fmt, raw_rows(fmt, 16, k), 16, k)
    x = normal(np.random.default_rng(12), 15, k)
    for tokens in (1, 2, 3, 8, 15):
        expected = np.empty((tokens, 16), np.float32)
        with Pool(cpus(1), kernels) as pool:
            kernels.linear(pool, matrix, x[:tokens], expected)
        code, out = emulated_product(cpu, tile_function, matrix, x[:tokens])
        assert code == 0
        assert np.array_equal(out, expected)


def test_scratch_that_is_too_short_is_refused(cpu, tile_function):
    matrix = packed(Kernels("generic"), "Q4_0", raw_rows("Q4_0", 16, 64), 16, 64)
    code, out = emulated_product(cpu, tile_function, matrix, np.ones((2, 64), np.float32), scratch_bytes=100)
    assert code == BAD_ARGUMENT
    assert np.isnan(out).all()


@pytest.mark.skipif(library_path("amx") is None, reason="NOT TESTED: no amx kernels were built")
@pytest.mark.parametrize("fmt", TILED)
def test_the_amx_object_is_within_rounding_of_float64_on_an_emulated_cpu(cpu, fmt):
    k = 256 if not FORMATS[fmt].plain else 75
    rows, x = raw_rows(fmt, 16, k), normal(np.random.default_rng(13), 37, k)
    matrix, weights = packed(Kernels("generic"), fmt, rows, 16, k), dequantized(fmt, rows, 16, k).astype(np.float64)
    before = cpu.tile_instructions
    code, out = emulated_product(cpu, function_of("amx"), matrix, x)
    assert code == 0
    assert cpu.tile_instructions > before
    exact = x.astype(np.float64)
    assert (np.abs(out - exact @ weights.T) <= bound(fmt, rows, 16, k, exact, weights)).all()


@pytest.mark.skipif("avx2" not in USABLE, reason="NOT TESTED: nothing to compare with on a CPU without AVX2")
@pytest.mark.parametrize(("fmt", "d"), [("F32", 20), ("Q8_0", 40)])
def test_attention_of_the_avx512_object_gives_the_bits_of_avx2_on_an_emulated_cpu(cpu, fmt, d):
    rng = np.random.default_rng(14)
    tokens, heads, groups, e, length = 9, 4, 2, 24, 70
    q, k, v = (normal(rng, n, w) for n, w in ((tokens * heads, d), (128 * groups, d), (128 * groups, e)))
    table, outs = np.array([1, 0], np.int32), [np.zeros((tokens, heads, e), np.float32) for _ in range(2)]
    held = [store_of(128, groups, width, fmt) for width in (d, e)]
    stores = [Store(a.ctypes.data, 128, groups, w, fmt) for a, w in zip(held, (d, e), strict=True)]
    kernels = Kernels("avx2")
    attention = PagedAttention(kernels, *stores, heads, e, 64, 0.2, Sight(window=50))
    attention.append(table, 0, length, k.ctypes.data, v.ctypes.data)
    with Pool(cpus(1), kernels) as pool:
        attention.attend(pool, table, length - tokens, tokens, q.ctypes.data, outs[0].ctypes.data)
    args, scratch = attention._args, np.zeros(1 << 20, np.uint8)
    args.out, args.pages = (ffi.from_buffer(t, a) for t, a in (("float[]", outs[1]), ("int32_t[]", table)))
    library = ctypes.CDLL(str(library_path("avx512")))
    function = ctypes.cast(library.hetero_attention_alone, ctypes.c_void_p).value
    pointer = int(ffi.cast("uintptr_t", args))
    assert cpu.call(function, pointer, 0, scratch.ctypes.data, scratch.nbytes, 0, 0) == 0
    assert np.array_equal(*outs)
