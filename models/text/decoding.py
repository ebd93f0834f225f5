"""Token ids back to text, one at a time, without ever cutting a character in two."""

from __future__ import annotations

import codecs

from hetero.models.text.pieces import Pieces


class IncrementalDecoder:
    """Turns a stream of token ids into text.

    The pieces that `push` returns, joined, are the bytes of all tokens decoded once as UTF-8: bytes of an
    unfinished character are held back until it is complete, bytes that can belong to no character become U+FFFD.
    """

    def __init__(self, pieces: Pieces, skip_special: bool = True) -> None:
        self._pieces = pieces
        self._skip_special = skip_special
        self._at_start = pieces.strip_first
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that became certain with this token; often "" in the middle of a character."""
        if self._skip_special and self._pieces.is_special(token):
            return ""
        data = self._pieces.bytes_of(token)
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def finish(self) -> str:
        """Ends the text. A character cut off by the end is dropped, so there is nothing left to say."""
        self._utf8.reset()
        self._at_start = self._pieces.strip_first
        return ""
