"""Native calls that are recorded once and then made again in one call, with nothing of Python between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.native.kernels import Kernels, Pool
from hetero.native.library import ffi

_APPEND = "hetero_kv_append"
_FIRST, _PAGES, _N_PAGES = 6, 7, 8
"""Arguments of hetero_kv_append that differ between positions."""
_LENT = ("float[]", "int32_t[]", "int64_t[]", "uint8_t[]")
"""Arrays that belong to numpy; others are the call's own, and the next call may change them."""


class Recording:
    """Listens to calls of `kernels` and keeps what is needed to make them again. `foreign` names one that cannot be."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self.foreign: str | None = None
        self.calls: list[tuple[str, list[int]]] = []
        self.kept: list[Any] = []
        self.attention: list[Any] = []

    def __call__(self, function: str, arguments: tuple[Any, ...]) -> None:
        """Note a call that has just been made."""
        if self._kernels.call_code(function) is None:
            self.foreign = function
            return
        given = (value for value in arguments if not _is_pool(value))
        self.calls.append((function, [self._number(value) for value in given]))

    def _number(self, value: Any) -> int:
        """An argument as the number that stands for it in the list; structs and the call's own arrays are copied."""
        if not isinstance(value, ffi.CData):
            return int(value)
        kind = ffi.typeof(value)
        if kind.kind == "array":
            value = value if kind.cname in _LENT else ffi.new(kind, list(value))
            self.kept.append(value)
        elif kind.kind == "pointer" and kind.item.kind == "struct" and value != ffi.NULL:
            value = ffi.new(kind, value[0])
            self.kept.append(value)
            if kind.item.cname == "hetero_attention_args":
                self.attention.append(value)
        return int(ffi.cast("uintptr_t", value))


class Replay:
    """The calls of a recording of one token; positions and pages are put in anew each time."""

    def __init__(self, kernels: Kernels, pool: Pool, recording: Recording, most_pages: int) -> None:
        self._kernels, self._pool, self._recording = kernels, pool, recording
        self._pages, self._known = np.zeros(most_pages, np.int32), list[int]()
        self.seconds = np.zeros(len(recording.calls))
        """What each call has taken since the array was last cleared, if it was asked for."""
        self._calls: Any = ffi.new("hetero_call[]", len(recording.calls))
        pages = ffi.from_buffer("int32_t[]", self._pages)
        for args in recording.attention:
            args.pages = pages
        self._appends = []
        for call, (function, numbers) in zip(self._calls, recording.calls, strict=True):
            call.function = kernels.call_code(function)
            call.arguments[0 : len(numbers)] = numbers
            if function == _APPEND:
                call.arguments[_PAGES] = int(ffi.cast("uintptr_t", pages))
                self._appends.append(call)

    def run(self, first: int, pages: list[int], *, timed: bool) -> None:
        """Make the calls for a token at position `first` of a sequence with these pages."""
        count = len(pages)
        if pages != self._known:
            self._pages[:count], self._known = pages, pages.copy()
        for args in self._recording.attention:
            args.first, args.n_pages = first, count
        for call in self._appends:
            call.arguments[_FIRST], call.arguments[_N_PAGES] = first, count
        seconds = ffi.from_buffer("double[]", self.seconds) if timed else ffi.NULL
        size = self.seconds.nbytes if timed else 0
        self._kernels.call("hetero_replay", self._pool.native, self._calls, len(self._calls), seconds, size)


def _is_pool(value: Any) -> bool:
    return isinstance(value, ffi.CData) and ffi.typeof(value).cname == "hetero_pool *"
