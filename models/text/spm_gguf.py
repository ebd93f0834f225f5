"""SentencePiece-style BPE by scores from a GGUF file's metadata: adjacent symbols merge, the best score first."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from hetero.machine.types import ModelError
from hetero.models.text.pieces import SPACE_MARK

_WORDS_KEPT = 65536
_LONGEST_KEPT = 64


class SpmEncoder:
    """Encodes text as llama.cpp does for `tokenizer.ggml.model = llama`.

    `tokens` and `scores` by id; `whole` are ids matched as they stand in any text, each of which also begins a
    new stretch of text that gets a space in front if `add_space_prefix`. Symbols that are no token become the tokens
    of their bytes, or `unknown` where there are none.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        scores: Sequence[float],
        whole: Sequence[int],
        add_space_prefix: bool,
        unknown: int | None,
    ) -> None:
        if len(scores) < len(tokens):
            raise ModelError(
                f"the GGUF file's vocabulary has {len(tokens)} tokens but {len(scores)} scores",
                "the file is damaged or incomplete; download it again",
            )
        self._ids: Mapping[str, int] = {text: token for token, text in enumerate(tokens)}
        self._scores = scores
        self._add_space = add_space_prefix
        self._bytes = [self._ids.get(f"<0x{byte:02X}>", unknown) for byte in range(256)]
        texts = sorted((tokens[token] for token in whole if tokens[token]), key=len, reverse=True)
        self._whole = re.compile("(" + "|".join(map(re.escape, texts)) + ")") if texts else None
        # where no token has a space inside, merges never cross the beginning of a word and words can be remembered
        crosses = any(SPACE_MARK in text.lstrip(SPACE_MARK) for text in tokens)
        self._words = None if crosses else re.compile(f"{SPACE_MARK}*[^{SPACE_MARK}]*")
        self._word = lru_cache(maxsize=_WORDS_KEPT)(self._merge)

    def __call__(self, text: str) -> list[int]:
        """Token ids of `text`, without begin and end tokens."""
        output: list[int] = []
        after_whole = True
        for index, part in enumerate(self._whole.split(text) if self._whole else [text]):
            if index % 2:
                output.append(self._ids[part])
                after_whole = True
            elif part:
                output += self._encode_plain(" " + part if self._add_space and after_whole else part)
                after_whole = False
        return output

    def _encode_plain(self, text: str) -> list[int]:
        marked = text.replace(" ", SPACE_MARK)
        if self._words is None:
            return list(self._merge(marked))
        words = (word for word in self._words.findall(marked) if word)
        found = (self._word(word) if len(word) <= _LONGEST_KEPT else self._merge(word) for word in words)
        return [token for tokens in found for token in tokens]

    def _merge(self, text: str) -> tuple[int, ...]:
        """Merges neighbours until no pair is a token: highest score first, leftmost of equals."""
        symbols = list(text)
        before = list(range(-1, len(symbols) - 1))
        after = [*range(1, len(symbols)), -1]
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left < 0 or right < 0:
                return
            joined = symbols[left] + symbols[right]
            token = self._ids.get(joined)
            if token is not None:
                heapq.heappush(queue, (-self._scores[token], left, right, joined))

        for right in range(1, len(symbols)):
            offer(right - 1, right)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != joined:
                continue
            symbols[left], symbols[right] = joined, ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        return tuple(token for symbol in symbols if symbol for token in self._tokens_of(symbol))

    def _tokens_of(self, symbol: str) -> list[int]:
        token = self._ids.get(symbol)
        if token is not None:
            return [token]
        return [found for byte in symbol.encode("utf-8") if (found := self._bytes[byte]) is not None]
