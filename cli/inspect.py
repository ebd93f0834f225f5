"""`hetero inspect`: what a checkpoint or store is, from its headers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetero.cli import options, output, wording
from hetero.machine.types import HeteroError, UsageError
from hetero.machine.units import size_text

if TYPE_CHECKING:
    from hetero.models.inspect import Group, Inspection, TextFacts

_KINDS = {"store": "a hetero store", "gguf": "GGUF", "safetensors": "safetensors directory"}
_ROLES = {"expert": "experts", "dense": "dense", "small": "small", None: "tensors"}
_WIDE = 60
"""Columns from which on the table of tensors has all of its columns."""


def inspect(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A store, a GGUF file or a safetensors directory.", show_default=False)
    ],
    json: options.Json = False,
    verbose: options.Verbose = False,
    log_file: options.LogFile = None,
) -> None:
    """Show what a checkpoint or store is: family, tensors, bytes, tokenizer, template, what is missing."""
    from hetero.models.inspect import inspect as look

    if not source.strip():
        raise UsageError("SRC is empty", "give a store, a GGUF file or a safetensors directory")
    found = look(Path(source))
    if json:
        output.json_result("hetero.inspect", _body(found))
    else:
        _show(found)
    if found.problem is not None:
        raise typer.Exit(found.problem.code)


def _show(found: Inspection) -> None:
    output.pairs([*_model(found), *_text(found)])
    output.result("")
    _tensors(found)
    for note in (*found.notes, *(found.text.notes if found.text else ())):
        output.note(note)
    for problem in (found.text_problem, found.problem):
        if problem is not None:
            output.error(problem.message, problem.hint)


def _model(found: Inspection) -> Iterator[tuple[str, str]]:
    yield "model", found.name
    kind = _KINDS[found.kind] + (f", experts {found.converted}" if found.converted not in ("", "keep") else "")
    yield "is", f"{kind}, {wording.plural(len(found.files), 'file')}, {size_text(found.file_bytes)}"
    index, config = found.index, found.config
    if index is None or config is None:
        yield "architecture", found.architecture or "not told"
        return
    yield "family", f"{config.family} ({found.architecture})"
    yield "layers", f"{index.n_layers}, hidden size {index.hidden_size:,}, context {index.max_context:,}"
    if index.n_experts and config.moe is not None:
        shared = ", and shared ones" if config.moe.shared_intermediate_size else ""
        yield "experts", f"{index.n_experts} in a layer, {index.top_k} used by a token{shared}"
    from hetero.machine.advice import facts

    known = facts(index)
    yield "parameters", f"{wording.amount(known.total)}, {wording.amount(known.active)} used by a token"
    yield "reads", f"{size_text(round(found.active_bytes))} of weights for a token"
    if config.mtp_layers:
        layers = wording.plural(config.mtp_layers, "layer")
        yield "not loaded", f"{layers} for further tokens, {size_text(sum(group.bytes for group in found.unused))}"


def _text(found: Inspection) -> Iterator[tuple[str, str]]:
    text = found.text
    if text is None:
        if found.text_problem is not None:
            yield "tokenizer", "missing or not usable, see below"
        return
    padded = f", {text.embeddings - text.tokens:,} padded ones are masked" if text.embeddings > text.tokens else ""
    yield "tokenizer", f"{text.tokens:,} tokens{padded}" + (f", begins with {text.bos}" if text.bos else "")
    yield "stops at", " ".join(text.stops) or "nothing: answers end with the context"
    yield "template", _TEMPLATES[text.template]
    yield "answers", _dialect(text)


_TEMPLATES = {
    "its own": "its own",
    "built in": "built in, as the model ships none",
    "none": "none: it continues texts, it does not answer messages",
}


def _dialect(text: TextFacts) -> str:
    if text.dialect == "plain":
        return "reasoning between tags if there is any, no known form of tool calls"
    return f"reasoning and tool calls as {text.dialect} writes them"


def _tensors(found: Inspection) -> None:
    wide = output.width(sys.stdout) >= _WIDE
    headers = ("kind", "type", "tensors", "bytes", "a token")
    rows = [_row(group) for group in found.groups]
    total = sum(group.bytes for group in found.groups)
    count = sum(group.tensors for group in found.groups)
    rows.append(("all", "", f"{count:,}", size_text(total), size_text(round(found.active_bytes))))
    if output.is_narrow():
        output.pairs([(f"{kind} {fmt}".strip(), size) for kind, fmt, _, size, _ in rows])
        return
    kept = (0, 1, 2, 3, 4) if found.index is not None and wide else (0, 1, 2, 3) if wide else (0, 1, 3)
    shown = [tuple(row[column] for column in kept) for row in rows]
    right = [place for place, column in enumerate(kept) if column >= 2]
    output.table(shown, headers=[headers[column] for column in kept], right=right)


def _row(group: Group) -> tuple[str, str, str, str, str]:
    active = size_text(round(group.active_bytes)) if group.role else ""
    return _ROLES[group.role], group.format, f"{group.tensors:,}", size_text(group.bytes), active


def _body(found: Inspection) -> dict[str, Any]:
    index, config, text = found.index, found.config, found.text
    body: dict[str, Any] = {
        "path": str(found.path),
        "kind": found.kind,
        "name": found.name,
        "architecture": found.architecture,
        "family": None if config is None else config.family,
        "files": [os.fspath(file) for file in found.files],
        "file_bytes": found.file_bytes,
        "tensors": [_group(group) for group in found.groups],
        "unused": [_group(group) for group in found.unused],
        "active_bytes": round(found.active_bytes) if index is not None else None,
        "experts_converted": found.converted or None,
    }
    if index is not None:
        body |= {name: getattr(index, name) for name in _INDEX}
    body["text"] = None
    if text is not None:
        body["text"] = {name: getattr(text, name) for name in ("tokens", "embeddings", "bos", "template", "dialect")}
        body["text"] |= {"stops": list(text.stops), "notes": list(text.notes)}
    problems = [p for p in (found.text_problem, found.problem) if p is not None]
    return body | {"notes": list(found.notes), "problems": [_problem(problem) for problem in problems]}


_INDEX = ("n_layers", "hidden_size", "vocab_size", "max_context", "n_experts", "top_k", "kv_elements_per_token")


def _group(group: Group) -> dict[str, Any]:
    body = {"role": group.role, "format": group.format, "tensors": group.tensors, "bytes": group.bytes}
    return body | {"active_bytes": round(group.active_bytes) if group.role else None}


def _problem(problem: HeteroError) -> dict[str, Any]:
    return {"code": problem.code, "message": wording.one_line(problem.message), "hint": problem.hint}
