"""Reading one message from the terminal: line editing, history, pasted blocks."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from hetero.cli import output
from hetero.cli.xdg import private_dir, private_file

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

_PROMPT = ">>> "
_MORE = "... "
_BLOCK = '"""'


class Reader(Protocol):
    """Reads messages; raises EOFError at Ctrl-D and KeyboardInterrupt at Ctrl-C."""

    def read(self) -> str:
        """The next message, which may have many lines."""


def open_reader(private: bool, commands: list[str]) -> Reader:
    """An editor with history, or plain lines where the terminal cannot move its cursor."""
    return LineReader() if output.is_dumb() else EditReader(private, commands)


def unblock(text: str) -> str:
    """The inside of a `\"\"\"` block, or the text as it is."""
    stripped = text.strip()
    if stripped.startswith(_BLOCK) and stripped.endswith(_BLOCK) and len(stripped) >= 2 * len(_BLOCK):
        return stripped[len(_BLOCK) : -len(_BLOCK)].strip("\n")
    return text


def is_open(text: str) -> bool:
    """Whether a `\"\"\"` block has begun and not ended."""
    return text.lstrip().startswith(_BLOCK) and text.count(_BLOCK) % 2 == 1


@contextlib.contextmanager
def no_echo() -> Iterator[None]:
    """Keep keys typed during an answer (and the `^C` that stops it) off the screen; they wait for the next prompt."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, ValueError, OSError):
        yield
        return
    quiet = [*before]
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


class LineReader:
    """Lines as the terminal gives them."""

    def read(self) -> str:
        output.write(_PROMPT)
        text = _next_line()
        while is_open(text):
            output.write(_MORE)
            text += "\n" + _next_line()
        return unblock(text)


def _next_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


class EditReader:
    """prompt_toolkit's editor: Enter sends, Ctrl-J and pasted line ends do not."""

    def __init__(self, private: bool, commands: list[str]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.formatted_text import FormattedText
        from prompt_toolkit.output import ColorDepth

        plain = bool(os.environ.get("NO_COLOR"))
        self._session: PromptSession[str] = PromptSession(
            message=FormattedText([("" if plain else "ansicyan", _PROMPT)]),
            multiline=True,
            prompt_continuation=_MORE,
            history=_history(private),
            key_bindings=_keys(),
            completer=WordCompleter(commands, sentence=True),
            complete_while_typing=False,
            color_depth=ColorDepth.DEPTH_1_BIT if plain else None,
        )

    def read(self) -> str:
        return unblock(self._session.prompt())


def _history(private: bool) -> History:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if private:
        return InMemoryHistory()
    try:
        return FileHistory(str(private_file(private_dir("state") / "history")))
    except OSError as problem:
        output.warning(f"no history: {problem.filename}: {problem.strerror}")
        return InMemoryHistory()


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("c-j")
    def _line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
