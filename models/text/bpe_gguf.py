"""Byte-level BPE from a GGUF file's metadata, built on the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

from hetero.machine.types import ModelError

_DATA = Path(__file__).with_name("pretokenizers.json")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a vocabulary cuts text into words before merging: patterns applied one after the other."""

    name: str
    patterns: tuple[str, ...]
    ignore_merges: bool
    """A word that is a token of its own is taken whole, whatever the merges say."""
    add_bos: bool
    """What the kind does where the file has no `tokenizer.ggml.add_bos_token`."""


@lru_cache(maxsize=1)
def _table() -> dict[str, PreTokenizer]:
    data = json.loads(_DATA.read_text(encoding="utf-8"))
    return {
        name: PreTokenizer(
            name, tuple(data["splits"][kind["split"]]), kind.get("ignore_merges", False), kind.get("add_bos", False)
        )
        for name, kind in data["types"].items()
    }


def known_pretokenizers() -> tuple[str, ...]:
    """The values of `tokenizer.ggml.pre` that are supported."""
    return tuple(_table())


def pretokenizer(name: str) -> PreTokenizer:
    """The kind that a file names in `tokenizer.ggml.pre`; ModelError for an unknown one, never a guess."""
    found = _table().get(name)
    if found is None:
        raise ModelError(
            f"the GGUF file's pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known to this version",
            "a wrong one would spoil every answer unseen; use the model's Hugging Face directory or a newer hetero",
        )
    return found


def build_bpe(
    tokens: Sequence[str], merges: Sequence[str], added: Mapping[int, bool], pre: PreTokenizer
) -> tuple[Tokenizer, int]:
    """A tokenizer of byte-level BPE, and how many merges were left out as they make no token.

    `tokens` by id, `merges` as "left right" in order of rank, `added` ids matched whole in any text (True: special).
    """
    vocab = {text: token for token, text in enumerate(tokens)}
    pairs, dropped = _usable_merges(merges, vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre.ignore_merges))
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    wholes = [AddedToken(tokens[token], normalized=False, special=special) for token, special in added.items()]
    tokenizer.add_special_tokens([token for token in wholes if token.special])
    tokenizer.add_tokens([token for token in wholes if not token.special])
    return tokenizer, dropped


def _usable_merges(merges: Sequence[str], vocab: Mapping[str, int]) -> tuple[list[tuple[str, str]], int]:
    pairs = []
    for merge in merges:
        cut = merge.find(" ", 1)
        left, right = merge[:cut], merge[cut + 1 :]
        if cut > 0 and left in vocab and right in vocab and left + right in vocab:
            pairs.append((left, right))
    return pairs, len(merges) - len(pairs)


def encoder_of(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """`tokenizer.encode` without begin and end tokens, as a plain function."""

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return encode
