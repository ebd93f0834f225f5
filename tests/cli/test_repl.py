"""The conversation in a real terminal, with a real model that talks until it is stopped."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.harness import COMMAND, Terminal, environment, terminal

PROMPT = r">>> ?$"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the shared conversation keeps its history."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def shared(state: Path, model: Path) -> Iterator[Terminal]:
    """One process for many tests: a conversation of short answers, at its first prompt."""
    with terminal("chat", str(model), "-n", "4", env=environment(state)) as screen:
        screen.expect(PROMPT)
        yield screen


@pytest.fixture
def chat(shared: Terminal) -> Terminal:
    """The shared conversation, forgotten."""
    shared.send("/clear\r")
    shared.expect("is forgotten\n")
    shared.expect(PROMPT)
    return shared


def context_used(shown: str) -> int:
    return int(re.findall(r"context ([\d,]+)/", shown)[-1].replace(",", ""))


def test_it_introduces_itself_answers_and_leaves_at_ctrl_d(env: dict[str, str], model: Path) -> None:
    with terminal("chat", str(model), "-n", "4", env=env) as chat:
        opening = chat.expect(PROMPT)
        assert re.search(r"tiny qwen3moe · .* · \d threads? · context [\d,]+\n", opening)
        assert "/help lists commands, Ctrl-D leaves" in opening
        chat.send("/regen\r")
        assert "there is no message to answer again" in chat.expect(PROMPT)
        chat.send("/stats\r")
        assert "there is no answer yet" in chat.expect(PROMPT)
        chat.send("hello\r")
        assert re.search(r"4 tokens · [\d,.]+ tok/s · context \d+/", chat.expect(PROMPT))
        chat.send("\x04")
        assert chat.wait() == 0


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(env: dict[str, str], model: Path) -> None:
    with terminal("chat", str(model), "--context", "20000", env=env) as chat:
        chat.expect(PROMPT)
        chat.send("hello\r")
        chat.expect(r"hello\n[\s\S]{600}")
        chat.send("\x03")
        first = chat.expect(PROMPT)
        assert "stopped · " in first
        chat.send("more\r")
        chat.expect(r"more\n[\s\S]{10}")
        chat.send("\x03")
        second = chat.expect(PROMPT)
        # The second turn has read the cut answer of the first, in whole pages of the cache.
        cached = re.search(r"([\d,]+) cached", second)
        assert cached is not None
        assert int(cached[1].replace(",", "")) == (context_used(first) - 1) // 64 * 64 > 0
        assert context_used(second) > context_used(first)
        chat.send("/exit\r")
        assert chat.wait() == 0


def test_ctrl_c_at_the_prompt_clears_the_line_and_hints(chat: Terminal) -> None:
    chat.send("half a mess\x03")
    chat.expect("Ctrl-D to leave\n")
    chat.expect(PROMPT)
    chat.send("hello\r")
    assert "4 tokens" in chat.expect(PROMPT)


def test_an_unknown_command_is_not_sent_to_the_model(chat: Terminal) -> None:
    chat.send("/hlep\r")
    shown = chat.expect(PROMPT)
    assert "error: no command /hlep" in shown
    assert "did you mean /help?" in shown
    assert "tokens" not in shown


def test_a_path_is_not_a_command(chat: Terminal) -> None:
    chat.send("/etc/hosts is what?\r")
    assert "4 tokens" in chat.expect(PROMPT)


def test_twenty_pasted_lines_are_one_message(chat: Terminal, state: Path) -> None:
    lines = [f"line {i}" for i in range(20)]
    chat.paste("\n".join(lines))
    chat.expect("line 19")
    chat.send("\r")
    shown = chat.expect(PROMPT)
    assert shown.count(" tokens · ") == 1
    history = (state / "hetero/history").read_text()
    assert history.endswith("\n" + "".join(f"+{line}\n" for line in lines))


def test_quotes_and_ctrl_j_make_lines_of_one_message(chat: Terminal, state: Path) -> None:
    chat.send('"""one\rtwo"""\r')
    assert "4 tokens" in chat.expect(PROMPT)
    chat.send("three\nfour\r")
    assert "4 tokens" in chat.expect(PROMPT)
    history = (state / "hetero/history").read_text()
    assert '+"""one\n+two"""\n' in history
    assert "+three\n+four\n" in history


def test_regen_answers_the_same_message_again(chat: Terminal) -> None:
    chat.send("hello\r")
    first = chat.expect(PROMPT)
    chat.send("/regen\r")
    again = chat.expect(PROMPT)
    assert context_used(first) == context_used(again)
    assert "at temperature 0" in again


def test_clear_and_system_start_anew(chat: Terminal) -> None:
    chat.send("hello\r")
    first = context_used(chat.expect(PROMPT))
    chat.send("hello\r")
    assert context_used(chat.expect(PROMPT)) > first
    chat.send("/clear\r")
    chat.expect(PROMPT)
    chat.send("hello\r")
    assert context_used(chat.expect(PROMPT)) == first
    chat.send("/system be kind\r")
    chat.expect(PROMPT)
    chat.send("/system\r")
    assert "be kind\n" in chat.expect(PROMPT)
    chat.send("hello\r")
    assert context_used(chat.expect(PROMPT)) > first


def test_stats_and_help_are_tables(chat: Terminal) -> None:
    chat.send("hello\r")
    chat.expect(PROMPT)
    chat.send("/stats\r")
    shown = chat.expect(PROMPT)
    assert all(word in shown for word in ("prompt", "prefill", "decode", "ended by length"))
    chat.send("/help\r")
    shown = chat.expect(PROMPT)
    assert all(name in shown for name in ("/help", "/clear", "/regen", "/system", "/stats", "/exit"))


def test_a_message_over_the_context_is_refused_and_the_chat_goes_on(env: dict[str, str], model: Path) -> None:
    with terminal("chat", str(model), "--context", "60", "-n", "3", env=env) as chat:
        chat.expect(PROMPT)
        chat.send("word " * 60 + "\r")
        shown = " ".join(chat.expect(PROMPT).split())
        assert "tokens, but the context holds 60" in shown
        assert "/clear starts anew" in shown
        chat.send("hello\r")
        assert "3 tokens" in chat.expect(PROMPT)


def test_history_is_private_and_the_up_arrow_brings_it_back(chat: Terminal, state: Path) -> None:
    chat.send("hello\r")
    first = context_used(chat.expect(PROMPT))
    chat.send("/clear\r")
    chat.expect(PROMPT)
    chat.send("\x1b[A\x1b[A\r")
    assert context_used(chat.expect(PROMPT)) == first
    folder = state / "hetero"
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(folder / "history").st_mode) == 0o600


def test_private_leaves_nothing(env: dict[str, str], model: Path) -> None:
    with terminal("chat", str(model), "-n", "2", "--private", env=env) as chat:
        chat.expect(PROMPT)
        chat.send("hello\r")
        chat.expect(PROMPT)
        chat.send("\x04")
        assert chat.wait() == 0
    assert not Path(env["XDG_STATE_HOME"]).exists()


def test_a_dumb_terminal_gets_plain_lines(env: dict[str, str], model: Path) -> None:
    with terminal("chat", str(model), "-n", "4", env=env | {"TERM": "dumb"}) as chat:
        chat.expect(PROMPT)
        chat.send("hello\r")
        assert "4 tokens" in chat.expect(PROMPT)
        chat.send("\x04")
        assert chat.wait() == 0
        assert "\x1b" not in chat.raw


def test_without_colours_there_is_no_colour(env: dict[str, str], model: Path) -> None:
    with terminal("chat", str(model), "-n", "4", env=env | {"NO_COLOR": "1"}) as chat:
        chat.expect(PROMPT)
        chat.send("hello\r")
        chat.expect(PROMPT)
        # Moving the cursor is the line editor's work; colours and attributes are `ESC [ ... m`.
        codes = set(re.findall(r"\x1b\[([\d;]*)m", chat.raw))
        assert codes <= {"", "0"}


def test_without_a_terminal_on_stdout_a_conversation_is_refused(env: dict[str, str], model: Path) -> None:
    primary, secondary = os.openpty()
    try:
        done = subprocess.run(
            [*COMMAND, "chat", str(model)], env=env, stdin=secondary, capture_output=True, timeout=60, check=False
        )
    finally:
        os.close(primary)
        os.close(secondary)
    assert done.returncode == 2
    assert b"give the prompt with -p" in done.stderr
