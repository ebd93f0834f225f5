"""What each format loses: the statistics of the bench, and a short form of it on formats of every kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import calibrated, demo_formats, quality
from bench.paired import Paired
from bench.quality import PEER, Format, Run
from hetero.native import FORMATS

SHORT = ("Q8_0", "Q4_0", "Q5_1", "Q6_K", "Q4_K", "Q2_K", "Q3_K", "IQ4_XS", "MXFP4", "NVFP4", "F16", "FP8_E4M3", "U4_64")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> quality.Bench:
    return quality.Bench(quality.windows(3, 96), quality.usable_tiers()[-1:], tmp_path_factory.mktemp("quality"))


@pytest.mark.parametrize("fmt", SHORT)
def test_only_the_rounding_of_activations_divides_hetero_from_an_exact_forward(
    bench: quality.Bench, fmt: str
) -> None:
    result = bench.measure(fmt)
    (run,) = (run for name, run in result.engines.items() if name != PEER)
    rounded = not FORMATS[fmt].plain
    assert abs(np.mean(run.loss) - np.mean(result.exact.loss)) <= (0.05 if rounded else 1e-5)
    assert np.mean(run.from_exact) <= (0.1 if rounded else 1e-8)
    if PEER in result.engines:
        assert run.most <= 1.5 * result.engines[PEER].most


def test_coded_weights_are_near_the_original(bench: quality.Bench) -> None:
    name = "blk.1.ffn_up_exps.weight"
    for fmt in demo_formats.OWN:
        x, made = bench.values[name], demo_formats.coded(fmt, {name: bench.values[name]})[name]
        assert made.format == fmt
        error = np.linalg.norm(made.values() - x) / np.linalg.norm(x)
        assert error < (0.04 if fmt == "FP8_E4M3" else 0.13)


@pytest.mark.soak
def test_every_format_is_as_good_as_an_exact_forward_and_as_llama_cpp() -> None:
    assert quality.main(["--windows", "16"]) == 0


def test_a_difference_is_taken_pair_by_pair() -> None:
    found = Paired.of([1.0, 2.0, 6.0], [0.0, 1.0, 5.0])
    assert (found.mean, found.error) == (1.0, 0.0)
    assert Paired.of([1.0, 3.0], [0.0, 0.0]).error == pytest.approx(1.0)
    assert not Paired(2.0, 1.0).above(3)
    assert Paired(3.5, 1.0).above(3)


def test_what_does_not_hold_is_told_with_the_engine() -> None:
    good = Run((1.0, 1.1, 0.9), (0.1, 0.12, 0.11), (0.01, 0.012, 0.011), 0.01)
    exact = replace(good, from_exact=(0.0, 0.0, 0.0), most=0.0)
    assert not Format("Q4_0", exact, {"avx2": good, PEER: good}).failures(3)
    bad = replace(good, loss=(1.1, 1.21, 1.01), from_original=(0.2, 0.22, 0.22), from_exact=(0.02, 0.022, 0.022))
    told = Format("Q4_0", exact, {"avx2": bad, PEER: good}).failures(3)
    assert [text.split(":")[0] for text in told] == ["Q4_0 avx2"] * 3
    assert ["loss" in told[0], "original" in told[1], "llama.cpp" in told[2]] == [True] * 3


def test_the_page_names_every_engine_and_what_fails() -> None:
    run = Run((1.0, 1.0), (0.1, 0.1), (0.01, 0.01), 0.01)
    worse = replace(run, loss=(2.0, 2.0))
    gain = calibrated.Gain(5.5, (0.2, 0.3), (0.1, 0.1), (2.0, 1.5), (10**6, 10**6))
    page = quality.page([Format("Q4_0", run, {"avx2": worse, PEER: run})], [gain], [[1, 2], [3, 4]], 3)
    assert "| Q4_0 | exact | 2.7183 |" in page
    assert "|  | avx2 | 7.3891 |" in page
    assert "- Q4_0 avx2: loss differs" in page
    assert "| mixed, 5.5 bits | 1.00 | 2.0000 | 1.5000 | 2.50e-01 | 1.00e-01 | -1.5e-01 ± 5e-02 |" in page


def test_calibrated_experts_of_equal_size_diverge_less(bench: quality.Bench, tmp_path: Path) -> None:
    for gain in calibrated.gains(bench.original, bench.texts, bench.tiers[0], tmp_path, (None, 6.5)):
        assert gain.experts[0] == gain.experts[1]
        assert np.mean(gain.calibrated) < np.mean(gain.plain)
