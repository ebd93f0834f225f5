"""llama.cpp's logits on the same GGUF file, through the C functions that the `xllamacpp` package exports."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.models.text.oracle import library as vocabulary_library

Floats = npt.NDArray[np.float32]
_LARGE = 512  # bytes; larger than any version's parameter structs, which passing on the stack allows


class _ContextParams(ctypes.Structure):
    """`llama_context_params`: its first three fields, the rest by size only."""

    _fields_ = [
        ("n_ctx", ctypes.c_uint32),
        ("n_batch", ctypes.c_uint32),
        ("n_ubatch", ctypes.c_uint32),
        ("rest", ctypes.c_ubyte * (_LARGE - 12)),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def _float_attention(params: _ContextParams) -> None:
    """Attention in float32: flash attention off (it works in half precision), type_k and type_v F32 instead of F16.

    The four enums before are all "automatic" (-1), flash attention being the last; the types follow two null callbacks.
    """
    raw = bytes(params.rest)
    automatic, types = b"\xff" * 16, bytes(16) + b"\1\0\0\0\1\0\0\0"
    at = {pattern: raw.find(pattern) for pattern in (automatic, types)}
    if any(where < 0 or raw.find(pattern, where + 1) >= 0 for pattern, where in at.items()):
        pytest.skip("LLAMA.CPP NOT COMPARED: this xllamacpp lays its parameters out in a way the test does not know")
    for i in range(4):
        params.rest[at[automatic] + 12 + i] = params.rest[at[types] + 16 + i] = params.rest[at[types] + 20 + i] = 0


def _library() -> Any:
    library = vocabulary_library()
    library.llama_context_default_params.restype = _ContextParams
    library.llama_init_from_model.restype = ctypes.c_void_p
    library.llama_init_from_model.argtypes = [ctypes.c_void_p, _ContextParams]
    library.llama_set_n_threads.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32]
    library.llama_batch_init.restype = _Batch
    library.llama_decode.argtypes = [ctypes.c_void_p, _Batch]
    library.llama_batch_free.argtypes = [_Batch]
    library.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    library.llama_get_logits_ith.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    library.llama_get_memory.restype = ctypes.c_void_p
    library.llama_get_memory.argtypes = [ctypes.c_void_p]
    library.llama_memory_clear.argtypes = [ctypes.c_void_p, ctypes.c_bool]
    library.llama_free.argtypes = [ctypes.c_void_p]
    return library


class LlamaCpp:
    """One GGUF file in llama.cpp, weights as its CPU backend takes them.

    Attention is in float32 throughout, or in the half precision that is llama.cpp's default.
    """

    def __init__(self, path: Path, context: int = 1024, float_attention: bool = True, threads: int = 2) -> None:
        self._library = library = _library()
        self._model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
        assert self._model, f"llama.cpp does not load {path}"
        params = library.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = context
        if float_attention:
            _float_attention(params)
        self._context = library.llama_init_from_model(self._model, params)
        library.llama_set_n_threads(self._context, threads, threads)
        self.vocab = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))

    def logits(self, ids: list[int]) -> Floats:
        """float32 [T, vocab]: the logits that follow each of `ids`."""
        self._clear()
        self._decode(ids, 0)
        return np.stack([self._row(i) for i in range(len(ids))])

    def greedy(self, ids: list[int], n: int) -> list[int]:
        """`n` tokens that continue `ids`."""
        self._clear()
        self._decode(ids, 0)
        new = [int(self._row(len(ids) - 1).argmax())]
        while len(new) < n:
            self._decode(new[-1:], len(ids) + len(new) - 1)
            new.append(int(self._row(0).argmax()))
        return new

    def close(self) -> None:
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def _clear(self) -> None:
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)

    def _row(self, i: int) -> Floats:
        pointer = self._library.llama_get_logits_ith(self._context, i)
        return np.ctypeslib.as_array(pointer, shape=(self.vocab,)).copy()

    def _decode(self, ids: list[int], past: int) -> None:
        batch = self._library.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, past + i, 1, 1
            batch.seq_id[i][0] = 0
        code = self._library.llama_decode(self._context, batch)
        self._library.llama_batch_free(batch)
        assert code == 0, f"llama_decode failed with {code}"
