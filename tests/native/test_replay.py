"""Sums, gates and copies against numpy, and lists of calls that are made again."""

import numpy as np
import pytest

from hetero.native import Kernels, Pool, cpu_tiers, prepared
from hetero.native.library import ffi
from hetero.native.replay import Recording, Replay
from tests.native.weights import normal, packed, raw_rows

TIERS = [t.name for t in cpu_tiers() if t.built and t.usable]


@pytest.fixture(params=TIERS)
def kernels(request):
    return Kernels(request.param)


def address(array):
    return array.ctypes.data


@pytest.mark.parametrize("count", [0, 1, 13, 4096, 16385, 40001])
def test_sums_and_gates_equal_their_formulae(kernels, count):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(0, 3, count).astype(np.float32) for _ in range(2))
    added, gated = np.zeros_like(a), np.zeros_like(a)
    with Pool([0, 1], kernels) as pool:
        prepared.add(kernels, pool, count, address(a), address(b), address(added))
        prepared.gate(kernels, pool, count, address(a), address(b), address(gated))
    assert np.array_equal(added, a + b)
    exact = a.astype(np.float64) / (1 + np.exp(-a.astype(np.float64))) * b
    assert (np.abs(gated - exact) <= 1e-6 * np.abs(exact)).all()


def test_nan_stays_where_it_is(kernels):
    a, b = np.ones(20, np.float32), np.ones(20, np.float32)
    a[7], b[11] = np.nan, np.inf
    out = np.zeros_like(a)
    with Pool([0], kernels) as pool:
        for function in (prepared.add, prepared.gate):
            function(kernels, pool, 20, address(a), address(b), address(out))
            assert np.flatnonzero(~np.isfinite(out)).tolist() == [7, 11]


@pytest.mark.parametrize(("count", "n", "iterations"), [(1, 4, 20), (7, 3, 1), (5, 64, 6)])
def test_matrices_become_doubly_stochastic_as_the_formula_says(kernels, count, n, iterations):
    x = np.random.default_rng(0).normal(0, 2, (count, n, n)).astype(np.float32)
    exact, eps = np.exp(x.astype(np.float64)), 1e-6
    exact = exact / exact.sum(2, keepdims=True) + eps
    exact /= exact.sum(1, keepdims=True) + eps
    for _ in range(iterations - 1):
        exact /= exact.sum(2, keepdims=True) + eps
        exact /= exact.sum(1, keepdims=True) + eps
    prepared.balance(kernels, count, n, iterations, eps, address(x))
    assert (np.abs(x - exact) <= 2e-6 * exact.max()).all()


@pytest.mark.parametrize(("n", "iterations"), [(0, 1), (65, 1), (4, 0), (4, 1001)])
def test_matrices_that_cannot_be_balanced_are_refused(kernels, n, iterations):
    with pytest.raises(ValueError, match="out of range"):
        prepared.balance(kernels, 1, n, iterations, 1e-6, address(np.zeros((65, 65), np.float32)))


def test_rows_are_copied_between_strides(kernels):
    source, to = np.arange(2 * 3 * 10, dtype=np.float32).reshape(2, 3, 10), np.zeros((3, 2, 7), np.float32)
    prepared.copy(kernels, (2, 3, 4), address(source) + 8, (30, 10), address(to) + 12, (7, 14))
    assert np.array_equal(to[..., 3:], source[:, :, 2:6].transpose(1, 0, 2))
    assert not to[..., :3].any()


@pytest.mark.parametrize(
    ("name", "value"), [("from_bytes", 231), ("to_bytes", 0), ("width", 0), ("from_n", -1), ("to_m", 1 << 62)]
)
def test_a_copy_beyond_its_arrays_is_refused(kernels, name, value):
    values = np.zeros(120, np.float32)
    args = ffi.new("hetero_copy_args *")
    setattr(args, "from", ffi.from_buffer("float[]", values))
    args.to, args.from_bytes, args.to_bytes = ffi.from_buffer("float[]", values), 232, 232
    args.n, args.m, args.width, args.from_n, args.from_m, args.to_n, args.to_m = 2, 3, 8, 30, 10, 30, 10
    setattr(args, name, value)
    with pytest.raises(ValueError, match="copy"):
        kernels.call("hetero_copy", args)


def recorded(kernels, pool, matrix, x, out, total):
    """A product and a sum, recorded."""
    recording = Recording(kernels)
    linear = prepared.PreparedLinear(kernels, [matrix], [0])
    with kernels.heard_by(recording):
        linear(pool, 1, address(x), [address(out)])
        prepared.add(kernels, pool, out.size, address(out), address(total), address(total))
    linear(pool, 0, address(x), [address(out)])  # another call with the same prepared arguments
    return recording


def test_recorded_calls_work_on_what_lies_in_their_arrays_now(kernels):
    matrix = packed(kernels, "Q4_0", raw_rows("Q4_0", 48, 64), 48, 64)
    x, again = normal(np.random.default_rng(1), 2, 64)[:, None]
    out, total, expected = np.zeros((1, 48), np.float32), np.zeros((1, 48), np.float32), np.zeros((1, 48), np.float32)
    with Pool([0, 1], kernels) as pool:
        replay = Replay(kernels, pool, recorded(kernels, pool, matrix, x, out, total), 1)
        kernels.linear(pool, matrix, again, expected)
        expected += total
        x[:] = again
        replay.run(0, [0], timed=False)
        assert not replay.seconds.any()
        replay.run(0, [0], timed=True)
    assert (replay.seconds > 0).all()
    assert np.array_equal(total, expected + out)


def test_a_function_without_a_number_is_named(kernels):
    recording = Recording(kernels)
    with kernels.heard_by(recording):
        kernels.pack("F32", np.zeros(64, np.uint8), 1, 16)
    assert recording.foreign == "hetero_pack"
    kernels.pack("F32", np.zeros(64, np.uint8), 1, 16)
    assert recording.calls == []


def test_a_list_stops_at_the_first_call_that_is_refused(kernels):
    a, b = np.ones(8, np.float32), np.ones(8, np.float32)
    calls = ffi.new("hetero_call[]", 3)
    for i, call in enumerate(calls):
        call.function = kernels.call_code("hetero_add")
        call.arguments[0:5] = [address(a), address(b), address(a), 32, 8 if i != 1 else 9]
    with Pool([0], kernels) as pool:
        with pytest.raises(ValueError, match="36 expected"):
            kernels.call("hetero_replay", pool.native, calls, 3, ffi.NULL, 0)
        assert a.tolist() == [2.0] * 8
        calls[0].function = 99
        with pytest.raises(ValueError, match="no function 99"):
            kernels.call("hetero_replay", pool.native, calls, 3, ffi.NULL, 0)
