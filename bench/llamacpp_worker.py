"""llama.cpp on one GGUF file, for bench.peers: python -m bench.llamacpp_worker MODEL --threads N

Runs in a virtual environment of its own that holds PyPI's llama-cpp-python, built for this CPU.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import llama_cpp
import numpy as np

from bench.worker import serve

_UBATCH = 512
"""llama.cpp's own default: prompt tokens that are computed at once."""


class LlamaCpp:
    """A loaded model and a context, driven by llama.cpp's C interface as llama-bench drives it."""

    def __init__(self, path: str, context: int, threads: int) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = context
        params.n_ubatch = min(_UBATCH, context)
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def prefill(self, ids: list[int]) -> float:
        """Seconds to read a prompt into an empty context, up to the logits of its last token."""
        self._clear()
        began = time.perf_counter()
        self._eval(ids, 0)
        return time.perf_counter() - began

    def decode(self, ids: list[int], tokens: int) -> float:
        """Seconds to write `tokens` greedy tokens after the prompt `ids`."""
        self._clear()
        self._eval(ids, 0)
        token = self._best()
        began = time.perf_counter()
        for position in range(len(ids), len(ids) + tokens):
            self._eval([token], position)
            token = self._best()
        return time.perf_counter() - began

    def about(self) -> dict[str, Any]:
        """Name and version of what is measured."""
        return {"name": "llama.cpp", "version": f"llama-cpp-python {llama_cpp.__version__}"}

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def _eval(self, ids: list[int], past: int) -> None:
        """Evaluate `ids` at positions past.., keeping the logits of the last one."""
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, past + i, 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == len(ids) - 1
        code = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_synchronize(self._context)
        llama_cpp.llama_batch_free(batch)
        if code != 0:
            raise SystemExit(f"llama_decode failed with code {code}")

    def _best(self) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab,)).argmax())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    args = parser.parse_args()
    engine = LlamaCpp(args.model, args.context, args.threads)
    serve({"prefill": engine.prefill, "decode": engine.decode, "about": engine.about})


if __name__ == "__main__":
    main()
