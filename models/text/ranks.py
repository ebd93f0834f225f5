"""Byte-pair encoding by ranks, from the `tiktoken.model` file of Kimi's directories.

A rank file has a line for every token: its bytes in base64 and its rank, which is also its id. Within a word the pair
of neighbours whose joined bytes have the lowest rank merges first, the leftmost of equals.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Regex, pre_tokenizers

from hetero.machine.types import ModelError
from hetero.models.text.bpe_gguf import pretokenizer
from hetero.models.text.pieces import byte_characters

RANK_FILE = "tiktoken.model"
RESERVED = 256
"""Ids after the ranks that Kimi's tokenizer keeps for special tokens, named by it where the settings do not."""
_MAX_BYTES = 256 << 20
_WORDS_KEPT = 65536
_LONGEST_KEPT = 64
_HINT = "download the file again"


def read_ranks(path: Path) -> dict[bytes, int]:
    """Token bytes -> rank, which are 0 to n-1. Raises ModelError naming the line that is wrong."""
    ranks: dict[bytes, int] = {}
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelError(f"{path}: has {path.stat().st_size} bytes, more than any vocabulary", _HINT)
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})", _HINT) from error
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields:
            continue
        try:
            token = base64.b64decode(fields[0], validate=True)
            rank = int(fields[1])
        except (binascii.Error, ValueError, IndexError):
            raise ModelError(f"{path}: line {number} is {line[:40]!r}; expected a token and its rank", _HINT) from None
        if not token or rank != len(ranks) or token in ranks:
            raise ModelError(f"{path}: line {number} has the rank {rank}; expected {len(ranks)} and a new token", _HINT)
        ranks[token] = rank
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise ModelError(f"{path}: lacks a token for one of the 256 bytes", _HINT)
    return ranks


def special_tokens(settings: Mapping[str, Any], first: int, where: Path) -> dict[int, str]:
    """Special tokens by id: `added_tokens_decoder` of tokenizer_config.json, and names for the reserved ones."""
    found = {token: f"<|reserved_token_{token}|>" for token in range(first, first + RESERVED)}
    added = settings.get("added_tokens_decoder")
    for key, entry in added.items() if isinstance(added, Mapping) else ():
        text = entry.get("content") if isinstance(entry, Mapping) else None
        if not str(key).isdigit() or not isinstance(text, str) or not text:
            raise ModelError(f"{where}: added_tokens_decoder has {str(key)[:40]!r} without a text", _HINT)
        if int(key) not in found:
            raise ModelError(
                f"{where}: added_tokens_decoder has the id {key}; expected {first} to {first + RESERVED - 1}", _HINT
            )
        found[int(key)] = text
    if len(set(found.values())) != len(found):
        raise ModelError(f"{where}: added_tokens_decoder gives two ids the same text", _HINT)
    return found


class RankEncoder:
    """Encodes text by ranks. Texts of `special` tokens are found first and taken whole."""

    def __init__(self, ranks: Mapping[bytes, int], special: Mapping[int, str]) -> None:
        self._ranks = ranks
        self._special = {text: token for token, text in special.items()}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._whole = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        (pattern,) = pretokenizer("kimi-k2").patterns
        self._words = pre_tokenizers.Split(Regex(pattern), "isolated")
        self._word = lru_cache(maxsize=_WORDS_KEPT)(self._merge)

    def __call__(self, text: str) -> list[int]:
        """Token ids of `text`, without begin and end tokens."""
        output: list[int] = []
        for index, part in enumerate(self._whole.split(text)):
            if index % 2:
                output.append(self._special[part])
            elif part:
                for word, _ in self._words.pre_tokenize_str(part):
                    data = word.encode("utf-8")
                    output += self._word(data) if len(data) <= _LONGEST_KEPT else self._merge(data)
        return output

    def _merge(self, word: bytes) -> tuple[int, ...]:
        whole = self._ranks.get(word)
        if whole is not None:
            return (whole,)
        return merge(word, self._ranks)


def merge(word: bytes, ranks: Mapping[bytes, int]) -> tuple[int, ...]:
    """The tokens of one word: neighbours merge, the lowest rank first, the leftmost of equals."""
    parts = [word[i : i + 1] for i in range(len(word))]
    before, after = list(range(-1, len(parts) - 1)), [*range(1, len(parts)), -1]
    queue: list[tuple[int, int, bytes]] = []

    def offer(left: int, right: int) -> None:
        if left >= 0 and right >= 0:
            joined = parts[left] + parts[right]
            rank = ranks.get(joined)
            if rank is not None:
                heapq.heappush(queue, (rank, left, joined))

    for right in range(1, len(parts)):
        offer(right - 1, right)
    while queue:
        _, left, joined = heapq.heappop(queue)
        right = after[left]
        if right < 0 or not parts[left] or parts[left] + parts[right] != joined:
            continue
        parts[left], parts[right] = joined, b""
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        offer(before[left], left)
        offer(left, after[left])
    return tuple(ranks[part] for part in parts if part)


def visible_tokens(ranks: Mapping[bytes, int], special: Mapping[int, str]) -> dict[int, str]:
    """Every token's text by id, bytes written in GPT-2's visible characters."""
    characters = {byte: char for char, byte in byte_characters().items()}
    texts = {rank: "".join(characters[byte] for byte in token) for token, rank in ranks.items()}
    return texts | dict(special)
