"""From the engine's events to an answer, with an engine that says what the test tells it to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hetero.cli.answer import Answer, Kind, check_room, generate
from hetero.cli.repl import Interrupt
from hetero.engine import Done, Engine, Event, Prefill, Sampling, Token
from hetero.machine.types import UsageError
from hetero.models.text import Prompt
from hetero.models.text.answers import DIALECTS


class Script:
    """Plays events and notes how far it came and whether it was closed."""

    def __init__(self, *events: Event) -> None:
        self.events, self.played, self.closed = events, 0, False
        self.text = SimpleNamespace(dialect=DIALECTS["plain"])

    def generate(self, ids: list[int], sampling: Sampling) -> Iterator[Event]:
        try:
            for event in self.events:
                self.played += 1
                yield event
        finally:
            self.closed = True


class Shown:
    def __init__(self) -> None:
        self.pieces: list[tuple[Kind, str]] = []
        self.read: list[tuple[int, int]] = []

    def reading(self, done: int, total: int) -> None:
        self.read.append((done, total))

    def text(self, kind: Kind, piece: str) -> None:
        self.pieces.append((kind, piece))


def play(script: Script, shown: Shown, *, tail: str = "", stop_after: int = 1000) -> Answer:
    prompt = Prompt([1, 2, 3], "question" + tail)
    engine: Any = script
    return generate(cast(Engine, engine), prompt, Sampling(), shown, lambda: len(shown.pieces) >= stop_after)


def done(reason: Any = "stop", **more: Any) -> Done:
    return Done(reason, prompt_tokens=3, cached_tokens=2, new_tokens=2, prefill_seconds=1, decode_seconds=1, **more)


def test_an_answer_keeps_text_tokens_and_counts() -> None:
    shown = Shown()
    script = Script(Prefill(3, 3, 2), Token(7, "\n two"), Token(8, " words"), done(tail="!"))
    answer = play(script, shown)
    assert (answer.answer, answer.raw, answer.ids, answer.reason) == ("two words!", "\n two words!", [7, 8], "stop")
    assert (answer.prompt_tokens, answer.cached_tokens) == (3, 2)
    assert "".join(piece for _, piece in shown.pieces) == "two words!"
    assert shown.read == [(3, 3)]


def test_stopping_takes_no_further_token_and_keeps_what_came() -> None:
    script = Script(*(Token(i, f"w{i} ") for i in range(10)), done())
    answer = play(script, Shown(), stop_after=3)
    assert (answer.answer, answer.ids, answer.reason) == ("w0 w1 w2 ", [0, 1, 2], "cancelled")
    assert (script.played, script.closed) == (3, True)


@pytest.mark.parametrize("tail", ["", "<think>\n"])
def test_thinking_is_kept_apart_also_when_the_template_opened_it(tail: str) -> None:
    shown = Shown()
    opening = () if tail else (Token(1, "<think>"),)
    script = Script(*opening, Token(2, "hm"), Token(3, "</think>"), Token(4, "\n\nyes"), done())
    answer = play(script, shown, tail=tail)
    assert (answer.thinking, answer.answer) == ("hm", "yes")
    assert shown.pieces == [("thinking", "hm"), ("answer", "yes")]


def test_rates_leave_out_cached_tokens_and_the_first_token() -> None:
    answer = Answer(prompt_tokens=110, cached_tokens=10, prefill_seconds=2.0, ids=[1, 2, 3], decode_seconds=4.0)
    assert (answer.prefill_tps, answer.decode_tps) == (50.0, 0.5)
    assert Answer(prompt_tokens=5, cached_tokens=5, prefill_seconds=1.0).prefill_tps is None


def test_a_prompt_must_leave_room_for_a_token() -> None:
    check_room(9, 10, "")
    with pytest.raises(UsageError, match="10 tokens, but the context holds 10"):
        check_room(10, 10, "")


def test_ctrl_c_is_a_flag_first_and_an_interrupt_the_second_time() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        assert not interrupt.pressed
        signal.raise_signal(signal.SIGINT)
        assert interrupt.pressed
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
