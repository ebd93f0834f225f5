"""Chat templates. They come from untrusted files, so they run in a process of their own, with limits."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hetero.machine.types import ModelError, UsageError
from hetero.models.text.messages import checked, checked_tools, forms, is_shown, plain_data

MAX_TEMPLATE_BYTES = 256 * 1024
MAX_OUTPUT_CHARS = 8 * 1024 * 1024
CPU_SECONDS = 1.0
WALL_SECONDS = 20.0
_FINAL = ("time", "output", "memory", "crash", "security")
"""Errors that no other form of the conversation would mend."""
_WORKER = Path(__file__).with_name("render_worker.py")
_HINT = (
    "look at the model's chat template (tokenizer.chat_template or chat_template.jinja), or use the model without it"
)


class Template(Protocol):
    """What turns a conversation into a prompt. By `source` and `named` a model's dialect is recognised."""

    @property
    def source(self) -> str: ...

    @property
    def named(self) -> Mapping[str, str]: ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = ...,
        tools: Sequence[Any] | None = ...,
        **kwargs: Any,
    ) -> str: ...


class _Worker:
    """One process that renders templates: started at first use, restarted after it had to be killed.

    CPU time is limited by a timer in the worker that also stops a single endless operation, memory by its
    address space; the wall clock is only the last resort, so that a busy machine raises no false alarm.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One request, one answer: {"text"} or {"error", "message"}; `error` is also "time" or "crash"."""
        line = json.dumps(request).encode("ascii") + b"\n"
        with self._lock:
            process = self._running()
            try:
                answer = self._exchange(process, line)
            except BaseException:  # also Ctrl-C: half an answer must not be taken for the next one's
                self._stop(process)
                raise
            if answer is None:
                self._stop(process)
                timed_out = process.returncode in (-signal.SIGPROF, -signal.SIGKILL)
                return {"error": "time" if timed_out else "crash", "message": ""}
        found: dict[str, Any] = json.loads(answer)
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, str(_WORKER)]
            # a session of its own: Ctrl-C at the terminal must stop the answer, not this process
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
            weakref.finalize(self, _reap, process)
            self._process = process
        return self._process

    @staticmethod
    def _exchange(process: subprocess.Popen[bytes], line: bytes) -> bytes | None:
        """The answer's line, or None when the worker died or took too long."""
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + WALL_SECONDS + len(line) / 1e6
        try:
            sent = 0
            while sent < len(line):
                sent += process.stdin.write(line[sent:]) or 0
        except BrokenPipeError:
            return None
        received = bytearray()
        source = process.stdout.fileno()
        ready = select.poll()  # unlike select it takes the high descriptors of a busy server
        ready.register(source, select.POLLIN)
        while not received.endswith(b"\n"):
            waited = ready.poll(max(0.0, deadline - time.monotonic()) * 1000)
            chunk = os.read(source, 1 << 20) if waited else b""
            if not chunk:
                return None
            received += chunk
        return bytes(received)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        _reap(process)
        self._process = None


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Ends a worker and takes its exit status; one that is ending by itself keeps its own status."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(timeout=0.2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class ChatTemplate:
    """A model's chat template, with the named variants that some models have (`tool_use`).

    `special` are the token texts that templates refer to (`bos_token`, `eos_token` ...).
    Raises ModelError if a template is larger than 256 KB.
    """

    def __init__(
        self, source: str, *, named: Mapping[str, str] | None = None, special: Mapping[str, str] | None = None
    ) -> None:
        self.source = source
        self.named = dict(named or {})
        self.special = dict(special or {})
        for text in (source, *self.named.values()):
            size = len(text.encode("utf-8", "replace"))
            if size > MAX_TEMPLATE_BYTES:
                raise ModelError(f"the chat template has {size} bytes, at most {MAX_TEMPLATE_BYTES} are allowed", _HINT)
        self._worker = _Worker()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt for a conversation of {"role", "content", ...} messages.

        Raises UsageError where a message is odd (see `messages.checked`) or the template itself refuses the
        conversation (say, a role it does not know), and ModelError where the template is wrong, reaches for what it
        must not, or exceeds a second of CPU time, memory or output.
        """
        plain, offered = checked(messages), checked_tools(tools)
        source = self.named.get("tool_use", self.source) if offered else self.source
        variables = {"documents": None, **self.special, **kwargs, "tools": offered}
        variables["add_generation_prompt"] = add_generation_prompt
        first: dict[str, Any] = {}
        for form in forms(plain):
            answer = self._ask(source, variables | {"messages": form})
            if answer.get("error") in _FINAL:
                return _text_of(answer)
            if "text" in answer and is_shown(form, answer["text"]):
                return str(answer["text"])
            first = answer if not first or ("text" in answer and "text" not in first) else first
        return _text_of(first)

    def _ask(self, source: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        size = len(plain_data(variables, "the conversation"))
        return self._worker.ask(
            {
                "template": source,
                "variables": variables,
                "max_output": MAX_OUTPUT_CHARS + 4 * size,
                "cpu_seconds": CPU_SECONDS + size / 1e6,
            }
        )


def _text_of(answer: Mapping[str, Any]) -> str:
    """The rendered text, or the error that the worker's answer means."""
    kind, message = answer.get("error"), answer.get("message", "")
    if kind is None:
        return str(answer["text"])
    if kind == "refused":
        raise UsageError(f"the chat template refuses this conversation: {message}", "change the roles or the messages")
    reasons = {
        "time": f"takes more than {CPU_SECONDS:g} s of CPU time",
        "output": "writes more text than is allowed",
        "memory": "takes more memory than is allowed",
        "crash": "made its renderer crash or could not start it",
        "security": f"reaches for what it must not: {message}",
    }
    raise ModelError(f"the chat template {reasons.get(kind, f'does not work: {message}')}", _HINT)
