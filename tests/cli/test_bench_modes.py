"""`hetero bench --compare` and `--roofline`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from hetero.cli import compare, roofline
from hetero.cli.compare import Pair
from hetero.cli.runs import Sizes
from hetero.engine import Engine
from hetero.machine import ceilings
from hetero.machine.ceilings import Ceilings
from hetero.machine.measure_cpu import Effort
from hetero.models.stages import STAGES, Demand
from tests.cli.harness import Run
from tests.tiny import tiny_gguf

CEILINGS = Ceilings(read=100.0, int8=1000.0, maddubs=2000.0, madd=1000.0, f32=500.0)


class Recorder:
    """Turns that only say who ran."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def run(self, what: str) -> float:
        self._log.append(what + self._name)
        return float(len(self._log))


def test_the_two_take_turns_and_the_first_runs_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(compare.Turns, "prefill", lambda turns: turns.run("p"))
    monkeypatch.setattr(compare.Turns, "decode", lambda turns: turns.run("d"))
    pairs = compare.measure(Recorder("a", log), Recorder("b", log), Sizes(8, 4, 0), 2)  # type: ignore[arg-type]
    assert log == ["pb", "pa", "db", "da", "pa", "pb", "da", "db", "pb", "pa", "db", "da"]
    assert pairs == [Pair("prefill 8", (5, 10), (6, 9)), Pair("decode 4", (7, 12), (8, 11))]


def test_a_ratio_is_that_of_medians() -> None:
    pair = Pair("decode 4", (10.0, 30.0, 20.0), (10.0, 5.0, 40.0))
    assert pair.ratio() == 2.0
    assert pair.ratios() == [1.0, 6.0, 0.5]


def test_compare_reports_both_models(run: Run, model: Path, tmp_path: Path) -> None:
    other = tiny_gguf("qwen3moe", tmp_path / "other.gguf", type="Q8_0")
    sizes = ("--prefill", "8", "--decode", "3", "--repeat", "3", "-t", "1")
    body = run.json("bench", "--compare", model, other, *sizes)
    assert (body["schema"], body["a"]["path"], body["b"]["path"]) == ("hetero.bench-compare", str(model), str(other))
    assert [one["what"] for one in body["runs"]] == ["prefill 8", "decode 3"]
    assert all(len(one["a_tps"]) == len(one["b_tps"]) == 3 and one["ratio"] > 0 for one in body["runs"])
    code, out, _ = run("bench", "--compare", model, other, *sizes)
    assert code == 0
    assert "A / B" in out
    assert "in 3 pairs" in out


@pytest.mark.parametrize("more", [["MODEL"], ["--roofline"], ["--dry-run"]])
def test_compare_measures_just_two_models(more: list[str], run: Run, model: Path) -> None:
    code, out, err = run("bench", "--compare", model, model, *more)
    assert (code, out) == (2, "")
    assert "--compare A B measures just these two" in err


def test_compare_refuses_a_missing_model(run: Run, model: Path) -> None:
    code, out, err = run("bench", "--compare", model, "/nowhere.gguf")
    assert (code, out) == (2, "")
    assert "/nowhere.gguf" in err


def test_a_stage_is_judged_by_the_ceiling_that_binds_it() -> None:
    assert roofline.share(Demand(50.0, {"Q4_0": 100.0}), 1.0, CEILINGS) == roofline.Share(0.5, "memory")
    assert roofline.share(Demand(10.0, {"F32": 125.0}), 1.0, CEILINGS) == roofline.Share(0.25, "arithmetic")
    assert roofline.share(Demand(10.0, {"Q8_0": 500.0, "F32": 250.0}), 2.0, CEILINGS) == roofline.Share(
        0.5, "arithmetic"
    )
    assert roofline.share(Demand(), 1.0, CEILINGS) is None
    assert roofline.share(Demand(1.0), 0.0, CEILINGS) is None


def test_a_phase_keeps_its_own_times_when_the_next_one_runs(model: Path) -> None:
    with contextlib.closing(Engine.load(model, context=64, threads=1)) as engine, engine.timed() as watch:
        turns = roofline._Watched(engine, Sizes(8, 2, 0), watch)
        phase = turns.timed_prefill()
        before = dict(phase.stages)
        turns.timed_decode()
    assert phase.stages == before


def test_roofline_times_every_stage(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_EFFORT", Effort(set_bytes=8 << 20, samples=1, sample_seconds=0.002, seconds=0.1))
    sizes = ("--prefill", "40", "--decode", "5", "--depth", "3", "--repeat", "1", "-t", "1")
    body = run.json("bench", model, "--roofline", *sizes)
    assert body["schema"] == "hetero.bench-roofline"
    assert set(body["ceilings"]) == {"read", "int8", "maddubs", "madd", "f32"}
    assert [phase["what"] for phase in body["phases"]] == ["prefill 40", "decode 5"]
    for phase in body["phases"]:
        stages = phase["stages"]
        assert set(stages) == set(STAGES)
        used = set(STAGES) - {"dense mlp"}
        assert all(stages[name]["seconds"] > 0 and stages[name]["bytes"] > 0 for name in used)
        assert stages["dense mlp"]["seconds"] == stages["dense mlp"]["bytes"] == 0
        together = sum(stage["seconds"] for stage in stages.values()) + phase["rest_seconds"]
        assert together == pytest.approx(phase["seconds"])
    code, out, _ = run("bench", model, "--roofline", *sizes)
    assert code == 0
    assert "ceilings: memory" in out
    assert "of ceiling" in out
    assert "rest" in out
