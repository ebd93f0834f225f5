"""Text to token ids and back, whatever file the vocabulary came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hetero.machine.types import ModelError
from hetero.models.text.decoding import IncrementalDecoder
from hetero.models.text.pieces import Pieces


@dataclass(frozen=True, slots=True)
class Edges:
    """The tokens that begin and end a text, and whether `encode(add_special=True)` puts them there."""

    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False


class Tokenizer:
    """Encodes and decodes text.

    Special tokens written out in a text are recognised as such, also when a user typed them: that is what the
    rendered chat template needs and what llama.cpp and transformers do.
    """

    def __init__(self, encoder: Callable[[str], list[int]], pieces: Pieces, edges: Edges, id_limit: int) -> None:
        self._encoder = encoder
        self._id_limit = id_limit
        self.pieces = pieces
        self.edges = edges

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if the vocabulary has one."""
        return self.edges.bos_id

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text, if the vocabulary has one."""
        return self.edges.eos_id

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Token ids of `text`; `add_special` adds the begin and end tokens that the model asks for.

        Raises ModelError where the vocabulary gives an id for which the model has no embedding.
        """
        clean = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates have no bytes
        ids = self._encoder(clean) if clean else []
        edges = self.edges
        if add_special and edges.add_bos and edges.bos_id is not None:
            ids = [edges.bos_id, *ids]
        if add_special and edges.add_eos and edges.eos_id is not None:
            ids = [*ids, edges.eos_id]
        if ids and max(ids) >= self._id_limit:
            worst = max(ids)
            raise ModelError(
                f"the tokenizer gives id {worst} ({self.token(worst)!r}) but the model has {self._id_limit} embeddings",
                "the tokenizer's files belong to another model; get them again from the model's page",
            )
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Text of `ids`: the same as what a decoder yields token by token, a cut character at the end dropped."""
        decoder = self.decoder(skip_special)
        return "".join([decoder.push(token) for token in ids]) + decoder.finish()

    def decoder(self, skip_special: bool = True) -> IncrementalDecoder:
        """A fresh decoder for one stream of tokens."""
        return IncrementalDecoder(self.pieces, skip_special)

    def token(self, token: int) -> str:
        """The vocabulary's own spelling of an id, "" for an id that it lacks."""
        return self.pieces.token_of(token) or ""
