"""Mixed experts take finer formats where their measured error falls most, and never more than their budget."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from hetero.models.checkpoint import open_checkpoint
from hetero.models.convert import convert
from hetero.models.progress import silent
from hetero.models.store import open_store
from hetero.models.treatment import checked, measured_errors, planned, within_budget
from hetero.native import FORMATS, Kernels
from tests.tiny import tiny_gguf

KERNELS = Kernels("generic")
BITS = [4.5, 8.5, 16.0]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf("qwen3moe", tmp_path_factory.mktemp("m") / "m.gguf")


def test_the_budget_is_kept_and_no_single_layer_could_be_finer() -> None:
    rng = np.random.default_rng(0)
    for budget in (4.5, 5.0, 7.25, 8.5, 12.0, 16.0):
        errors = {layer: sorted(rng.random(3), reverse=True) for layer in range(7)}
        chosen = within_budget(errors, BITS, budget)
        used = sum(BITS[step] for step in chosen.values())
        assert used <= budget * 7 + 1e-6
        assert all(used - BITS[s] + BITS[s + 1] > budget * 7 for s in chosen.values() if s < 2)


def test_the_choice_is_near_the_best_of_all() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        errors = {layer: [e := float(rng.lognormal()), e / 250, e / 1e5] for layer in range(6)}
        total = {c: sum(errors[i][s] for i, s in enumerate(c)) for c in itertools.product(range(3), repeat=6)
                 if sum(BITS[s] for s in c) <= 6.5 * 6}
        chosen = within_budget(errors, BITS, 6.5)
        assert sum(errors[i][s] for i, s in chosen.items()) <= 1.05 * min(total.values())


def test_a_layer_that_is_harder_to_quantise_gets_the_bits(source: Path) -> None:
    errors = {0: [0.01, 0.0001, 0.0], 1: [0.04, 0.0001, 0.0]}
    assert within_budget(errors, BITS, 6.5) == {0: 0, 1: 1}


def test_measured_errors_are_those_of_the_formats(source: Path) -> None:
    with open_checkpoint(source) as c:
        q4, q8, bf16 = measured_errors(c, 1, KERNELS)
        assert 0.05**2 < q4 < 0.12**2
        assert 0.002**2 < q8 < 0.01**2
        assert bf16 < 0.003**2
        how = planned(checked("mixed", None, 6.5), c, KERNELS, silent)
    assert sorted(how.layers.values()) == ["Q4_0", "Q8_0"]
    assert how.label == "mixed 6.5"


def test_a_mixed_store_has_the_formats_it_reports(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "m.hetero", experts="mixed", bits=6.5, dense="q8", kernels=KERNELS)
    manifest = open_store(report.path).manifest
    assert {slot.layer: slot.gate_format for slot in manifest.layout.layers} == report.formats
    assert sum(FORMATS[f].bits_per_weight for f in report.formats.values()) == 13.0
    assert {slot.format for slot in manifest.layout.dense} == {"Q8_0"}
    assert manifest.experts == "mixed 6.5, dense Q8_0"
    kept = convert(source, tmp_path / "k.hetero", kernels=KERNELS)
    assert kept.fingerprint == report.fingerprint
    assert report.dense_error is not None
    assert 0.002 < report.dense_error < 0.01
    assert kept.dense_error is None


def test_dense_rows_that_a_format_cannot_hold_stay_as_they_are(tmp_path: Path) -> None:
    path = tiny_gguf("llama", tmp_path / "m.gguf", intermediate_size=72)
    store = open_store(convert(path, tmp_path / "m.hetero", dense="q4", kernels=KERNELS).path)
    formats = {slot.name.split(".")[-2]: slot.format for slot in store.manifest.layout.dense}
    assert (formats["down_proj"], formats["up_proj"]) == ("F32", "Q4_0")
