"""`hetero plan` as a user meets it: one screen, stable JSON, exit codes, and the same plan in every command."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hetero.cli import history
from hetero.machine.serialize import to_json
from hetero.machine.whatif import BLANK, WhatIf, imagine
from hetero.models.card import cards
from tests.cli.harness import Run, hetero, terminal
from tests.tiny import tiny_gguf

GIB = 1 << 30
XEON = ("--ram", "512G", "--vram", "24G", "--bandwidth", "400GB/s", "--pcie", "25GB/s", "--isa", "amx", "--cores", "36")
R1 = ("plan", "deepseek-r1", *XEON, "--experts", "q4", "--dense", "q4")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine file, so that nothing depends on where the tests run."""
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(to_json(imagine(BLANK, WhatIf(ram=512 * GIB, vram=0, bandwidth=200e9, cores=32)))))
    return path


def test_one_screen_says_what_matters(run: Run) -> None:
    code, out, err = run(*R1)
    assert code == 0
    lines = out.splitlines()
    assert len(lines) <= 36
    assert max(map(len, lines)) <= 80
    for word in (
        "fits",
        "experts",
        "kv cache",
        "prefill",
        "decode",
        "bound by",
        "a token",
        "2,000 tokens",
        "hetero bench",
    ):
        assert word in out
    assert "plan only" in err
    assert "\x1b" not in out


def test_json_has_its_stable_keys(run: Run) -> None:
    body = run.json(*R1)
    assert body["schema"] == "hetero.plan"
    keys = {"fits", "ledger", "prefill_tps", "decode_tps", "placement", "advice", "inputs"}
    assert keys <= set(body)
    for rate in (body["prefill_tps"], body["decode_tps"]):
        assert {"low", "likely", "high", "bound"} <= set(rate)
        assert 0 < rate["low"] < rate["likely"] < rate["high"]
    assert all(set(line) == {"device", "part", "bytes", "source"} for line in body["ledger"])
    assert {line["source"] for line in body["ledger"]} <= {"measured", "file", "assumed"}
    assert body["total_bytes"] == sum(line["bytes"] for line in body["ledger"])
    assert body["inputs"]["machine"]["bandwidth"] == "400GB/s"
    assert body["placement"]["dense"] == "cuda"


def test_every_term_is_explained_with_the_origin_of_its_inputs(run: Run) -> None:
    _, out, _ = run(*R1, "--explain")
    text = " ".join(out.split())
    assert "experts on cpu" in text
    assert "[assumed: expert-sized random reads, 36 threads]" in text
    body = run.json(*R1)
    for term in body["prefill_tps"]["terms"] + body["decode_tps"]["terms"]:
        assert "[" in term["formula"]


def test_what_does_not_fit_ends_with_3_and_the_smallest_change(run: Run) -> None:
    code, out, _ = run("plan", "kimi-k2.6", "--ram", "64G", "--vram", "0")
    assert code == 3
    assert "does not fit" in out
    assert "to fit" in out
    assert "% from the disk" in out
    code, out, _ = run("plan", "kimi-k2.6", "--ram", "64G", "--vram", "0", "--json")
    body = json.loads(out)
    assert code == 3
    assert body["fits"] is False
    assert body["advice"]["fit"]
    # All experts count for memory, the active ones for speed.
    assert sum(line["bytes"] for line in body["ledger"]) > 500 * 10**9
    assert body["parameters"]["active"] < 40e9


def test_a_dense_model_says_so_and_names_a_mixture_of_equal_memory(run: Run) -> None:
    code, out, _ = run("plan", "llama-3.3-70b", *XEON, "--experts", "q4", "--dense", "q4")
    text = " ".join(out.split())
    assert code == 0
    assert "every parameter is read for every token" in text
    assert any(card.title in text for card in cards().values() if card.title != "Llama-3.3-70B")


@pytest.mark.parametrize("columns", [40, 80])
def test_it_fits_the_terminal(columns: int, env: dict[str, str]) -> None:
    with terminal(*R1, env=env, columns=columns) as screen:
        assert screen.wait() == 0
    assert max(len(line) for line in screen.text.splitlines()) <= columns


def test_without_colour_there_are_no_escapes(env: dict[str, str]) -> None:
    with terminal(*R1, env=env | {"NO_COLOR": "1"}) as screen:
        assert screen.wait() == 0
    assert "\x1b[3" not in screen.raw


