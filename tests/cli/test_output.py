from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path

import pytest

from hetero.cli import output
from hetero.machine.types import UsageError


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_tty(monkeypatch: pytest.MonkeyPatch) -> Tty:
    """Make both streams one colour terminal of 40 columns (in the test itself: pytest sets them anew before it)."""
    screen = Tty()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return screen


def show_everything() -> None:
    output.note("a note")
    output.warning("a warning")
    output.error("an error", "a hint")
    output.success("a success")
    output.table([("a", "1"), ("b", "2")], headers=("name", "n"), right=(1,))
    output.write_thinking("hm")
    status = output.StatusLine()
    status.show("busy")
    status.clear()
    with output.progress("loading") as progress:
        progress(1, 10, "file")


def test_a_colour_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    tty = use_tty(monkeypatch)
    show_everything()
    assert "\x1b[31merror:\x1b[0m an error" in tty.getvalue()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_escape_codes_where_they_are_not_wanted(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tty = use_tty(monkeypatch)
    monkeypatch.setenv(name, value)
    show_everything()
    assert "an error" in tty.getvalue()
    assert "\x1b" not in tty.getvalue()


def test_no_escape_codes_in_pipes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    show_everything()
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert shown.out == "name  n\na     1\nb     2\nhm"


def test_long_lines_break_between_words_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    tty = use_tty(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    output.error("word " * 20, "hint " * 20)
    output.table([("key", "value " * 20)])
    assert all(len(line) <= 40 for line in tty.getvalue().splitlines())
    assert "wor\n" not in tty.getvalue()


def test_a_status_line_leaves_other_text_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tty = use_tty(monkeypatch)
    status = output.StatusLine()
    output.write("an answer")
    status.clear()
    assert tty.getvalue() == "an answer"


def test_json_results_carry_schema_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    output.json_result("hetero.x", {"text": "漢\n"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"schema": "hetero.x", "version": 1, "text": "漢\n"}
    assert out.count("\n") == 1


def test_the_log_file_is_private_and_gets_what_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    output.start_logging()
    output.log_to(path)
    output.log.info("quiet words")
    output.log.warning("loud words")
    output.start_logging()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert "INFO hetero: quiet words" in path.read_text()
    assert capsys.readouterr().err == "warning: loud words\n"


def test_a_log_file_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        output.log_to(tmp_path / "none" / "log")
