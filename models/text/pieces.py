"""What bytes a token id stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Literal

from hetero.models.text.thinking import TAGS

Style = Literal["byte-level", "spm", "words"]
"""How a vocabulary writes bytes: GPT-2's visible characters, SentencePiece's `▁` and `<0xXX>`, or whole words."""

SPACE_MARK = "▁"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@lru_cache(maxsize=1)
def byte_characters() -> dict[str, int]:
    """GPT-2's table: the visible character that stands for each byte, as character -> byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in visible}
    hidden = (byte for byte in range(256) if byte not in set(visible))
    table.update({chr(256 + index): byte for index, byte in enumerate(hidden)})
    return table


class Pieces:
    """The bytes of every token id, worked out on first use.

    `token_of(id)` is the vocabulary's own text or None; `added` maps ids that are matched as a whole in any text
    to whether they are special (hidden from decoded text). With `strip_first` the first piece of a text
    loses one leading space, which the encoder had put there.
    """

    def __init__(
        self, token_of: Callable[[int], str | None], style: Style, added: Mapping[int, bool], strip_first: bool
    ) -> None:
        self.token_of = token_of
        self.style = style
        self.added = added
        self.strip_first = strip_first
        self._shown = frozenset(tag for pair in TAGS for tag in pair)
        self._cache: dict[int, bytes] = {}

    def show(self, marks: Iterable[str]) -> None:
        """Shows these tokens in decoded text although they are special: the answer's parser needs them."""
        self._shown |= frozenset(marks)

    def texts(self) -> list[str]:
        """The tokens that are matched as a whole."""
        return [text for token in self.added if (text := self.token_of(token)) is not None]

    def is_special(self, token: int) -> bool:
        """Whether decoded text leaves the token out. Thinking tags are always shown: the splitter needs them."""
        return self.added.get(token, False) and self.token_of(token) not in self._shown

    def bytes_of(self, token: int) -> bytes:
        """The bytes of one token, b"" for an id outside the vocabulary."""
        found = self._cache.get(token)
        if found is None:
            found = self._cache[token] = self._spell(token)
        return found

    def _spell(self, token: int) -> bytes:
        text = self.token_of(token)
        if text is None:
            return b""
        if token in self.added:
            return text.encode("utf-8", "replace")
        if self.style == "words":
            return b" " + text.encode("utf-8", "replace")
        if self.style == "spm":
            byte = BYTE_TOKEN.fullmatch(text)
            if byte:
                return bytes([int(byte[1], 16)])
            return text.replace(SPACE_MARK, " ").encode("utf-8", "replace")
        table = byte_characters()
        if all(char in table for char in text):
            return bytes(table[char] for char in text)
        return text.encode("utf-8", "replace")
