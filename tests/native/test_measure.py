"""The measuring loops: arguments that would read outside are refused, and what is counted is what was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.native import Kernels, Pool, allocate, cpu_tiers
from hetero.native.measure import PIECE_STEP, compute, fill, read_seconds

TIERS = [tier.name for tier in cpu_tiers() if tier.usable]
MIB = 1 << 20


@pytest.fixture(params=TIERS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return Kernels(request.param)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4097, MIB])
def test_fill_reaches_every_byte_with_any_number_of_workers(kernels: Kernels, threads: int, size: int) -> None:
    data = allocate(size)
    with Pool([-1] * threads, kernels) as pool:
        fill(kernels, pool, data)
    assert (data == data[0]).all()
    assert data[0] != 0


def test_reads_take_time_and_more_of_them_are_counted(kernels: Kernels) -> None:
    data = allocate(8 * MIB)
    with Pool([-1, -1], kernels) as pool:
        fill(kernels, pool, data)
        offsets = np.arange(8, dtype=np.int64)[::-1].copy() * MIB
        assert 0 < read_seconds(kernels, pool, data, offsets, MIB) < 60
        # A piece that is no multiple of the workers' strips is read up to its end only.
        assert 0 < read_seconds(kernels, pool, data, np.array([8 * MIB - 3 * PIECE_STEP]), 3 * PIECE_STEP) < 60


@pytest.mark.parametrize(
    ("offsets", "piece", "said"),
    [
        ([0], 100, "out of range"),
        ([0], 2 * MIB, "out of range"),
        ([], PIECE_STEP, "out of range"),
        ([-1], PIECE_STEP, "outside"),
        ([MIB - PIECE_STEP + 1], PIECE_STEP, "outside"),
    ],
)
def test_reads_outside_of_the_memory_are_refused(kernels: Kernels, offsets: list[int], piece: int, said: str) -> None:
    with Pool([-1], kernels) as pool, pytest.raises(ValueError, match=said):
        read_seconds(kernels, pool, allocate(MIB), np.array(offsets, np.int64), piece)


@pytest.mark.parametrize("kind", ["int8", "f32", "maddubs", "madd"])
def test_operations_grow_with_rounds_and_workers(kernels: Kernels, kind: str) -> None:
    with Pool([-1], kernels) as one, Pool([-1, -1], kernels) as two:
        single, seconds = compute(kernels, one, kind, 1000)  # type: ignore[arg-type]
        assert single > 0
        assert seconds > 0
        assert compute(kernels, one, kind, 3000)[0] == 3 * single  # type: ignore[arg-type]
        assert compute(kernels, two, kind, 1000)[0] == 2 * single  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="rounds"):
            compute(kernels, one, kind, 0)  # type: ignore[arg-type]