def test_a_terminal_without_utf8_gets_other_bars(env: dict[str, str]) -> None:
    done = hetero(*R1, env=env | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert b"####" in done.stdout
    assert b"?" not in done.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("--ram", "lots"),
        ("--ram", "-5G"),
        ("--bandwidth", "0GB/s"),
        ("--bandwidth", "400"),
        ("--vram", "24X"),
        ("--cores", "0"),
        ("--cores", "-3"),
        ("--isa", "sse9"),
        ("--channels", "8"),
        ("--bandwidth", "1GB/s", "--ram-speed", "4800", "--channels", "8"),
        ("--context", "-1"),
        ("--context", "0"),
        ("--experts", "q99"),
        ("--dense", "gold"),
        ("--kv-dtype", "q3"),
        ("--device", "tpu"),
        ("--target-tps", "0"),
        ("--sweep", "context"),
        ("--sweep", "context=9..1"),
        ("--sweep", "colour=1..2"),
        ("--explain", "--sweep", "context=4k..8k"),
        ("--agents", "0"),
        ("--hit-rate", "1.5"),
        ("--reserve", "x"),
        ("--machine", "/absent"),
        ("--trace", "/absent"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(args: tuple[str, ...], run: Run) -> None:
    code, out, err = run("plan", "qwen3-30b-a3b", *args)
    assert code == 2
    assert out == ""
    assert err.count("error:") == 1
    assert len(err.splitlines()) <= 2


def test_a_machine_file_of_a_newer_schema_or_none_at_all_is_exit_2(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    for text in (json.dumps(to_json(BLANK) | {"version": 99}), "{}", "[", "[1]", "null"):
        path.write_text(text)
        code, out, err = run("plan", "qwen3-30b-a3b", "--machine", path)
        assert (code, out) == (2, "")
        assert str(path) in err


def test_a_config_with_missing_keys_is_exit_4(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    raw = {k: v for k, v in cards()["qwen3-30b-a3b"].config.items() if k != "hidden_size"}
    path.write_text(json.dumps(raw))
    code, out, err = run("plan", path)
    assert (code, out) == (4, "")
    assert "hidden_size" in err


def test_a_gpu_that_is_not_there_is_exit_3(run: Run, machine: Path) -> None:
    code, _, err = run("plan", "qwen3-30b-a3b", "--machine", machine, "--device", "cuda")
    assert code == 3
    assert "--device cuda" in err


def test_a_sweep_draws_a_curve(run: Run, machine: Path) -> None:
    code, out, _ = run("plan", "qwen3-30b-a3b", "--machine", machine, "--sweep", "context=4k..128k")
    rows = out.splitlines()[2:]
    assert code == 0
    assert len(rows) == 6
    bars = [row.count("█") for row in rows]
    assert bars == sorted(bars, reverse=True)
    body = run.json("plan", "qwen3-30b-a3b", "--machine", machine, "--sweep", "bandwidth=100GB/s..800GB/s")
    assert [p["decode_tps"] for p in body["points"]] == sorted(p["decode_tps"] for p in body["points"])


def test_a_target_names_one_smallest_change_first(run: Run, machine: Path) -> None:
    args = ("plan", "qwen3-235b-a22b", "--machine", machine, "--experts", "q8", "--dense", "q8")
    now = run.json(*args)["decode_tps"]["likely"]
    body = run.json(*args, "--target-tps", f"{1.2 * now:.2f}")
    assert not body["reached"]
    assert body["changes"][0]["decode_tps"] >= 1.2 * now * 0.99
    assert run.json(*args, "--target-tps", f"{0.5 * now:.2f}")["reached"]
    code, out, _ = run(*args, "--target-tps", "1000000")
    assert code == 3
    assert "no single change" in out


def test_agents_come_down_to_one_number(run: Run, tmp_path: Path) -> None:
    args = (*R1, "--agents", "16", "--context", "148000", "--hit-rate", "0.95")
    body = run.json(*args)
    assert body["kv_bytes_per_token"] == 2 * 61 * 576
    assert body["leverage"] == pytest.approx(20)
    code, out, _ = run(*args)
    assert code == 0
    assert f"{body['nodes_per_gpu_node']:.2g} CPU KV nodes per GPU node" in out
    trace = tmp_path / "t.jsonl"
    line = {"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
    trace.write_text(f"{json.dumps(line)}\n" * 10)
    assert run.json(*R1, "--trace", trace)["hit_rate"] >= 0.88


def test_every_command_makes_the_same_plan(run: Run, tmp_path: Path) -> None:
    path = tiny_gguf("deepseek2", tmp_path / "x.gguf", "Q4_0")
    plans = [run.json("plan", path), run.json("chat", path, "--dry-run")]
    for body in plans:
        # Memory that is free differs from moment to moment.
        del body["memory_bytes"], body["placement"]["hot_experts"]
    assert plans[0] == plans[1]


def test_latent_kv_is_counted_to_the_byte(run: Run, tmp_path: Path) -> None:
    path = tiny_gguf("deepseek2", tmp_path / "x.gguf", max_position_embeddings=200_000)
    sizes = {}
    for context in (1024, 131072):
        body = run.json("plan", path, "--context", context, "--kv-dtype", "bf16")
        sizes[context] = next(line["bytes"] for line in body["ledger"] if line["part"] == "kv cache")
    assert sizes[131072] == 128 * sizes[1024]
    from hetero.models.describe import describe

    assert sizes[1024] == 1024 * 2 * describe(str(path)).kv_elements_per_token


@pytest.mark.parametrize(
    ("args", "heavy"),
    [
        # Half a second is all that these may take, and what they import would use it up.
        (R1, ("torch", "numpy", "jinja2", "tokenizers", "http.client")),
        (("probe", "--quick"), ("torch", "numpy", "jinja2", "tokenizers", "http.client")),
        (("plan",), ("torch",)),
    ],
)
def test_planning_imports_nothing_heavy(args: tuple[str, ...], heavy: tuple[str, ...], env: dict[str, str]) -> None:
    code = "import sys\nfrom hetero.cli.main import main\nmain(sys.argv[1:])\nprint(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, env=env, capture_output=True, timeout=60, check=True, text=True)
    assert not set(heavy) & set(done.stderr.splitlines()[-1].split())


def measured(run: Run) -> list[history.Run]:
    return history.runs()


def test_a_benchmark_records_what_was_predicted_and_measured(run: Run, model: Path) -> None:
    assert run("bench", model, "--prefill", "8", "--decode", "4", "--repeat", "1")[0] == 0
    (made,) = measured(run)
    assert made.command == "bench"
    assert made.measured_decode is not None
    assert made.predicted_decode is not None
    assert made.measured_bytes is not None
    assert made.predicted_bytes is not None
    path = next(Path(os.environ["XDG_STATE_HOME"]).rglob("predictions.jsonl"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    code, out, _ = run("plan", "--history")
    assert code == 0
    assert made.model in out
    assert "%" in out
    (shown,) = run.json("plan", "--history")["runs"]
    assert shown["measured_decode"] == made.measured_decode


def test_a_private_chat_records_nothing(run: Run, model: Path) -> None:
    assert run("chat", model, "--private", "--max-tokens", "2", text="hello")[0] == 0
    assert measured(run) == []
    assert run("chat", model, "--max-tokens", "2", text="hello")[0] == 0
    assert [r.command for r in measured(run)] == ["chat"]


def test_history_calibrates_the_next_plan_of_this_machine_only(run: Run, model: Path, machine: Path) -> None:
    plain: dict[str, Any] = run.json("plan", model)
    from hetero.cli.planned import Said, machine_of

    here = machine_of(Said(), "auto")
    made = history.Run(0.0, "bench", "x", history.machine_key(here), "cpu", 2, 512)
    figures = {"predicted_prefill": 100.0, "measured_prefill": 50.0, "predicted_decode": 10.0, "measured_decode": 20.0}
    history.record(history.Run(*(getattr(made, n) for n in made.__slots__[:7]), **figures))  # type: ignore[arg-type]
    after = run.json("plan", model)
    assert after["decode_tps"]["likely"] == pytest.approx(2 * plain["decode_tps"]["likely"])
    assert after["prefill_tps"]["likely"] == pytest.approx(0.5 * plain["prefill_tps"]["likely"])
    assert any("calibrated by earlier runs" in note for note in after["notes"])
    off = run.json("plan", model, "--no-calibration")
    assert off["decode_tps"]["likely"] == pytest.approx(plain["decode_tps"]["likely"])
    other = run.json("plan", model, "--machine", machine)
    assert other["inputs"]["request"]["calibration"] == [1.0, 1.0]


def test_a_damaged_history_is_passed_over(run: Run, model: Path) -> None:
    run("bench", model, "--prefill", "0", "--decode", "2", "--repeat", "1")
    path = next(Path(os.environ["XDG_STATE_HOME"]).rglob("predictions.jsonl"))
    good = path.read_text()
    path.write_text('{"version": 1}\nnot json\n[]\n' + good + '{"version": 9}\n' + good.replace('"bench"', "NaN"))
    assert len(measured(run)) >= 1
    assert run("plan", "--history")[0] == 0


def test_no_history_yet_is_said(run: Run) -> None:
    code, out, _ = run("plan", "--history")
    assert code == 0
    assert "no runs recorded yet" in out


def test_a_sweep_of_which_no_point_fits_is_exit_3(run: Run, machine: Path) -> None:
    code, out, _ = run("plan", "deepseek-r1", "--machine", machine, "--ram", "4G", "--sweep", "context=4k..8k")
    assert code == 3
    assert "does not fit" in out
    assert run("plan", "deepseek-r1", "--machine", machine, "--ram", "4G", "--sweep", "ram=4G..4T")[0] == 0


def test_the_time_of_a_token_is_written_without_exponents(run: Run) -> None:
    machine = ("--ram", "1024G", "--vram", "0", "--bandwidth", "20GB/s", "--cores", "8")
    _, out, _ = run("plan", "deepseek-r1", "--experts", "q4", "--context", "4k", *machine)
    (line,) = [line for line in out.splitlines() if line.startswith("a token")]
    assert "e+" not in line
    assert " ms = " in line
