"""Running `hetero` as a user does: through pipes, and in a pseudo-terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from hetero.cli.main import main

COMMAND = (sys.executable, "-m", "hetero.cli")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>78]|\x1b\][^\x07]*\x07")


def environment(state: Path, **changes: str) -> dict[str, str]:
    """The test's own XDG state, two torch threads, a known terminal."""
    base = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "HETERO_ISA", "COLUMNS", "LINES")}
    base |= {"XDG_STATE_HOME": str(state), "XDG_CACHE_HOME": str(state / "cache")}
    base |= {"OMP_NUM_THREADS": "2", "TERM": "xterm-256color"}
    return base | {"PROMPT_TOOLKIT_NO_CPR": "1"} | changes


def hetero(*args: str, env: Mapping[str, str], text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """One command with `text` on standard input; stdout and stderr are pipes."""
    return subprocess.run([*COMMAND, *args], env=env, input=text, capture_output=True, timeout=60, check=False)


class Run:
    """`hetero` in this process, with text on standard input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: Path) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.setenv("XDG_STATE_HOME", str(state))
        monkeypatch.setenv("XDG_CACHE_HOME", str(state / "cache"))
        monkeypatch.delenv("HETERO_ISA", raising=False)

    def __call__(self, *args: object, text: str = "") -> tuple[int, str, str]:
        self._monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        code = main([str(arg) for arg in args])
        shown = self._capsys.readouterr()
        return code, shown.out, shown.err

    def json(self, *args: object, text: str = "") -> Any:
        code, out, _ = self(*args, "--json", text=text)
        assert code == 0
        return json.loads(out)


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, argv: tuple[str, ...], env: Mapping[str, str], columns: int) -> None:
        self._fd, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            argv, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=_own_terminal
        )
        os.close(slave)
        self.raw = ""
        self._seen = 0

    def send(self, text: str) -> None:
        """Type `text`; "\\r" is Enter."""
        os.write(self._fd, text.encode())

    def paste(self, text: str) -> None:
        """Paste `text` as terminals do: bracketed, line ends as carriage returns."""
        self.send("\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~")

    def expect(self, pattern: str, seconds: float = 30) -> str:
        """Wait for `pattern` in what is new on the screen; returns what came up to its end."""
        end = time.monotonic() + seconds
        while True:
            new = self.text[self._seen :]
            found = re.search(pattern, new)
            if found:
                self._seen += found.end()
                return new[: found.end()]
            if time.monotonic() > end or not self._read():
                raise AssertionError(f"{pattern!r} did not come; the screen has {new!r}")

    def wait(self, seconds: float = 20) -> int:
        """Read to the end; the exit code."""
        while self._read():
            pass
        return self.process.wait(seconds)

    @property
    def text(self) -> str:
        """All that was shown, without escape codes."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def _read(self) -> bool:
        """Take what the program wrote, waiting a little; False once it has ended."""
        ready, _, _ = select.select([self._fd], [], [], 0.2)
        if not ready:
            return self.process.poll() is None
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # Linux reports the end of a pseudo-terminal so
            return False
        self.raw += data.decode("utf-8", errors="replace")
        return bool(data)

    def close(self) -> None:
        """End the program if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._fd)


@contextlib.contextmanager
def terminal(*args: str, env: Mapping[str, str], columns: int = 80) -> Iterator[Terminal]:
    """`hetero ARGS` in a terminal of that width."""
    screen = Terminal((*COMMAND, *args), env, columns)
    try:
        yield screen
    finally:
        screen.close()


def _own_terminal() -> None:
    # Ctrl-C reaches a program only from its controlling terminal.
    ioctl(0, termios.TIOCSCTTY, 0)
