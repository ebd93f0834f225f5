"""One answer: from the engine's events to shown text, and what it cost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, cast

from hetero.cli import wording
from hetero.machine.types import UsageError

if TYPE_CHECKING:
    from hetero.engine import Engine, Event, Sampling
    from hetero.models.text import AnswerParser, Part, Prompt

Kind = Literal["thinking", "answer"]


class Sink(Protocol):
    """Where an answer is shown while it grows."""

    def reading(self, done: int, total: int) -> None:
        """`done` of `total` prompt tokens have been read."""

    def text(self, kind: Kind, piece: str) -> None:
        """The next piece of the answer or of the reasoning before it."""


@dataclass
class Answer:
    """An answer and its accounts; times are those that the user waited."""

    answer: str = ""
    thinking: str = ""
    raw: str = ""
    ids: list[int] = field(default_factory=list)
    reason: str = "cancelled"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def prefill_tps(self) -> float | None:
        """Prompt tokens computed (not found in the cache) per second."""
        return wording.per_second(self.prompt_tokens - self.cached_tokens, self.prefill_seconds)

    @property
    def decode_tps(self) -> float | None:
        """Tokens per second after the first one."""
        return wording.per_second(len(self.ids) - 1, self.decode_seconds)


def generate(engine: Engine, prompt: Prompt, sampling: Sampling, sink: Sink, stopped: Callable[[], bool]) -> Answer:
    """Run one request to its end, or until `stopped()`; white space in front of the answer is dropped."""
    answer = Answer(prompt_tokens=len(prompt.ids))
    writer = _Writer(answer, engine.text.dialect.parser(prompt.text), sink)
    clock = _Clock(answer)
    events = cast("Generator[Event, None, None]", engine.generate(prompt.ids, sampling))
    with contextlib.closing(events):
        for event in events:
            _take(event, answer, writer, clock, sink)
            if stopped():
                break
    writer.finish()
    return answer


def _take(event: Event, answer: Answer, writer: _Writer, clock: _Clock, sink: Sink) -> None:
    from hetero.engine import Done, Prefill, Token

    if isinstance(event, Prefill):
        answer.cached_tokens = event.cached
        sink.reading(event.done, event.total)
    elif isinstance(event, Token):
        clock.token()
        answer.ids.append(event.id)
        writer.feed(event.text)
    elif isinstance(event, Done):
        answer.reason, answer.cached_tokens = event.reason, event.cached_tokens
        writer.feed(event.tail)


def check_room(prompt_tokens: int, context: int, hint: str) -> None:
    """Raise UsageError unless the prompt leaves room for at least one token."""
    if prompt_tokens >= context:
        raise UsageError(f"the prompt has {prompt_tokens:,} tokens, but the context holds {context:,}", hint)


class _Clock:
    """Splits the time of an answer at its first token."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._start = time.perf_counter()

    def token(self) -> None:
        passed = time.perf_counter() - self._start
        if not self._answer.ids:
            self._answer.prefill_seconds = passed
        self._answer.decode_seconds = passed - self._answer.prefill_seconds


class _Writer:
    """Splits reasoning from answer, keeps both, and shows them."""

    def __init__(self, answer: Answer, parser: AnswerParser, sink: Sink) -> None:
        self._answer, self._parser, self._sink = answer, parser, sink

    def feed(self, text: str) -> None:
        if text:
            self._answer.raw += text
            self._show(self._parser.feed(text))

    def finish(self) -> None:
        self._show(self._parser.finish())

    def _show(self, parts: Sequence[Part]) -> None:
        for part in parts:
            kind: Kind = "thinking" if part.kind == "thinking" else "answer"
            before = self._answer.thinking if kind == "thinking" else self._answer.answer
            shown = part.text if before else part.text.lstrip()
            if not shown:
                continue
            if kind == "thinking":
                self._answer.thinking += shown
            else:
                self._answer.answer += shown
            self._sink.text(kind, shown)
