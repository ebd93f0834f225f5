"""Breaking streamed text between words at the edge of the terminal."""

from __future__ import annotations

from rich.cells import cell_len


class WordWrap:
    """Feeds text through in pieces; holds back only the word that is still growing.

    Wide characters (CJK, emoji) may break anywhere, so they are never held back.
    """

    def __init__(self, width: int) -> None:
        self._width = max(width, 8)
        self._column = 0
        self._word = ""

    def feed(self, text: str) -> str:
        """The part of the stream that can be shown now, with line breaks put in."""
        return "".join(self._take(char) for char in text)

    def finish(self) -> str:
        """The word held back, at the end of the stream."""
        return self._flush()

    def _take(self, char: str) -> str:
        if char == "\n":
            out = self._flush() + char
            self._column = 0
            return out
        if char in " \t":
            out = self._flush()
            # A space in the last column would wrap by itself: the next word's line break takes its place.
            if self._column + 1 >= self._width:
                self._column = self._width
                return out
            self._column += 1
            return out + " "
        if cell_len(char) > 1:
            out, self._word = self._flush(), char
            return out + self._flush()
        self._word += char
        return self._flush() if cell_len(self._word) >= self._width else ""

    def _flush(self) -> str:
        word, self._word = self._word, ""
        length = cell_len(word)
        if not word:
            return ""
        if self._column + length > self._width and self._column > 0:
            self._column = length
            return "\n" + word
        self._column += length
        return word
