"""All that a model says about text, in one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hetero.machine.types import UsageError
from hetero.models.text.answers import DIALECTS, Dialect, dialect_of
from hetero.models.text.pieces import Pieces
from hetero.models.text.template import Template
from hetero.models.text.tokenizer import Edges, Tokenizer

_USABLE = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 1 << 31),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 100.0),
}


def recommended(values: Mapping[str, Any]) -> dict[str, float]:
    """The sampling parameters of `values` that can be used; files hold null, text and impossible numbers there too."""
    kinds = (int, float, np.floating)
    numbers = {name: v for name, v in values.items() if isinstance(v, kinds) and not isinstance(v, bool)}
    usable = {name: v for name, v in numbers.items() if _USABLE[name][0] <= v <= _USABLE[name][1]}  # NaN is not
    # a count is a whole number, whatever type the file has for it
    return {name: int(v) if name == "top_k" else float(v) for name, v in usable.items()}


def recognised(template: Template | None, pieces: Pieces) -> Dialect:
    """The model's dialect, whose marks decoded text shows from now on."""
    sources = "" if template is None else "\n".join((template.source, *template.named.values()))
    dialect = dialect_of(sources, set(pieces.texts()))
    pieces.show(dialect.marks)
    return dialect


def odd_ends(pieces: Pieces, edges: Edges, stop_ids: Iterable[int]) -> list[str]:
    """A note for each ordinary word that is said to begin texts or to end answers: files with a wrong id do that."""
    begins = [edges.bos_id] if edges.add_bos and edges.bos_id is not None else []
    notes = []
    for what, ids in (("begins every text", begins), ("ends every answer", sorted(stop_ids))):
        for token in ids:
            text = pieces.token_of(token)
            if text is not None and token not in pieces.added:
                notes.append(f"the token {token} ({text!r}) {what} although it is an ordinary one: the id may be wrong")
    return notes


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation as the model reads it: its token ids and the text that they spell."""

    ids: list[int]
    text: str


@dataclass(frozen=True)
class TextModel:
    """Tokenizer, chat template and what ends an answer. Made by `load_text`."""

    tokenizer: Tokenizer
    template: Template | None
    stop_ids: frozenset[int]
    generation: Mapping[str, float]
    """Sampling that the model's makers recommend: temperature, top_p, top_k, min_p, repetition_penalty, if given."""
    n_tokens: int
    """Ids from here on are padding of the embedding: the sampler must never choose them."""
    dialect: Dialect = DIALECTS["plain"]
    """How the model marks reasoning and tool calls; `dialect.parser` takes an answer apart."""
    notes: tuple[str, ...] = ()
    """What a user should know about how the files were read."""
    _save: Callable[[Path], None] = field(repr=False, kw_only=True)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> Prompt:
        """Renders a conversation and encodes it, with exactly one begin token if the model asks for one.

        Raises UsageError for a model without a template and what `Template.render` raises.
        """
        if self.template is None:
            raise UsageError(
                "this model has no chat template: it continues texts, it does not answer messages",
                "give it plain text to continue, or choose an instruct model",
            )
        text = self.template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, **kwargs)
        ids = self.tokenizer.encode(text)
        edges = self.tokenizer.edges
        if edges.add_bos and edges.bos_id is not None and ids[:1] != [edges.bos_id]:
            ids = [edges.bos_id, *ids]
        return Prompt(ids, text)

    def encode_text(self, text: str) -> Prompt:
        """Encodes a plain text to continue, with the begin token that the model asks for, never two of them."""
        ids = self.tokenizer.encode(text)
        edges = self.tokenizer.edges
        if edges.add_bos and edges.bos_id is not None and ids[:1] != [edges.bos_id]:
            ids = [edges.bos_id, *ids]
        return Prompt(ids, text)

    def save(self, directory: Path) -> None:
        """Writes what `load_text(directory=...)` needs to give the same TextModel."""
        directory.mkdir(parents=True, exist_ok=True)
        self._save(directory)
