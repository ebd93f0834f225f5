"""The driver of `make bench-peers`: what it refuses, in which order it measures, and a run against a pretended peer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import peers, report
from bench.shapes import Layer
from bench.worker import Worker, WorkerFailed
from tests.tiny import tiny_gguf


def test_the_one_who_goes_first_changes_and_the_first_pair_is_not_counted() -> None:
    order: list[str] = []

    def sample(name: str) -> float:
        order.append(name)
        return float(len(order))

    mine, theirs, rates = peers.in_turns(lambda: sample("own"), lambda: sample("peer"), lambda: sample("read"), 2)
    assert order == ["read", "peer", "own", "read", "own", "peer", "read", "peer", "own"]
    assert (mine, theirs, rates) == ([5.0, 9.0], [6.0, 8.0], [4.0, 7.0])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "no peer is named"),
        (["--peer-python", "/nowhere/python"], "/nowhere/python does not exist"),
        (["--peer-python", sys.executable, "--repeat", "3"], "--repeat is 3"),
        (["--peer-python", sys.executable, "--models", "/nowhere.gguf"], "/nowhere.gguf does not exist"),
        (["--kt-python", sys.executable, "--nice", "chrt -r 10"], "nice -n -20"),
    ],
)
def test_what_cannot_be_measured_is_refused(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        peers.parse(args)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_options_of_make_arrive(tmp_path: Path) -> None:
    models = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for path in models:
        path.touch()
    options = peers.parse(
        ["--models", f"{models[0]} {models[1]}", "--peer-python", sys.executable, "--nice", "chrt -r 10"]
    )
    assert options.models == tuple(models)
    assert options.nice == ("chrt", "-r", "10")
    assert "both sides under `chrt -r 10`" in peers.describe(options, "avx2")


def test_a_worker_answers_after_what_its_libraries_print() -> None:
    code = (
        "print('a banner'); from bench.worker import serve\n"
        "def add(a, b):\n    print('noise')\n    return a + b\n"
        "serve({'add': add})"
    )
    worker = Worker("adder", [sys.executable, "-c", code], "/dev/null")
    try:
        assert worker.ask("add", a=2, b=3) == 5
        assert worker.ask("add", a=4, b=3) == 7
    finally:
        worker.close()


def test_a_worker_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(WorkerFailed, match=rf"peer ended with code 3.*{log}"):
        Worker("peer", [sys.executable, "-c", "raise SystemExit(3)"], str(log))


def test_hetero_is_measured_against_a_program_that_speaks_like_llama_bench(tmp_path: Path) -> None:
    model = tiny_gguf("qwen3moe", tmp_path / "tiny.gguf", type="Q4_0")
    fake = tmp_path / "llama-bench"
    fake.write_text('#!/bin/sh\necho \'[{"build_commit": "feed123", "avg_ts": 0.5}]\'\n')
    fake.chmod(0o755)
    page, data = tmp_path / "b.md", tmp_path / "b.json"
    args = ["--models", str(model), "--ik-bench", str(fake), "--repeat", "5", "--prefill", "8", "--decode", "3"]
    assert peers.main([*args, "--threads", "1", "--markdown", str(page), "--json", str(data)]) == 0
    records = report.load(data)
    assert [record.what for record in records] == ["prefill 8", "decode 3"]
    assert all(record.version.startswith("feed123") and record.other == (0.5,) * 5 for record in records)
    assert all(record.ratio() > 1 and min(record.bandwidth) > 1e8 for record in records)
    assert page.read_text().count("| tiny.gguf |") == 2
    assert json.loads(data.read_text())["schema"] == "hetero.bench-peers"


def test_a_peer_that_cannot_run_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_gguf("qwen3moe", tmp_path / "tiny.gguf")
    fake = tmp_path / "llama-bench"
    fake.write_text("#!/bin/sh\necho 'no such model' >&2\nexit 1\n")
    fake.chmod(0o755)
    args = ["--models", str(model), "--ik-bench", str(fake), "--prefill", "8", "--decode", "3", "--threads", "1"]
    assert peers.main([*args, "--markdown", str(tmp_path / "b.md"), "--json", str(tmp_path / "b.json")]) == 1
    assert "error: llama-bench ended with code 1: no such model" in capsys.readouterr().err


def test_a_layer_s_shape_goes_through_a_command_line() -> None:
    layer = Layer(2048, 768, 128, 8)
    assert Layer.parse(str(layer)) == layer
    with pytest.raises(ValueError):
        Layer.parse("1,2,three,4")
