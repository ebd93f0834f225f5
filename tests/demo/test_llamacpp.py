"""llama.cpp loads the bundled model and answers as hetero does."""

from __future__ import annotations

import evaluate
import pytest

from hetero.engine import Engine
from hetero.models import demo

xllamacpp = pytest.importorskip("xllamacpp", reason="llama.cpp comes with the test extra (xllamacpp)")


def test_llama_cpp_gives_the_same_answers(engine: Engine) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = str(demo.path())
    params.n_ctx = 1024
    params.n_parallel = 1
    params.cpuparams.n_threads = 2
    params.warmup = False
    server = xllamacpp.Server(params)
    for question in ("What is a mixture of experts?", "What is 27 + 15?", "How do I convert a model?"):
        messages = [{"role": "user", "content": question}]
        answer = server.handle_chat_completions({"messages": messages, "temperature": 0, "max_tokens": 120})
        assert answer["choices"][0]["message"]["content"] == evaluate.answer(engine, question)
