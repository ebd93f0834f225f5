"""The conversation in the terminal: reading what the user types, showing what the model says."""

from __future__ import annotations

import dataclasses
import signal
import sys
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from hetero.cli import output, wording
from hetero.cli.answer import Answer, Kind, check_room, generate
from hetero.cli.conversation import Conversation
from hetero.cli.reader import Reader, no_echo, open_reader
from hetero.cli.wrap import WordWrap
from hetero.machine.types import HeteroError, UsageError

if TYPE_CHECKING:
    from hetero.engine import Engine, Sampling

COMMANDS = {
    "/help": "this list",
    "/clear": "forget the conversation",
    "/regen": "answer the last message again",
    "/system": "/system TEXT sets the system message and starts anew",
    "/stats": "speed and tokens of the last answer",
    "/exit": "leave (as does Ctrl-D)",
}
_KEYS = 'Enter sends; Ctrl-J or a """ block makes lines; Ctrl-C stops an answer; Up brings back what you typed'


class Interrupt:
    """Ctrl-C as a flag while an answer grows, so that the engine is never cut inside a step.

    A second Ctrl-C raises KeyboardInterrupt, for a step that does not come to its end.
    """

    def __init__(self) -> None:
        self.pressed = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


class Screen:
    """Shows one answer: a status line while the prompt is read, then text broken between words, reasoning dim."""

    def __init__(self) -> None:
        self._wrap = WordWrap(output.width(sys.stdout))
        self._status = output.StatusLine()
        self._kind: Kind = "answer"

    def reading(self, done: int, total: int) -> None:
        self._status.show(f"reading {done:,} of {total:,} tokens")

    def text(self, kind: Kind, piece: str) -> None:
        self._status.clear()
        if kind != self._kind:
            if kind == "answer":
                self._write(self._wrap.finish() + "\n\n")
                self._wrap = WordWrap(output.width(sys.stdout))
            self._kind = kind
        self._write(self._wrap.feed(wording.clean(piece)))

    def finish(self) -> None:
        """Show the word held back and end the line."""
        self._status.clear()
        self._write(self._wrap.finish())
        output.write("\n")

    def _write(self, text: str) -> None:
        if text:
            output.write_thinking(text) if self._kind == "thinking" else output.write(text)


class Repl:
    """One conversation until the user leaves."""

    def __init__(self, engine: Engine, conversation: Conversation, sampling: Sampling, private: bool) -> None:
        self._engine = engine
        self._conversation = conversation
        self._sampling = sampling
        self._reader: Reader = open_reader(private, list(COMMANDS))
        self._last: Answer | None = None

    def run(self) -> None:
        """Read, answer, repeat; returns at Ctrl-D or /exit."""
        output.note("/help lists commands, Ctrl-D leaves")
        while True:
            try:
                text = self._reader.read()
            except KeyboardInterrupt:
                output.note("Ctrl-D to leave")
                continue
            except EOFError:
                return
            if text.rstrip() == "/exit":
                return
            try:
                self._handle(text)
            except HeteroError as problem:
                output.error(problem.message, problem.hint)

    def _handle(self, text: str) -> None:
        if not text.strip():
            return
        if _is_command(text):
            name, _, rest = text.strip().partition(" ")
            self._command(name, rest.strip())
            return
        self._conversation.ask(text)
        self._answer()

    def _command(self, name: str, rest: str) -> None:
        if name == "/help":
            output.table([*COMMANDS.items()])
            output.note(_KEYS)
        elif name == "/clear":
            self._conversation.clear()
            output.note("the conversation is forgotten")
        elif name == "/system":
            self._system(rest)
        elif name == "/regen":
            self._regenerate()
        elif name == "/stats":
            self._stats()
        else:
            near = wording.nearest(name, COMMANDS)
            hint = f"did you mean {near}?" if near else "/help lists the commands"
            raise UsageError(f"no command {name}", f"{hint} (a space in front sends it as text)")

    def _system(self, text: str) -> None:
        if not text:
            output.note(self._conversation.system or "no system message")
            return
        self._conversation.system = text
        self._conversation.clear()
        output.note("the system message is set and the conversation starts anew")

    def _regenerate(self) -> None:
        self._conversation.withdraw("assistant")
        if not self._conversation.messages:
            raise UsageError("there is no message to answer again", "say something first")
        if self._sampling.temperature == 0:
            output.note("at temperature 0 the answer is the same again; --temp 0.7 varies it")
        self._answer()

    def _answer(self) -> None:
        try:
            answer = self._generate()
        except HeteroError:
            # An unanswered message must not stay: templates want the speakers to take turns.
            self._conversation.withdraw("user")
            raise
        self._last = answer
        output.note(self._summary(answer))

    def _generate(self) -> Answer:
        prompt = self._conversation.prompt()
        check_room(len(prompt.ids), self._engine.plan.context, "/clear starts anew; a larger --context holds more")
        screen = Screen()
        with no_echo(), Interrupt() as interrupt:
            answer = generate(self._engine, prompt, self._sampling, screen, lambda: interrupt.pressed)
        screen.finish()
        self._conversation.answered(
            answer.answer, answer.thinking, prompt.text + answer.raw, [*prompt.ids, *answer.ids]
        )
        return answer

    def _summary(self, answer: Answer) -> str:
        used, context = answer.prompt_tokens + len(answer.ids), self._engine.plan.context
        parts = [wording.plural(len(answer.ids), "token")]
        if answer.reason == "cancelled":
            parts.insert(0, "stopped")
        elif answer.reason == "length":
            parts.insert(
                0, "cut: the context is full, /clear starts anew" if used >= context else "cut by --max-tokens"
            )
        if answer.decode_tps is not None:
            parts.append(f"{wording.rate(answer.decode_tps)} tok/s")
        if answer.cached_tokens:
            parts.append(f"{answer.cached_tokens:,} cached")
        return " · ".join([*parts, f"context {used:,}/{context:,}"])

    def _stats(self) -> None:
        if self._last is None:
            raise UsageError("there is no answer yet", "say something first")
        last = self._last
        sampling = {k: v for k, v in dataclasses.asdict(self._sampling).items() if v not in (None, False)}
        output.table(
            [
                ("prompt", f"{wording.plural(last.prompt_tokens, 'token')}, {last.cached_tokens:,} of them cached"),
                ("prefill", _rate(last.prefill_tps, last.prefill_seconds)),
                ("answer", f"{wording.plural(len(last.ids), 'token')}, ended by {last.reason}"),
                ("decode", _rate(last.decode_tps, last.decode_seconds)),
                ("sampling", ", ".join(f"{name} {value}" for name, value in sampling.items())),
            ]
        )


def _is_command(text: str) -> bool:
    """Whether a message is meant as a command: one line that starts with a slash and a plain word."""
    stripped = text.rstrip()
    word = stripped.partition(" ")[0]
    return word.startswith("/") and word[1:].isalpha() and "\n" not in stripped


def _rate(per_second: float | None, seconds: float) -> str:
    return f"{wording.rate(per_second)} tok/s in {seconds:.2f} s" if per_second is not None else f"{seconds:.2f} s"
