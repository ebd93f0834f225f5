"""The tests of this room compare bits and int8 rounding: on a CPU with AMX they pin its avx512 kernels."""

import pytest


@pytest.fixture(autouse=True)
def one_kernel_per_format(monkeypatch):
    monkeypatch.setenv("HETERO_DETERMINISTIC", "1")
