"""Options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetero.cli import output


def _verbose(value: bool) -> bool:
    if value:
        output.be_verbose()
    return value


def _log_file(value: Path | None) -> Path | None:
    if value is not None:
        output.log_to(value)
    return value


ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A store (NAME.hetero), a GGUF file or a safetensors directory; without it, the bundled demo model.",
        show_default=False,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        "-t",
        metavar="N",
        min=1,
        help="CPU threads; by default one for each usable core.",
        show_default=False,
    ),
]
Context = Annotated[
    int | None,
    typer.Option("--context", "-c", metavar="N", min=1, help="Tokens of context to make room for.", show_default=False),
]
_KV_HELP = "Type of the KV cache; q8 is 8 bits a value and a scale per 32."
Device = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where the dense part runs.")]
KvDtype = Annotated[str, typer.Option("--kv-dtype", metavar="auto|bf16|f16|f32|q8", help=_KV_HELP)]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic", help="The same bits whatever shares a batch: keeps amx to avx512's kernels; else no change."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Go on although the estimate says it does not fit.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, also on error.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on stderr.", callback=_verbose)]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log-file", metavar="FILE", help="Append a log of everything to FILE.", callback=_log_file, show_default=False
    ),
]
