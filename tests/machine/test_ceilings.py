"""Which measured rate is the ceiling of a format's products."""

from __future__ import annotations

import pytest

from hetero.machine.ceilings import Ceilings

AVX2 = Ceilings(read=50e9, int8=500e9, maddubs=900e9, madd=450e9, f32=250e9)
VNNI = Ceilings(read=50e9, int8=1800e9, maddubs=1850e9, madd=920e9, f32=530e9)


@pytest.mark.parametrize(
    ("fmt", "ceilings", "rate"),
    [
        ("Q4_0", AVX2, 900e9),
        ("Q6_K", AVX2, 900e9),
        ("Q8_0", AVX2, 450e9),
        ("Q8_0", VNNI, 1800e9),
        ("BF16", AVX2, 250e9),
        ("F32", VNNI, 530e9),
    ],
)
def test_each_format_has_the_ceiling_of_its_own_instructions(fmt: str, ceilings: Ceilings, rate: float) -> None:
    assert ceilings.arithmetic(fmt) == rate


def test_the_least_time_of_mixed_formats_is_the_sum_of_theirs() -> None:
    assert AVX2.seconds({"Q4_0": 900e9, "Q8_0": 45e9, "F32": 25e9}) == pytest.approx(1.2)
    assert AVX2.seconds({}) == 0
