"""A process that measures on request: one line of JSON in, one line of JSON out. Runs in any Python 3.10.

The engines that are compared stay loaded in a process each; whoever is not measured is stopped, so that spinning
threads of one engine cannot slow another.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Handler = Callable[..., Any]
_READY = '{"ready": true}'
_ROOT = Path(__file__).resolve().parent.parent


class WorkerFailed(Exception):
    """A worker ended or refused; the text says which and where its own messages are."""


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer requests {"do": name, ...arguments} until stdin ends. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    print(_READY, file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps({"result": handlers[request.pop("do")](**request)}), file=answers, flush=True)


class Worker:
    """The other end: starts a worker, waits until it is ready, then keeps it stopped between requests."""

    def __init__(self, name: str, command: Sequence[str], log: str) -> None:
        self.name, self._log = name, log
        with open(log, "wb") as errors:
            self._process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=_ROOT
            )
        while self._line() != _READY:
            pass  # what libraries print when they are imported
        self._signal(signal.SIGSTOP)

    def ask(self, do: str, **arguments: Any) -> Any:
        """The result of one request. Raises WorkerFailed."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        result = json.loads(self._line())["result"]
        self._signal(signal.SIGSTOP)
        return result

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return line.rstrip("\n")

    def _failure(self) -> WorkerFailed:
        code = self._process.wait()
        return WorkerFailed(f"{self.name} ended with code {code}; its messages are in {self._log}")

    def _signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
