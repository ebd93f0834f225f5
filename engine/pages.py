"""Which page of the KV cache belongs to whom: allocation, sharing of equal prefixes, eviction. Knows no tensors."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Container
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field

from hetero.machine.types import TierError

PAGE = 64
"""Tokens per device page (DESIGN: device pages are 64 tokens)."""


def page_key(parent: bytes, token_ids: Ids[int]) -> bytes:
    """Identity of a full page: a chained hash over its tokens and all tokens before it."""
    digest = hashlib.blake2b(parent, digest_size=16)
    digest.update(b"".join(int(i).to_bytes(4, "little") for i in token_ids))
    return digest.digest()


@dataclass(slots=True)
class Sequence:
    """One request's place in the cache: its pages in order, the tokens stored, and the keys of its full pages.

    `contiguous`: the pages follow each other, so that the cache can be read as a view instead of a gather. The other
    fields are those of its recurrent states, which lie in `slot` (-1: it has none), and of their checkpoints.
    """

    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    contiguous: bool = True
    slot: int = -1
    anchor: int = 0
    """The position whose checkpoint later requests are likeliest to want: the last page's end in the prompt."""
    rolling: bytes | None = None
    """The latest checkpoint, if the next one may replace it."""
    mark: int = 0
    """The position within this step at which a checkpoint is made in the slot `pending`; 0: none."""
    pending: int = -1

    @property
    def length(self) -> int:
        return len(self.tokens)

    def add_page(self, page: int) -> None:
        self.contiguous = self.contiguous and (not self.pages or page == self.pages[-1] + 1)
        self.pages.append(page)


class PagePool:
    """A fixed number of pages. Invariant: every page is free, cached (content kept, no user) or used."""

    def __init__(self, n_pages: int) -> None:
        self.n_pages = n_pages
        self._free = set(range(n_pages))
        self._cached: OrderedDict[int, bytes] = OrderedDict()
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._users = [0] * n_pages

    @property
    def available(self) -> int:
        """Pages that can be taken now, counting those that only keep content for reuse."""
        return len(self._free) + len(self._cached)

    def open(self, token_ids: Ids[int], reuse: bool, ends: Container[bytes] | None = None) -> Sequence:
        """A sequence that shares the longest cached prefix of `token_ids`; at least one token is left to compute.

        With `ends` sharing stops at the end of a page whose key is one of them.
        """
        sequence, keys = Sequence(), self._cached_keys(token_ids) if reuse else []
        while ends is not None and keys and keys[-1] not in ends:
            keys.pop()
        for key in keys:
            page = self._page_of[key]
            self._cached.pop(page, None)
            self._users[page] += 1
            sequence.add_page(page)
        sequence.tokens.extend(token_ids[: len(keys) * PAGE])
        sequence.keys.extend(keys)
        return sequence

    def _cached_keys(self, token_ids: Ids[int]) -> list[bytes]:
        """Keys of the pages that hold a prefix of `token_ids`, which has at least one token more."""
        keys: list[bytes] = []
        for start in range(0, len(token_ids) - PAGE, PAGE):
            key = page_key(keys[-1] if keys else b"", token_ids[start : start + PAGE])
            if key not in self._page_of:
                break
            keys.append(key)
        return keys

    def reserve(self, sequence: Sequence, length: int) -> bool:
        """Give `sequence` pages for `length` tokens; False, and nothing taken, when there are not enough."""
        missing = -(-length // PAGE) - len(sequence.pages)
        if missing > self.available:
            return False
        for _ in range(missing):
            sequence.add_page(self._take(sequence.pages[-1] if sequence.pages else None))
        return True

    def extend(self, sequence: Sequence, token_ids: Ids[int]) -> None:
        """Record that `token_ids` are now stored; full pages become findable by later requests."""
        sequence.tokens.extend(token_ids)
        for index in range(len(sequence.keys), sequence.length // PAGE):
            parent = sequence.keys[-1] if sequence.keys else b""
            key = page_key(parent, sequence.tokens[index * PAGE : (index + 1) * PAGE])
            sequence.keys.append(key)
            if key not in self._page_of:
                self._page_of[key] = sequence.pages[index]
                self._key_of[sequence.pages[index]] = key

    def truncate(self, sequence: Sequence, length: int) -> tuple[int, int] | None:
        """Forget the tokens from `length` on. A page cut in the middle loses its key, for it will be written again.

        Returns (from, to) when the cut page was shared: its content must be copied to the page that replaces it.
        Raises TierError when there is no page left for that.
        """
        keep = -(-length // PAGE)
        for page in sequence.pages[keep:]:
            self._release(page)
        del sequence.pages[keep:]
        del sequence.tokens[length:]
        del sequence.keys[length // PAGE :]
        if length % PAGE == 0:
            return None
        cut = sequence.pages[-1]
        if self._users[cut] == 1:
            self._forget(cut)
            return None
        if not self.available:
            raise TierError("the KV cache is full", "raise --context")
        sequence.pages[-1] = self._take(None)
        sequence.contiguous = False
        self._users[cut] -= 1
        return cut, sequence.pages[-1]

    def close(self, sequence: Sequence) -> None:
        """Give all pages back; full ones keep their content until the space is needed."""
        for page in reversed(sequence.pages):  # the tail of a chain is evicted before its head
            self._release(page)
        sequence.pages.clear()

    def _take(self, after: int | None) -> int:
        if after is not None and after + 1 in self._free:
            page = after + 1
        elif self._free:
            page = self._longest_run()
        else:
            page, _ = self._cached.popitem(last=False)
            self._forget(page)
            self._free.add(page)
        self._free.remove(page)
        self._users[page] = 1
        return page

    def _longest_run(self) -> int:
        """First page of the longest free run, so that a new sequence can grow in place."""
        best, best_length, start, length = 0, 0, -1, 0
        for page in range(self.n_pages + 1):
            if page in self._free:
                start, length = (page, 1) if not length else (start, length + 1)
            elif length:
                if length > best_length:
                    best, best_length = start, length
                length = 0
        return best

    def _release(self, page: int) -> None:
        self._users[page] -= 1
        if self._users[page]:
            return
        key = self._key_of.get(page)
        if key is None:
            self._free.add(page)
        else:
            self._cached[page] = key

    def _forget(self, page: int) -> None:
        key = self._key_of.pop(page, None)
        if key is not None:
            del self._page_of[key]
