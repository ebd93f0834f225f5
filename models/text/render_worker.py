"""The process that renders chat templates: reads one JSON request a line, answers one JSON line.

It imports nothing of hetero and is started as a script by `template.py`. Templates are untrusted: Jinja's sandbox
keeps them from attributes, the limits here keep them from time, memory and files.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes
from jinja2.parser import Parser

MEMORY_BYTES = 768 << 20


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks an assistant's text for training; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes of the body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.Scope(body).set_lineno(line)]  # what is set in it is not seen outside, as in transformers


class Refused(jinja2.TemplateError):
    """The template called `raise_exception`."""


class TooLong(Exception):
    """The output exceeds its limit."""


def _raise_exception(message: str) -> None:
    raise Refused(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )


def _listed(value: Any) -> list[Any]:
    """What Jinja's `map` and `select` give, as llama.cpp's own templates write it out."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def environment() -> jinja2.sandbox.SandboxedEnvironment:
    """The environment that chat templates are written for (that of transformers), without any loader.

    Lists may be changed, which Kimi K2 Thinking's template does: what a template sees is its own copy.
    """
    env = jinja2.sandbox.SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.filters["from_json"] = json.loads  # llama.cpp's own templates use it
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


@lru_cache(maxsize=4)
def _compiled(source: str) -> jinja2.Template:
    return environment().from_string(source)


def render(source: str, variables: dict[str, Any], max_output: int) -> str:
    """The rendered text; raises TooLong past `max_output` characters."""
    chunks, length = [], 0
    for chunk in _compiled(source).generate(**variables):
        length += len(chunk)
        if length > max_output:
            raise TooLong
        chunks.append(chunk)
    return "".join(chunks)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """{"text"} or {"error", "message"} for one request."""
    try:
        return {"text": render(request["template"], request["variables"], request["max_output"])}
    except Refused as error:
        return {"error": "refused", "message": str(error)[:500]}
    except jinja2.exceptions.SecurityError as error:
        return {"error": "security", "message": str(error)[:500]}
    except TooLong:
        return {"error": "output", "message": ""}
    except (MemoryError, OverflowError, RecursionError) as error:
        return {"error": "memory", "message": type(error).__name__}
    except Exception as error:  # noqa: BLE001 - whatever an untrusted template provokes is its own fault
        return {"error": "template", "message": f"{type(error).__name__}: {error}"[:500]}


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, even inside one endless operation


def main() -> None:
    """Serves requests until the parent closes the pipe."""
    _limit()
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_seconds"])
        reply = json.dumps(answer(request)).encode("ascii") + b"\n"
        signal.setitimer(signal.ITIMER_PROF, 0)
        sent = 0
        while sent < len(reply):
            sent += replies.write(reply[sent:]) or 0


if __name__ == "__main__":
    main()
