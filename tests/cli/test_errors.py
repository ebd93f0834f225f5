from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from hetero.cli import errors, output
from hetero.cli.errors import describe
from hetero.machine.types import HardwareError, HeteroError, ModelError, TierError, UsageError


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def bug() -> ZeroDivisionError:
    try:
        raise ZeroDivisionError("seven by zero")
    except ZeroDivisionError as problem:
        return problem


@pytest.mark.parametrize(("kind", "code"), [(UsageError, 2), (HardwareError, 3), (ModelError, 4), (TierError, 5)])
def test_every_kind_of_error_has_its_code_line_and_hint(
    kind: type[HeteroError], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert errors.report(kind("it went\nwrong", "try that"), []) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "error: it went wrong\nhint: try that\n"


def test_with_json_an_error_is_one_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.report(ModelError("bad \x1b[31mfile", "another"), ["chat", "--json"]) == 4
    shown = capsys.readouterr()
    body = json.loads(shown.out)
    assert body["error"] == {"code": 4, "message": "bad \ufffd[31mfile", "hint": "another"}
    assert (body["schema"], body["version"]) == ("hetero.error", 1)
    assert shown.err == ""


def test_other_endings_have_their_codes() -> None:
    assert describe(KeyboardInterrupt()).code == 130
    assert describe(MemoryError()).code == 3
    assert describe(ImportError("libtorch_cpu.so: failed to map segment from shared object")).code == 3
    assert describe(ImportError("No module named 'x'")).code == 1
    full = describe(OSError(28, "No space left on device", "/data/x"))
    assert (full.code, full.message) == (5, "/data/x: No space left on device")


def test_a_bug_is_one_line_and_leaves_its_traceback_in_a_private_file() -> None:
    failure = describe(bug())
    assert failure.code == 1
    assert failure.message == "bug: ZeroDivisionError: seven by zero"
    path = Path(failure.hint.removeprefix("please report this with "))
    assert "in bug" in path.read_text()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700


def test_private_writes_no_traceback(tmp_path: Path) -> None:
    assert describe(bug(), ["chat", "--private"]).hint == "run it again with -v to see where it happened"
    assert not (tmp_path / "state").exists()


def test_verbose_shows_the_traceback_of_a_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output.start_logging()
    output.be_verbose()
    try:
        describe(bug())
    finally:
        output.start_logging()
    assert "in bug" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_a_state_folder_that_cannot_be_made_does_not_hide_the_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/none")
    assert describe(bug()).message == "bug: ZeroDivisionError: seven by zero"
