"""The commands, the global options, and how every command ends."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from hetero.cli import errors, options, output, wording
from hetero.cli.bench import bench
from hetero.cli.chat import chat
from hetero.cli.convert import convert
from hetero.cli.inspect import inspect
from hetero.cli.models import app as models_app
from hetero.cli.plan import plan
from hetero.cli.probe import probe
from hetero.machine.types import HeteroError, TierError, UsageError


class _ClosedStdout(io.TextIOBase):
    """Stands in for a stdout that the caller has closed (`>&-`): a result that nobody gets is a failure."""

    def __init__(self, null: TextIO) -> None:
        self._null = null  # holds the number 1
        self.lost = False

    def write(self, text: str) -> int:
        self.lost = True
        raise OSError(errno.EBADF, "stdout is closed")

    def fileno(self) -> int:
        return 1


class _ClosedPipe(Exception):
    """The reader of stdout went away (`| head`): not a failure."""


class _Commands(TyperGroup):
    """The commands, with a suggestion for a misspelt one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not args[0].startswith("-"):
            near = wording.nearest(args[0], self.commands)
            hint = f"did you mean `hetero {near}`?" if near else "`hetero --help` lists the commands"
            raise UsageError(f"no command {args[0]!r}", hint)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as problem:
            # typer would turn it into exit code 1.
            raise _ClosedPipe from problem


app = typer.Typer(cls=_Commands, rich_markup_mode=None, pretty_exceptions_enable=False)
for command in (chat, convert, inspect, bench, plan, probe):
    # a help of its own length: the default cuts a description at the terminal's edge
    app.command(short_help=(command.__doc__ or "").strip().partition("\n")[0])(command)

app.add_typer(models_app, name="models", short_help="List the models used here, or delete a store.")


def _version(value: bool) -> None:
    if value:
        from importlib import metadata

        output.result(f"hetero {metadata.version('hetero')} (kernels: {_built_tiers()})")
        raise typer.Exit


def _built_tiers() -> str:
    try:
        from hetero.native import cpu_tiers

        built = [tier.name for tier in cpu_tiers() if tier.built]
    except (HeteroError, ImportError):
        built = []
    return ", ".join(built) or "none, see `hetero probe`"


@app.callback(invoke_without_command=True)
def hetero(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and the kernels built.", callback=_version, is_eager=True),
    ] = False,
    verbose: options.Verbose = False,
    log_file: options.LogFile = None,
) -> None:
    """Large mixture-of-experts models on the hardware you have."""
    if ctx.invoked_subcommand is None:
        output.result(ctx.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; no exception leaves this function."""
    arguments = list(sys.argv[1:] if args is None else args)
    _mend_streams()
    try:
        code = _run(arguments)
    except BaseException as problem:  # noqa: BLE001  the last stop: whatever it is ends in one line and an exit code
        try:
            code = _end(problem, arguments)
        except BrokenPipeError:
            code = 0
            output.silence_stdout()
    return TierError.code if code == 0 and _is_lost() else code


def _is_lost() -> bool:
    """Whether something was written to a stdout that the caller has closed."""
    return isinstance(sys.stdout, _ClosedStdout) and sys.stdout.lost


def _mend_streams() -> None:
    """Give the program three streams, and let none of them end it over a character its encoding lacks."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller (`>&-`); its number must not go to a file that is opened later
            null = open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, _ClosedStdout(null) if name == "stdout" else null)
        elif name != "stdin" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _run(args: list[str]) -> int:
    output.start_logging()
    command = typer.main.get_command(app)
    code = command.main(args, prog_name="hetero", standalone_mode=False)
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


def _end(problem: BaseException, args: list[str]) -> int:
    if isinstance(problem, (_ClosedPipe, BrokenPipeError)):
        output.silence_stdout()
        return 0
    if isinstance(problem, OSError) and _is_lost():
        return TierError.code
    if isinstance(problem, SystemExit):
        return problem.code if isinstance(problem.code, int) else 1
    if isinstance(problem, typer.Abort):
        problem = KeyboardInterrupt()
    return errors.report(problem, args)
