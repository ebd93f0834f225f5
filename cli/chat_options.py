"""The options of `hetero chat`, one type each."""

from __future__ import annotations

from typing import Annotated

import typer

Prompt = Annotated[
    str | None,
    typer.Option("--prompt", "-p", metavar="TEXT", help="Answer this and stop; standard input is added to it."),
]
System = Annotated[str | None, typer.Option("--system", "-s", metavar="TEXT", help="The system message.")]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temp",
        metavar="X",
        min=0.0,
        max=100.0,
        help="Temperature; 0 takes the likeliest token; by default the model's own, else 0.",
    ),
]
TopK = Annotated[
    int | None, typer.Option("--top-k", metavar="N", min=0, help="Sample among the k likeliest; 0 is off.")
]
TopP = Annotated[
    float | None, typer.Option("--top-p", metavar="X", min=0.0, max=1.0, help="Sample within this probability.")
]
MinP = Annotated[
    float | None,
    typer.Option("--min-p", metavar="X", min=0.0, max=1.0, help="Drop tokens below this share of the likeliest."),
]
RepeatPenalty = Annotated[
    float | None,
    typer.Option("--repeat-penalty", metavar="X", min=0.01, max=100.0, help="Above 1 discourages repeats."),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", min=0, help="Makes sampling reproducible.")]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        "-n",
        metavar="N",
        min=1,
        help="Length of an answer; by default until it ends or the context is full.",
    ),
]
NoTemplate = Annotated[
    bool, typer.Option("--no-template", help="Continue the prompt as plain text, without the chat template.")
]
Private = Annotated[bool, typer.Option("--private", help="Write nothing to disk, history included.")]
