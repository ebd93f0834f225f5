"""The one file that prints. stdout carries results; stderr carries progress, notes, warnings and errors.

Colour and cursor movement appear only on a terminal that wants them: not when piped, not under NO_COLOR,
not with TERM=dumb. Streams are looked up at each call, because tests and callers replace them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from hetero.cli import wording
from hetero.cli.grid import grid
from hetero.cli.xdg import private_file
from hetero.machine.types import UsageError
from hetero.machine.units import size_text

if TYPE_CHECKING:
    from rich.console import Console

ProgressCallback = Callable[[int, int, str], None]
Style = Literal["dim", "bold", "red", "green", "yellow", "cyan"]

_CODES: dict[Style, str] = {"dim": "2", "bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_PIPED_WIDTH = 200
_PAIR_WIDTH = 28
"""Columns from which on labels stand beside what they say."""
_PLAIN_LINE_SECONDS = 10.0
_FIGURES = 26
"""Columns that percentage, rate and time left take beside a progress bar."""
_QUIET_SECONDS = 0.3
"""Work that is over sooner shows no bar: it would only flicker."""

log = logging.getLogger("hetero")


def is_dumb() -> bool:
    """Whether the terminal cannot move its cursor."""
    return os.environ.get("TERM", "dumb") in ("dumb", "unknown")


def is_styled(stream: TextIO) -> bool:
    """Whether escape codes may be written to `stream`."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and not is_dumb()


def width(stream: TextIO) -> int:
    """Columns to fill; wide when the reader is not a terminal."""
    return shutil.get_terminal_size().columns if stream.isatty() else _PIPED_WIDTH


def paint(text: str, style: Style, stream: TextIO) -> str:
    """`text` in a style where the stream wants it."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if text and is_styled(stream) else text


def write(text: str) -> None:
    """Part of a result, on stdout at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def for_terminal(text: str) -> str:
    """`text` without control characters where a terminal would obey them; as it is where a program reads it."""
    return wording.clean(text) if sys.stdout.isatty() else text


def write_thinking(text: str) -> None:
    """Part of a model's reasoning, dim on stdout; only called for terminals."""
    write(paint(text, "dim", sys.stdout))


def result(text: str) -> None:
    """A line of a result on stdout."""
    write(wording.clean(text) + "\n")


def json_object(body: dict[str, Any]) -> None:
    """One JSON object on stdout."""
    write(json.dumps(body, ensure_ascii=False, allow_nan=False) + "\n")


def json_result(schema: str, body: dict[str, Any]) -> None:
    """One JSON object on stdout that says what it is by its schema and version."""
    json_object({"schema": schema, "version": 1, **body})


def note(text: str) -> None:
    """A dim line on stderr."""
    _stderr(paint(_fold(wording.clean(text)), "dim", sys.stderr))


def warning(text: str) -> None:
    """A warning line on stderr."""
    _labelled("warning:", "yellow", wording.one_line(text))


def error(message: str, hint: str = "") -> None:
    """A failure in one line on stderr, and what to try next in another."""
    _labelled("error:", "red", wording.one_line(message))
    if hint:
        _labelled("hint:", "cyan", wording.one_line(hint))


def success(text: str) -> None:
    """A finished piece of work on stderr."""
    _labelled("done:", "green", wording.clean(text))


def write_question(text: str) -> None:
    """A question on stderr, the answer to be typed behind it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(wording.clean(text))
        sys.stderr.flush()


class StatusLine:
    """A line on stderr that each new text replaces, and that leaves nothing behind; only on terminals."""

    def __init__(self) -> None:
        self._shown = False

    def show(self, text: str) -> None:
        """Replace the line."""
        if is_styled(sys.stderr):
            self._shown = True
            sys.stderr.write(f"\r\x1b[K{paint(text[: width(sys.stderr) - 1], 'dim', sys.stderr)}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away, if there is one: the cursor's line may hold something else by now."""
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def table(
    rows: Sequence[Sequence[str]],
    *,
    headers: Sequence[str] = (),
    right: Sequence[int] = (),
    styles: Mapping[int, Style] | None = None,
) -> None:
    """Aligned columns on stdout; long cells fold on narrow terminals, `right` lists columns of numbers.

    `styles` gives columns a style where the terminal wants one.
    """
    shown = [list(headers)] * bool(headers) + [[wording.clean(cell) for cell in row] for row in rows]
    titles: Mapping[int, Style] = dict.fromkeys(range(len(headers)), "bold")
    for number, line in grid(shown, right, width(sys.stdout)):
        looks = titles if headers and not number else styles or {}
        painted = (paint(cell, looks[i], sys.stdout) if i in looks else cell for i, cell in enumerate(line))
        write("  ".join(painted) + "\n")


def is_narrow() -> bool:
    """Whether stdout has no room for columns."""
    return width(sys.stdout) < _PAIR_WIDTH


