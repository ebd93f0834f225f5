"""The command line itself: help, version, usage errors, pipes. No model is loaded here."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.harness import COMMAND, hetero, terminal

COMMANDS = ("chat", "convert", "inspect", "bench", "plan", "probe", "models")


def test_help_lists_every_command_and_so_does_no_command(env: dict[str, str]) -> None:
    for args in (["--help"], []):
        done = hetero(*args, env=env)
        assert done.returncode == 0
        assert done.stderr == b""
        assert all(name in done.stdout.decode() for name in COMMANDS)


def test_help_shows_every_description_to_its_end(env: dict[str, str]) -> None:
    done = hetero("--help", env=env | {"COLUMNS": "50"})
    assert "..." not in done.stdout.decode().partition("Commands:")[2]
    assert "without downloading or loading it." in " ".join(done.stdout.decode().split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str, env: dict[str, str]) -> None:
    done = hetero(command, "--help", env=env)
    assert done.returncode == 0
    assert b"--json" in done.stdout


def test_version_names_the_kernels_built(env: dict[str, str]) -> None:
    done = hetero("--version", env=env)
    assert done.returncode == 0
    assert done.stdout.decode().startswith("hetero ")
    assert "generic" in done.stdout.decode()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["chta"], "did you mean `hetero chat`?"),
        (["chat", "--tmp", "1"], "did you mean --temp?"),
        (["chat", "--bogus"], "no such option: --bogus hint: `hetero chat --help`"),
        (["chat", "-z"], "no such option: -z hint: `hetero chat --help`"),
        (["chat", "--temp", "hot"], "--temp"),
        (["chat", "--temp", "nan"], "--temp"),
        (["chat", "--temp", "inf"], "--temp"),
        (["chat", "--threads", "0"], "--threads"),
        (["chat", "--max-tokens", "0"], "--max-tokens"),
        (["chat", "a", "b"], "unexpected"),
        (["chat", "-p"], "requires an argument"),
        (["chat", "", "-p", "hi"], "MODEL is empty"),
        (["chat", "-p", "  "], "the prompt is empty"),
        (["chat"], "the prompt is empty"),
        (["convert"], "missing argument"),
        (["convert", ""], "SRC is empty"),
        (["convert", "x", "--experts", "q3"], "--experts"),
        (["bench", "--prefill", "0", "--decode", "0"], "both 0"),
        (["bench", "--context", "5"], "--context 5 is too small"),
        (["--log-file", "/nowhere/x", "probe"], "No such file or directory"),
    ],
)
def test_a_wrong_command_line_is_one_line_a_hint_and_code_2(args: list[str], words: str, env: dict[str, str]) -> None:
    done = hetero(*args, env=env)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 2
    assert done.stdout == b""
    assert [line.partition(" ")[0] for line in lines] == ["error:", "hint:"]
    assert words.lower() in " ".join(lines).lower()


def test_usage_errors_under_json_are_one_object(env: dict[str, str]) -> None:
    done = hetero("chat", "--tmp", "1", "--json", env=env)
    body = json.loads(done.stdout)
    assert done.returncode == body["error"]["code"] == 2
    assert "--tmp" in body["error"]["message"]
    assert done.stderr == b""


def test_input_that_is_not_text_is_refused(env: dict[str, str]) -> None:
    done = hetero("chat", env=env, text=b"ab\xff")
    assert done.returncode == 2
    assert b"byte 0xff at 2" in done.stderr


def test_a_reader_that_goes_away_is_no_failure(env: dict[str, str]) -> None:
    script = f"{shlex.join(COMMAND)} chat --help | head -c1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=60, check=False)
    assert done.stdout == b"U0\n"
    assert done.stderr == b""


def test_a_closed_stdout_is_no_failure(env: dict[str, str]) -> None:
    script = f"{shlex.join(COMMAND)} probe --quick --json | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=60, check=False)
    assert done.stdout == b"0\n"
    assert done.stderr == b""


@pytest.mark.parametrize("closed", ["2>&-", "<&-"])
def test_closed_streams_without_a_result_do_not_matter(closed: str, env: dict[str, str]) -> None:
    script = f"{shlex.join(COMMAND)} probe --quick {closed}"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["--help", "--version", "plan --help", "probe --quick", "probe --quick --json"])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_a_result_for_a_closed_stdout_is_a_silent_failure(command: str, closed: str, env: dict[str, str]) -> None:
    script = f"{shlex.join(COMMAND)} {command} {closed}"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (5, b"")


@pytest.mark.parametrize("args", ["inspect models/demo/hetero-demo.gguf", "chat -p hi -n 2", "bench --prefill 8"])
def test_a_closed_stdout_fails_the_commands_that_read_a_model(args: str, env: dict[str, str]) -> None:
    script = f"{shlex.join(COMMAND)} {args} >&-"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 5
    assert b"error" not in done.stderr
    assert b"Traceback" not in done.stderr


def test_an_error_keeps_its_code_where_stdout_is_closed(env: dict[str, str]) -> None:
    for args, code in (("inspect /absent", 2), ("inspect /absent --json", 2)):
        script = f"{shlex.join(COMMAND)} {args} >&-"
        done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=60, check=False)
        assert done.returncode == code
        assert b"no such file" in done.stderr


def test_a_character_that_the_locale_lacks_is_replaced(env: dict[str, str]) -> None:
    done = hetero("漢", env=env | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: no command ")


def test_no_command_imports_torch_to_explain_itself(env: dict[str, str]) -> None:
    code = "import sys; from hetero.cli.main import main; main(['--version']); main(['probe', '--quick']); "
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, timeout=60, check=False)
    assert done.stdout.decode().splitlines()[-1] == "False"


def test_probe_json_is_a_machine_that_can_be_read_back(env: dict[str, str]) -> None:
    from hetero.machine.serialize import from_json

    done = hetero("probe", "--quick", "--json", env=env)
    assert done.returncode == 0
    machine = from_json(json.loads(done.stdout))
    assert machine.cpus
    assert machine.memory_bytes > 0


def test_probe_shows_every_tier_with_its_reason(env: dict[str, str]) -> None:
    done = hetero("probe", "--quick", env=env)
    shown = done.stdout.decode()
    assert done.returncode == 0
    assert all(f"\n  {tier}" in shown for tier in ("generic", "avx2", "avx512", "amx"))
    assert all(word in shown for word in ("CPU", "cores", "memory", "GPU", "disk"))


def test_verbose_may_stand_before_and_after_the_command(env: dict[str, str], tmp_path: Path) -> None:
    for args in (["-v", "probe", "--quick"], ["probe", "--quick", "-v"]):
        assert hetero(*args, env=env).returncode == 0


def test_probe_fits_a_narrow_terminal(env: dict[str, str]) -> None:
    with terminal("probe", "--quick", env=env, columns=40) as screen:
        assert screen.wait() == 0
        assert "ISA tier" in screen.text
        assert all(len(line) <= 40 for line in screen.text.splitlines())


@pytest.mark.parametrize("change", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_colours_gets_no_escape_codes(change: dict[str, str], env: dict[str, str]) -> None:
    with terminal("probe", "--quick", env=env | change) as screen:
        assert screen.wait() == 0
        assert "\x1b" not in screen.raw
    with terminal("chta", env=env | change) as screen:
        assert screen.wait() == 2
        assert "\x1b" not in screen.raw


def test_a_log_file_on_a_full_disk_does_not_matter(env: dict[str, str], model: Path) -> None:
    done = hetero("chat", "--log-file", "/dev/full", str(model), "-p", "hi", "-n", "2", env=env)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("args", ["chat /absent -p hi --json > /dev/full", "chat /absent -p hi 2> /dev/full"])
def test_a_full_disk_behind_a_stream_keeps_the_exit_code(args: str, env: dict[str, str]) -> None:
    script = f"{shlex.join(COMMAND)} {args}"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr in (b"", b"error: /absent: no such file\nhint: check the path\n")


def test_a_result_that_a_full_disk_refuses_is_a_failure(env: dict[str, str]) -> None:
    script = f"{shlex.join(COMMAND)} probe --quick --json > /dev/full"
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 5
    assert done.stderr.startswith(b"error: No space left on device\nhint: ")
    assert done.stderr.count(b"\n") == 2


def test_an_interrupt_while_the_program_starts_leaves_no_traceback(env: dict[str, str]) -> None:
    # An import that raises KeyboardInterrupt stands for Ctrl-C at that moment.
    code = (
        "import builtins, sys; real = builtins.__import__\n"
        "def press(name, *rest):\n"
        "    if name == 'typer': raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = press\n"
        "from hetero.cli.main import main; sys.exit(main(['probe', '--quick']))"
    )
    done = subprocess.run([COMMAND[0], "-c", code], env=env, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
