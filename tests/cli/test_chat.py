"""`hetero chat` without a conversation: prompts from flags and pipes, JSON, errors. Real models, the real engine."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
from pathlib import Path

import pytest

from hetero.machine.types import Plan
from hetero.native import Kernels
from tests.cli.harness import COMMAND, Run, hetero, terminal
from tests.tiny import random_weights, tiny_config, write_gguf


def test_json_has_the_answer_and_its_accounts(run: Run, model: Path) -> None:
    body = run.json("chat", model, "-p", "hello", "-n", "5", "--threads", "1", "--context", "64")
    assert (body["schema"], body["version"]) == ("hetero.chat", 1)
    assert body["answer"]
    assert body["thinking"] == ""
    assert body["finish_reason"] == "length"
    assert body["usage"] == {
        "prompt_tokens": body["usage"]["prompt_tokens"],
        "cached_tokens": 0,
        "completion_tokens": 5,
    }
    assert 5 < body["usage"]["prompt_tokens"] < 40
    assert body["decode_tps"] > 0
    assert body["prefill_tps"] > 0
    assert (body["threads"], body["device"], body["isa_tier"]) == (1, "cpu", body["isa_tier"])
    assert body["isa_tier"] in ("generic", "avx2", "avx512", "amx")


def test_experts_that_are_not_on_their_memory_nodes_are_told(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "nodes", property(lambda plan: (0, 1)))
    monkeypatch.setattr(Kernels, "place", lambda kernels, bank, nodes: 0)
    body = run.json("chat", model, "-p", "hello", "-n", "1")
    assert [note[:11] for note in body["notes"]] == ["only 0% of "]
    code, _, err = run("chat", model, "-p", "hello", "-n", "1")
    assert (code, body["notes"][0] in err) == (0, True)


def test_stdout_has_the_answer_alone_and_greedy_is_reproducible(run: Run, model: Path) -> None:
    answer = run.json("chat", model, "-p", "hello", "-n", "8")["answer"]
    code, out, err = run("chat", model, "-p", "hello", "-n", "8", "--temp", "0")
    assert (code, err) == (0, "")
    assert out == answer + "\n" * (not answer.endswith("\n"))


def test_standard_input_is_added_to_the_prompt(run: Run, model: Path) -> None:
    given = run.json("chat", model, "-p", "what is this\nhello", "-n", "4")
    piped = run.json("chat", model, "-p", "what is this", "-n", "4", text="hello\n")
    alone = run.json("chat", model, "-n", "4", text="what is this\nhello\n")
    assert given["answer"] == piped["answer"] == alone["answer"]
    assert given["usage"] == piped["usage"] == alone["usage"]


def test_flags_reach_the_model(run: Run, model: Path) -> None:
    plain = run.json("chat", model, "-p", "hello", "-n", "6")
    for flags in (["--system", "you are a pirate"], ["--no-template"], ["--temp", "3", "--seed", "1"]):
        assert run.json("chat", model, "-p", "hello", "-n", "6", *flags)["answer"] != plain["answer"]
    hot = ["chat", model, "-p", "hello", "-n", "6", "--temp", "3"]
    assert run.json(*hot, "--top-k", "1")["answer"] == plain["answer"]
    assert run.json(*hot, "--min-p", "1")["answer"] == plain["answer"]
    assert run.json(*hot, "--top-p", "0")["answer"] == plain["answer"]
    assert run.json(*hot, "--seed", "7")["answer"] == run.json(*hot, "--seed", "7")["answer"]


def test_without_model_the_demo_answers_and_is_named(run: Run) -> None:
    code, out, err = run("chat", text="What is a mixture of experts?")
    assert code == 0
    assert len(out.split()) > 3
    assert "bundled demo model" in err


def test_a_prompt_over_the_context_is_refused_with_the_numbers(run: Run, model: Path) -> None:
    code, out, err = run("chat", model, "-p", "word " * 60, "--context", "40")
    assert (code, out) == (2, "")
    assert "tokens, but the context holds 40" in err


def test_an_answer_cut_by_the_context_says_so(run: Run, model: Path) -> None:
    code, out, err = run("chat", model, "-p", "hello", "--context", "40")
    assert code == 0
    assert out
    assert err == "cut off: the context of 40 tokens is full\n"


def test_dry_run_shows_where_everything_goes_and_loads_nothing(run: Run, model: Path) -> None:
    code, out, _ = run("chat", model, "--dry-run", "--context", "100")
    assert code == 0
    assert all(word in out for word in ("experts", "kv cache", "100 tokens", "fits", "total"))
    body = run.json("chat", model, "--dry-run", "--context", "100")
    assert body["schema"] == "hetero.plan"
    assert body["context"] == 100
    assert body["total_bytes"] == sum(line["bytes"] for line in body["ledger"])


@pytest.mark.parametrize("command", ["chat", "bench", "convert"])
@pytest.mark.parametrize(
    ("name", "content", "code"),
    [("none.gguf", None, 2), ("empty.gguf", b"", 4), ("page.gguf", b"<html></html>", 4), ("cut.gguf", b"GGUF\x03", 4)],
)
def test_bad_files_end_in_one_line_and_their_code(
    command: str, name: str, content: bytes | None, code: int, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    flags = ["-p", "hi"] if command == "chat" else []
    found, out, err = run(command, path, *flags)
    assert (found, out) == (code, "")
    assert [line.partition(" ")[0] for line in err.splitlines()] == ["error:", "hint:"]
    assert name in err
    found, out, err = run(command, path, *flags, "--json")
    assert (found, err) == (code, "")
    assert json.loads(out)["error"]["code"] == code


@pytest.mark.parametrize("command", ["chat", "bench", "convert"])
def test_a_tier_that_does_not_exist_is_a_usage_error_with_a_hint(
    command: str, run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETERO_ISA", "neon9")
    args = [model, tmp_path / "out"] if command == "convert" else [model]
    code, out, err = run(command, *args, text="hi")
    assert (code, out) == (2, "")
    assert "neon9" in err
    assert "\nhint: " in err


def test_what_cannot_fit_is_exit_3_and_dry_run_still_shows_the_plan(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hetero.machine import probe as room

    real = room.probe
    monkeypatch.setattr(room, "probe", lambda **o: dataclasses.replace(real(**o), memory_bytes=1 << 20))
    code, out, err = run("chat", model, "-p", "hi")
    assert (code, out) == (3, "")
    assert err.startswith("error: ")
    code, out, _ = run("chat", model, "--dry-run")
    assert code == 3
    assert "does not fit" in out


def test_a_model_error_does_not_wait_for_torch(env: dict[str, str], tmp_path: Path) -> None:
    code = "import sys; from hetero.cli.main import main; "
    code += "print(main(['chat', 'none.gguf', '-p', 'x']), 'torch' in sys.modules)"
    done = subprocess.run([COMMAND[0], "-c", code], env=env, capture_output=True, timeout=60, check=False, input=b"")
    assert done.stdout == b"2 False\n"


def test_a_reader_that_leaves_mid_answer_is_no_failure(env: dict[str, str], model: Path) -> None:
    script = f'{shlex.join(COMMAND)} chat {model} -p hi --private | head -c1; echo " ${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=60, check=False, input=b"")
    assert done.stdout.endswith(b" 0\n")
    assert done.stderr == b""


@pytest.mark.parametrize("change", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_an_answer_on_a_plain_terminal_has_no_escape_codes(
    change: dict[str, str], env: dict[str, str], model: Path
) -> None:
    with terminal("chat", str(model), "-p", "hi", "-n", "5", env=env | change) as screen:
        screen.send("\x04")
        assert screen.wait() == 0
        assert "\x1b" not in screen.raw


def test_ctrl_c_ends_a_single_answer_with_130(env: dict[str, str], model: Path) -> None:
    with terminal("chat", str(model), "-p", "hi", env=env) as screen:
        screen.expect(r"\S{3}")
        screen.send("\x03")
        assert screen.wait() == 130
        assert "Traceback" not in screen.text


def test_no_trace_is_left_by_a_private_answer(env: dict[str, str], model: Path, tmp_path: Path) -> None:
    assert hetero("chat", str(model), "-p", "hi", "-n", "3", "--private", env=env).returncode == 0
    assert not (tmp_path / "state").exists()


def test_bad_content_is_reported_before_torch_is_imported(tmp_path: Path, env: dict[str, str]) -> None:
    config = tiny_config("qwen3moe")
    weights = random_weights("qwen3moe", config)
    weights["model.layers.1.mlp.experts.up.weight"][:] = float("nan")
    path = write_gguf(tmp_path / "nan.gguf", "qwen3moe", config, weights, type="F16")
    program = (
        "import sys; from hetero.cli.main import main; code = main(sys.argv[1:]); print('torch' in sys.modules, code)"
    )
    done = subprocess.run(
        [COMMAND[0], "-c", program, "chat", str(path), "-p", "hi"], env=env, input=b"", capture_output=True, check=False
    )
    assert done.stdout == b"False 4\n"
    assert b"nan.gguf" in done.stderr


def test_a_wrong_path_is_told_before_the_prompt_is_asked_for(run: Run, tmp_path: Path) -> None:
    code, _, err = run("chat", tmp_path / "nosuch.gguf")
    assert code == 2
    assert "nosuch.gguf: no such file" in err
