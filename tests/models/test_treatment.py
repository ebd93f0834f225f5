"""Mixed experts take finer formats where their measured error falls most, and never more than their budget."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from hetero.models.checkpoint import open_checkpoint
from hetero.models.convert import convert
from hetero.models.importance import Importance, LayerImportance
from hetero.models.layout import make_layout
from hetero.models.load import load_model
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
        errors = {(layer, "down"): sorted(rng.random(3), reverse=True) for layer in range(7)}
        sizes = {part: int(rng.integers(1, 4)) for part in errors}
        chosen = within_budget(errors, sizes, BITS, budget)
        used, limit = sum(sizes[p] * BITS[step] for p, step in chosen.items()), budget * sum(sizes.values())
        assert used <= limit + 1e-6
        assert all(used + sizes[p] * (BITS[s + 1] - BITS[s]) > limit for p, s in chosen.items() if s < 2)


def test_the_choice_is_near_the_best_of_all() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        errors = {(layer, "down"): [e := float(rng.lognormal()), e / 250, e / 1e5] for layer in range(6)}
        total = {c: sum(errors[i, "down"][s] for i, s in enumerate(c)) for c in itertools.product(range(3), repeat=6)
                 if sum(BITS[s] for s in c) <= 6.5 * 6}
        chosen = within_budget(errors, dict.fromkeys(errors, 1), BITS, 6.5)
        assert sum(errors[part][s] for part, s in chosen.items()) <= 1.05 * min(total.values())


def test_a_part_that_is_harder_to_quantise_for_its_size_gets_the_bits() -> None:
    errors = {(0, "down"): [0.01, 0.0001, 0.0], (1, "down"): [0.04, 0.0001, 0.0]}
    assert list(within_budget(errors, dict.fromkeys(errors, 1), BITS, 6.5).values()) == [0, 1]
    assert list(within_budget(errors, {(0, "down"): 1, (1, "down"): 5}, BITS, 5.5).values()) == [1, 0]


def test_measured_errors_are_those_of_the_formats(source: Path) -> None:
    with open_checkpoint(source) as c:
        errors = measured_errors(c, make_layout(c.index).layers[1], KERNELS)
        for part, matrices in (("gate and up", 2), ("down", 1)):
            q4, q8, bf16 = (error / matrices for error in errors[part])
            assert 0.05**2 < q4 < 0.12**2
            assert 0.002**2 < q8 < 0.01**2
            assert bf16 < 0.003**2
        how = planned(checked("mixed", None, 6.5), c, KERNELS, silent)
    assert sum(("Q4_0", "Q8_0").index(f) for formats in how.layers.values() for f in formats) == 3
    assert all(gate == up for gate, up, _ in how.layers.values())
    assert how.label == "mixed 6.5"


def importance(layers: int = 2) -> Importance:
    rng = np.random.default_rng(4)

    def layer(sensitivity: float) -> LayerImportance:
        rows = [rng.lognormal(0, 1.5, (8, k)).astype(np.float32) for k in (64, 32)]
        return LayerImportance(*rows, usage=rng.dirichlet(np.ones(8)).astype(np.float32), sensitivity=sensitivity)

    return Importance("abc", 100, {i: layer(10.0**i) for i in range(layers)})


def test_calibrated_errors_count_inputs_experts_and_layers(source: Path) -> None:
    known = importance().layers[1]
    most = np.argsort(-known.usage)[:4]
    with open_checkpoint(source) as c:
        found = measured_errors(c, make_layout(c.index).layers[1], KERNELS, known)["down"][0]
        squares = norm = 0.0
        for expert in most:
            raw = c.read_rows("model.layers.1.mlp.experts.down.weight", int(expert))
            w, counts = KERNELS.dequantize("F32", raw, 64, 32), known.hiddens[expert]
            rows = KERNELS.quantize("Q4_0", w, counts)
            delta = KERNELS.dequantize("Q4_0", rows, 64, 32).astype(np.float64) - w
            squares += known.usage[expert] * (counts * delta**2).sum()
            norm += known.usage[expert] * (counts * w.astype(np.float64) ** 2).sum()
    assert found == pytest.approx(10 * squares / norm, rel=1e-5)


def test_the_layer_whose_errors_show_more_gets_the_bits_and_weights_are_quantised_by_what_counts(
    source: Path, tmp_path: Path
) -> None:
    known = importance()
    report = convert(source, tmp_path / "m.hetero", experts="mixed", bits=6.5, importance=known, kernels=KERNELS)
    assert report.formats == {0: "Q4_0", 1: "Q8_0"}
    assert report.experts == "mixed 6.5, calibrated abc"
    path = convert(source, tmp_path / "q4.hetero", experts="q4", importance=known, kernels=KERNELS).path
    bank = load_model(open_store(path), KERNELS).banks[0]
    extent = bank.data[3 * bank.stride : 4 * bank.stride]
    raw = KERNELS.unpack_expert(extent, *["Q4_0"] * 3, bank.hidden, bank.inter)
    with open_checkpoint(source) as c:
        for part, rows in zip(("gate", "up", "down"), raw, strict=True):
            w = c.read_rows(f"model.layers.0.mlp.experts.{part}.weight", 3)
            k = 32 if part == "down" else 64
            w = KERNELS.dequantize("F32", w, len(w), k)
            assert np.array_equal(rows, KERNELS.quantize("Q4_0", w, known.layers[0].of(part, 3)))


def test_a_mixed_store_has_the_formats_it_reports(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "m.hetero", experts="mixed", bits=6.5, dense="q8", kernels=KERNELS)
    manifest = open_store(report.path).manifest
    shown = {slot.layer: (slot.gate_format, slot.down_format) for slot in manifest.layout.layers}
    assert report.formats == {i: gate if gate == down else f"{gate}, down {down}" for i, (gate, down) in shown.items()}
    assert sum(FORMATS[f].bits_per_weight for slot in manifest.layout.layers for f in slot.formats) == 6 * 6.5
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
