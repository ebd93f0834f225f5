"""From an exception to one line, a hint and an exit code."""

from __future__ import annotations

import datetime
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from hetero.cli import output, wording
from hetero.cli.xdg import private_dir, private_file
from hetero.machine.types import HeteroError

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Failure:
    """How a command ended when it did not end well."""

    code: int
    message: str
    hint: str = ""


def report(problem: BaseException, args: Sequence[str]) -> int:
    """Tell the user about `problem`, as JSON where the command line asks for it; returns the exit code."""
    failure = describe(problem, args)
    if "--json" in args:
        message, hint = wording.one_line(failure.message), wording.one_line(failure.hint)
        body = {"code": failure.code, "message": message, "hint": hint}
        _as_json({"error": body}, failure)
    elif failure.code != INTERRUPTED:
        output.error(failure.message, failure.hint)
    return failure.code


def _as_json(body: dict[str, object], failure: Failure) -> None:
    try:
        output.json_result("hetero.error", body)
    except BrokenPipeError:
        raise
    except OSError:  # a full disk: stderr may still be read
        output.silence_stdout()
        output.error(failure.message, failure.hint)


def describe(problem: BaseException, args: Sequence[str] = ()) -> Failure:
    """The exit code, line and hint for any exception; bugs leave their traceback in a file."""
    if isinstance(problem, HeteroError):
        return Failure(problem.code, problem.message, problem.hint)
    if isinstance(problem, KeyboardInterrupt):
        return Failure(INTERRUPTED, "interrupted")
    if isinstance(problem, MemoryError):
        return Failure(3, "out of memory", "close other programs, or try a smaller --context; --dry-run shows the plan")
    if isinstance(problem, ImportError) and "failed to map" in str(problem):  # the loader's word for no memory
        return Failure(3, f"out of memory: {problem}", "close other programs, or raise ulimit -v")
    # typer raises its own kinds of usage error, which differ between its versions but share these two attributes.
    if hasattr(problem, "format_message") and hasattr(problem, "exit_code"):
        if hasattr(problem, "possibilities"):
            return _no_option(problem)
        return Failure(2, _lowered(str(problem.format_message())), _help_hint(problem))
    if isinstance(problem, OSError):
        where = f"{problem.filename}: " if problem.filename else ""
        return Failure(5, f"{where}{problem.strerror or problem}", "check the disk's free space and permissions")
    return _bug(problem, args)


def _bug(problem: BaseException, args: Sequence[str]) -> Failure:
    line = f"bug: {type(problem).__name__}: {problem}"
    text = "".join(traceback.format_exception(problem))
    if output.is_verbose():
        output.note(text.rstrip())
        return Failure(1, line, "please report this with the lines above")
    if "--private" in args:
        return Failure(1, line, "run it again with -v to see where it happened")
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        path = private_file(private_dir("state") / f"bug-{stamp}-{os.getpid()}.txt")
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError:
        return Failure(1, line, "run it again with -v to see where it happened")
    return Failure(1, line, f"please report this with {path}")


def _no_option(problem: BaseException) -> Failure:
    """An option that the command lacks, with the one that was meant where one is near."""
    name = wording.one_line(str(getattr(problem, "option_name", "")))
    near = None
    if name.startswith("--"):
        context = getattr(problem, "ctx", None)
        known = [option for p in getattr(getattr(context, "command", None), "params", ()) for option in p.opts]
        near = wording.nearest(name[2:], [option[2:] for option in known if option.startswith("--")], 0.6)
    return Failure(2, f"no such option: {name}", f"did you mean --{near}?" if near else _help_hint(problem))


def _lowered(message: str) -> str:
    text = wording.one_line(message).rstrip(".")
    return text[:1].lower() + text[1:]


def _help_hint(problem: BaseException) -> str:
    context = getattr(problem, "ctx", None)
    command = getattr(context, "command_path", "hetero")
    return f"`{command} --help` lists what it takes"
