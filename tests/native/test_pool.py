"""The thread pool: asleep when idle, usable from several threads, closed once."""

import threading
import time

import numpy as np
import pytest

from hetero.native import Kernels, Pool, allocate
from tests.native.weights import USABLE, cpus, normal, packed, raw_rows


@pytest.fixture
def kernels():
    return Kernels(USABLE[-1])


def product(kernels, pool, matrix, x):
    out = np.empty((len(x), matrix.n), np.float32)
    kernels.linear(pool, matrix, x, out)
    return out


def test_an_idle_pool_uses_no_cpu(kernels):
    matrix = packed(kernels, "Q4_0", raw_rows("Q4_0", 64, 256), 64, 256)
    with Pool(cpus(4), kernels) as pool:
        product(kernels, pool, matrix, normal(np.random.default_rng(0), 4, 256))
        time.sleep(0.01)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.05


def test_many_short_jobs_all_finish(kernels):
    matrix = packed(kernels, "Q4_0", raw_rows("Q4_0", 48, 64), 48, 64)
    x = normal(np.random.default_rng(1), 1, 64)
    with Pool(cpus(3), kernels) as pool:
        expected = product(kernels, pool, matrix, x)
        for i in range(500):
            if i % 100 == 0:
                time.sleep(0.001)  # long enough for the workers to fall asleep
            assert np.array_equal(product(kernels, pool, matrix, x), expected)


def test_callers_on_several_threads_take_turns(kernels):
    matrix = packed(kernels, "Q8_0", raw_rows("Q8_0", 64, 256), 64, 256)
    inputs = [normal(np.random.default_rng(i), 1 + 20 * i, 256) for i in range(4)]
    wrong = []
    with Pool(cpus(2), kernels) as pool:
        expected = [product(kernels, pool, matrix, x) for x in inputs]

        def work(i):
            for _ in range(50):
                if not np.array_equal(product(kernels, pool, matrix, inputs[i]), expected[i]):
                    wrong.append(i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_closing_ends_the_threads_and_later_use_is_refused(kernels):
    before = threading_count()
    pool = Pool(cpus(3), kernels)
    assert threading_count() == before + 2
    pool.close()
    pool.close()
    assert threading_count() == before
    matrix = packed(kernels, "F32", raw_rows("F32", 16, 32), 16, 32)
    with pytest.raises(ValueError, match="closed"):
        product(kernels, pool, matrix, np.zeros((1, 32), np.float32))


def threading_count():
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


@pytest.mark.parametrize("count", [0, 1025])
def test_a_pool_of_no_or_absurdly_many_threads_is_refused(kernels, count):
    with pytest.raises(ValueError, match="1 to 1024 CPUs"):
        Pool([0] * count, kernels)


def test_cpus_that_do_not_exist_leave_the_thread_unbound(kernels):
    matrix = packed(kernels, "F32", raw_rows("F32", 16, 32), 16, 32)
    with Pool([0, 1023, -1, 99999], kernels) as pool:
        assert np.isfinite(product(kernels, pool, matrix, np.ones((1, 32), np.float32))).all()


@pytest.mark.parametrize("size", [0, 1, 4096, (2 << 20) + 5])
def test_allocated_memory_is_zero_aligned_and_writable(size):
    area = allocate(size)
    assert area.shape == (size,)
    assert area.ctypes.data % (2 << 20 if size >= 2 << 20 else 4096) == 0
    assert not area.any()
    area[:] = 7
    assert (area == 7).all()