def pairs(rows: Sequence[tuple[str, str]], *, style: Style = "bold") -> None:
    """Labels and what they say in two columns on stdout; on narrow terminals each label has a line of its own."""
    if not is_narrow():
        table(rows, styles={0: style})
        return
    room = width(sys.stdout)
    for label, text in rows:
        write(paint(_cut(label, room, ""), style, sys.stdout) + "\n")
        if text:
            write(_cut(text, room, "  ") + "\n")


def _cut(text: str, room: int, indent: str) -> str:
    """Lines of at most `room` columns, broken between words where that is possible."""
    from rich.text import Text

    console = _console(sys.stdout)
    lines = Text(wording.clean(text)).wrap(console, max(1, room - len(indent)), overflow="fold")
    return "\n".join(indent + line.plain.rstrip() for line in lines)


@contextlib.contextmanager
def progress(label: str) -> Iterator[ProgressCallback]:
    """A callback `(done bytes, total bytes, what)` that draws a bar with rate and time left.

    Without a terminal it logs a line every ten seconds, which `-v` shows.
    """
    if not is_styled(sys.stderr):
        yield _plain_progress(label)
        return
    from rich import progress as bars

    room = width(sys.stderr) - _FIGURES
    columns: list[bars.ProgressColumn] = [bars.TextColumn("{task.description}")]
    columns += [bars.BarColumn(bar_width=room // 2)] if room >= 30 else []
    columns += [bars.TaskProgressColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn(compact=True)]
    bar = bars.Progress(*columns, console=_console(sys.stderr), transient=True)
    task = bar.add_task(label, total=None)
    began = time.monotonic()

    def advance(done: int, total: int, what: str) -> None:
        if time.monotonic() - began < _QUIET_SECONDS:
            return
        bar.start()
        text = wording.one_line(what or label)[: room // 2 if room >= 30 else room]
        bar.update(task, completed=done, total=total, description=text.replace("[", r"\["))

    try:
        yield advance
    finally:
        bar.stop()


def start_logging() -> None:
    """Send warnings to stderr; `be_verbose` and `log_to` add to that. Forgets an earlier command's settings."""
    logging.captureWarnings(True)
    logging.raiseExceptions = False  # a log file on a full disk must not print a traceback for every record
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, (_StderrHandler, logging.FileHandler)):
            root.removeHandler(handler)
            handler.close()
    root.addHandler(_StderrHandler(logging.WARNING))
    log.setLevel(logging.DEBUG)


def be_verbose() -> None:
    """Show every log record on stderr."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _StderrHandler):
            handler.setLevel(logging.DEBUG)


def log_to(path: Path) -> None:
    """Append every log record to `path` (mode 0600); raises UsageError."""
    try:
        handler = logging.FileHandler(private_file(path), encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"--log-file {path}: {problem.strerror}", "name a file in a folder you can write") from problem
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)


def is_verbose() -> bool:
    """Whether `-v` was given."""
    return any(isinstance(h, _StderrHandler) and h.level <= logging.DEBUG for h in logging.getLogger().handlers)


def silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter does not complain about a closed pipe when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _StderrHandler(logging.Handler):
    """Log records as lines of the same look as the other messages."""

    def emit(self, record: logging.LogRecord) -> None:
        # Python's own warnings come from libraries and name their source lines: they are for `-v`.
        if record.name == "py.warnings" and self.level > logging.DEBUG:
            return
        if record.levelno >= logging.WARNING:
            warning(record.getMessage())
        else:
            _stderr(paint(f"{record.name}: {wording.clean(record.getMessage())}", "dim", sys.stderr))


def _plain_progress(label: str) -> ProgressCallback:
    last = time.monotonic()

    def advance(done: int, total: int, what: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _PLAIN_LINE_SECONDS:
            last = time.monotonic()
            log.info("%s: %s of %s", what or label, size_text(done), size_text(total))

    return advance


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    # rich keeps bold and dim under NO_COLOR; a colour system of None drops every escape code.
    plain = not is_styled(stream)
    return Console(file=stream, width=width(stream), color_system=None if plain else "auto", highlight=False)


def _labelled(label: str, style: Style, text: str) -> None:
    _stderr(_fold(f"{label} {text}").replace(label, paint(label, style, sys.stderr), 1))


def _fold(text: str) -> str:
    """Break lines between words at the edge of a terminal; a piped line stays one line."""
    if not sys.stderr.isatty():
        return text
    room = width(sys.stderr)
    fill = textwrap.TextWrapper(room, break_long_words=False, break_on_hyphens=False, replace_whitespace=False).fill
    return "\n".join(fill(line) for line in text.splitlines())


def _stderr(text: str) -> None:
    # A stderr that is closed or full must not end the work.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
