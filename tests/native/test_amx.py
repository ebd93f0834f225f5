"""The built amx object; where the CPU has no AMX but AVX-512 with BF16, tile instructions are trapped and emulated."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from hetero.machine.ledger import tile_row_bytes
from hetero.native import FORMATS, Kernels, Pool, packed_bytes
from hetero.native.library import ffi, library_path
from tests.native.emulation import cpu as emulation
from tests.native.test_linear import _magnitude, product
from tests.native.test_moe import reference, routes, run
from tests.native.weights import THINNED, USABLE, bank, cpus, dequantized, normal, packed, raw_rows

TILED = [fmt for fmt in THINNED if fmt not in ("F32", "F16")]
FROM = 8
"""From so many tokens on tiles may be used; where they are faster, which they are for every format from 32 on."""


@pytest.fixture(scope="module")
def tiles_run(tmp_path_factory):
    """A function that tells how many tile instructions were emulated, or None where AMX is real."""
    if library_path("amx") is None:
        pytest.skip("NOT TESTED: no amx kernels were built")
    if "amx" in USABLE:
        yield None
        return
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    if "avx512" not in USABLE or "avx512_bf16" not in flags:
        pytest.skip("NOT TESTED: the amx kernels need a CPU with AVX-512 and BF16 around the trapped instructions")
    trap = ctypes.CDLL(str(emulation.build("trap.c", tmp_path_factory.mktemp("trap"))))
    assert trap.trap_amx() == 0
    count = ctypes.c_ulong.in_dll(trap, "emulated_instructions")
    yield lambda: count.value
    trap.untrap_amx()


@pytest.fixture
def kernels(tiles_run, monkeypatch):
    monkeypatch.delenv("HETERO_DETERMINISTIC", raising=False)
    return Kernels("amx")


INT8_UP_TO = {"I4_64": 48, "U4_64": 32, "I8_64": 64, "I4_128": 256, "U4_128": 128, "I8_128": 256}
INT8_UP_TO |= {f"{fmt}_{scale}": up_to for fmt, up_to in INT8_UP_TO.items() for scale in ("F16", "F32")}
"""For so many tokens int8 tiles are used, beyond them bf16 tiles, as in all other formats."""


def bound(fmt, rows, n, k, x, weights):
    """How far a product may be from exact: factors rounded to bfloat16, or activations to int8, then float32 sums."""
    magnitude = _magnitude(fmt, rows, n, k, weights)
    if len(x) <= INT8_UP_TO.get(fmt, 0):
        rounding = half_steps(x) @ np.abs(weights).T
    else:
        rounding = (2.0**-7 + 2.0**-16) * (np.abs(x) @ np.abs(weights).T)
    return rounding + (k + 4) * 2.0**-24 * ((np.abs(x) + half_steps(x)) @ (np.abs(weights) + magnitude).T)


def half_steps(x):
    """How far an activation may be from its int8 code times the scale of its 128: half of amax / 127, and a product's
    and a quotient's rounding, each 2^-24 of up to 127 steps."""
    groups = np.pad(np.abs(x), ((0, 0), (0, -x.shape[1] % 128))).reshape(len(x), -1, 128)
    steps = groups.max(-1, keepdims=True) / 127 * (0.5 + 127 * 2.0**-22)
    return np.broadcast_to(steps, groups.shape).reshape(len(x), -1)[:, : x.shape[1]]


@pytest.mark.parametrize("fmt", TILED)
def test_products_are_within_rounding_of_float64(kernels, tiles_run, fmt):
    shapes = [(40, 2304), (16, 256)] if not FORMATS[fmt].plain else [(33, 301), (9, 1), (16, 64)]
    with Pool(cpus(2), kernels) as pool:
        for n, k in shapes:
            rows = raw_rows(fmt, n, k, n + k)
            weights, matrix = dequantized(fmt, rows, n, k).astype(np.float64), packed(kernels, fmt, rows, n, k)
            x = normal(np.random.default_rng(k), 130, k)
            for tokens in (32, 33, 47, 48, 64, 80, 130):
                before = tiles_run() if tiles_run else 0
                error = np.abs(product(kernels, pool, matrix, x[:tokens]) - x[:tokens].astype(np.float64) @ weights.T)
                assert (error <= bound(fmt, rows, n, k, x[:tokens].astype(np.float64), weights)).all()
                assert not tiles_run or tiles_run() > before


@pytest.mark.parametrize("fmt", THINNED)
def test_few_tokens_and_deterministic_pools_give_the_bits_of_avx512(kernels, monkeypatch, fmt):
    other = Kernels("avx512")
    matrix, x = packed(kernels, fmt, raw_rows(fmt, 40, 512), 40, 512), normal(np.random.default_rng(3), 70, 512)
    with Pool(cpus(2), kernels) as pool, Pool(cpus(2), other) as reference_pool:
        asked = Pool(cpus(2), kernels, deterministic=True)
        monkeypatch.setenv("HETERO_DETERMINISTIC", "1")
        with asked, Pool(cpus(2), kernels) as pinned:
            for tokens in (1, 5, FROM - 1, 16, 70):
                expected = product(other, reference_pool, matrix, x[:tokens])
                assert np.array_equal(product(kernels, pinned, matrix, x[:tokens]), expected)
                assert np.array_equal(product(kernels, asked, matrix, x[:tokens]), expected)
                if tokens < FROM:
                    assert np.array_equal(product(kernels, pool, matrix, x[:tokens]), expected)


@pytest.mark.parametrize(("fmt", "k"), [("Q4_0", 96), ("I4_64", 192), ("U4_128_F16", 256), ("I8_128_F32", 128)])
def test_rows_for_tiles_take_the_memory_that_a_plan_counts(kernels, fmt, k):
    """What a refused call names as needed for one token more, with tiles and without."""
    tile, x, out = ffi.new("uint8_t[]", 1 << 12), ffi.new("float[]", 9 * k), ffi.new("float[]", 144)

    def needed(library, tokens):
        arguments = (FORMATS[fmt].code, k, tile, packed_bytes(fmt, 16, k), x, 4 * tokens * k, tokens)
        with pytest.raises(ValueError, match="scratch: 0 bytes given") as refused:
            library.call("hetero_tile", *arguments, ffi.NULL, 0, out, 64 * tokens)
        return int(str(refused.value).split()[-2])

    with_tiles, without = (needed(library, 9) - needed(library, 8) for library in (kernels, Kernels("avx512")))
    assert with_tiles - without == tile_row_bytes(fmt, k)


@pytest.mark.parametrize("fmt", TILED)
def test_with_tiles_a_token_has_the_same_bits_in_every_batch_and_with_any_threads(kernels, fmt):
    k = 1088 if fmt in INT8_UP_TO and "64" in fmt else 1024  # more than a chunk, whose last group of 128 is cut short
    matrix, x = packed(kernels, fmt, raw_rows(fmt, 120, k), 120, k), normal(np.random.default_rng(5), 200, k)
    batches = {200: ((0, 32), (7, 33), (100, 50), (120, 64))}
    if (most := INT8_UP_TO.get(fmt, 200)) < 200:  # each kind of tiles by itself
        batches = {most: ((0, most - 11), (7, most // 2)), 200: ((0, most + 1), (30, 165))}
    with Pool(cpus(1), kernels) as one, Pool(cpus(3), kernels) as three:
        for tokens, parts in batches.items():
            whole = product(kernels, one, matrix, x[:tokens])
            assert np.array_equal(product(kernels, three, matrix, x[:tokens]), whole)
            for start, count in parts:
                part = product(kernels, three, matrix, x[start : start + count])
                assert np.array_equal(part, whole[start : start + count])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("fmt", ["Q4_K", "U4_128"])
def test_a_bad_activation_spoils_its_own_token_only(kernels, fmt, bad):
    matrix, x = packed(kernels, fmt, raw_rows(fmt, 24, 256), 24, 256), normal(np.random.default_rng(6), 20, 256)
    with Pool(cpus(2), kernels) as pool:
        clean = product(kernels, pool, matrix, x)
        x[1, 70] = bad
        spoilt = product(kernels, pool, matrix, x)
    assert not np.isfinite(spoilt[1]).any()
    kept = [t for t in range(20) if t != 1]
    assert np.array_equal(spoilt[kept], clean[kept])


@pytest.mark.parametrize(
    "formats",
    [("Q4_0",) * 3, ("Q4_K", "Q4_K", "Q6_K"), ("BF16",) * 3, ("Q8_0", "F16", "BF16"), ("U4_128", "I4_64", "U4_64")],
)
def test_experts_choose_their_kernel_by_their_own_tokens(kernels, tiles_run, formats):
    experts, *dense = bank(kernels, formats, 6, 256, 320 if formats[2] == "BF16" else 512)
    x = normal(np.random.default_rng(1), 150, 256)
    ids, weights = routes(150, experts=5, top_k=2)
    ids[ids == 4] = -1
    ids[:3, 0] = 5  # an expert of three tokens beside others of about 60
    exact = reference(_Exact(), *dense, x, ids, weights)
    before = tiles_run() if tiles_run else 0
    with Pool(cpus(1), kernels) as one, Pool(cpus(3), kernels) as three:
        out = run(kernels, one, experts, x, ids, weights)
        assert np.array_equal(run(kernels, three, experts, x, ids, weights), out)
    assert not tiles_run or tiles_run() > before
    error = (out - exact) / exact.std(axis=1, keepdims=True)
    # rounding to bfloat16 (2^-9 at most) of two factors of each of three products, without bias; or to int8 (half a
    # 127th of the largest of 128 at most) of the activations of gate and up
    assert np.abs(error).max() < (0.12 if formats[0] in INT8_UP_TO else 0.06)
    assert np.sqrt(np.square(error).mean()) < (0.014 if formats[0] in INT8_UP_TO else 0.007)


class _Exact:
    """Stands for a bank in `reference`, so that activations are taken as they are."""

    gate_format = up_format = down_format = "F32"
