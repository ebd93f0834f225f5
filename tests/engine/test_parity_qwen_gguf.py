"""The Qwen families as GGUF files: in hetero, in llama.cpp, and in transformers on the weights they were made of."""

import numpy as np
import pytest

from tests.engine.gguf_parity import BOUND, greedy, load, prompt
from tests.engine.llamacpp import LlamaCpp
from tests.engine.reference import hf_logits, relative
from tests.tiny import tiny_hf
from tests.tiny_gguf_qwen import qwen_gguf
from tests.tiny_qwen import QWEN_FAMILIES
from tests.tiny_tokenizer import tokens_and_merges

HYBRIDS = [family for family in QWEN_FAMILIES if family.startswith(("qwen3_next", "qwen3_5"))]


def source(family, folder):
    """A checkpoint as llama.cpp wants it: no padded vocabulary, delta nets with heads of one width, layers alike."""
    changes = {"linear_key_head_dim": 32} if family in HYBRIDS else {}
    changes |= {"mlp_only_layers": []} if family == "qwen2_moe" else {}
    return tiny_hf(family, folder, max_position_embeddings=1024, vocab_size=len(tokens_and_merges()[0]), **changes)


@pytest.fixture(scope="module", params=sorted(QWEN_FAMILIES))
def files(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    directory = source(request.param, folder)
    return directory, qwen_gguf(directory, folder / "model.gguf")


def test_all_positions_agree_with_transformers_and_llama_cpp(engine, peer, files):
    ids = prompt(300)
    found = engine.logits(ids)
    assert relative(found, hf_logits(files[0], ids)) <= BOUND
    assert relative(found, peer.logits(ids)) <= BOUND


@pytest.mark.parametrize("chunk", [1, 33])
def test_chunks_agree_with_llama_cpp(engine, peer, chunk, monkeypatch):
    ids = prompt(70, seed=1)
    monkeypatch.setattr(engine._schedule, "_chunk", chunk)
    assert relative(engine.logits(ids), peer.logits(ids)) <= BOUND


def test_greedy_text_of_64_tokens_is_llama_cpps(engine, peer):
    ids = prompt(90, seed=2)
    assert greedy(engine, ids, 64) == peer.greedy(ids, 64)


def test_files_of_2025_with_a_joint_projection_are_read(tmp_path):
    directory = source("qwen3_next", tmp_path)
    engines = [load(qwen_gguf(directory, tmp_path / f"{fused}.gguf", fused=fused)) for fused in (False, True)]
    ids = prompt(80)
    split, joint = (engine.logits(ids) for engine in engines)
    assert [engine.model.config.delta.fused_qkvz for engine in engines] == [False, True]
    assert relative(joint, split) <= 1e-5
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("family", HYBRIDS)
def test_quantised_files_agree_with_llama_cpp_where_it_is_clear(family, tmp_path):
    path = qwen_gguf(source(family, tmp_path), tmp_path / "model.gguf", type="Q8_0")
    engine, peer = load(path), LlamaCpp(path)
    ids = prompt(100)
    found, expected = engine.logits(ids), peer.logits(ids)
    engine.close()
    peer.close()
    error = np.sqrt(np.square(found - expected).mean()) / expected.std()
    assert error < 0.1, "both round activations, each in its own way"
    top = np.sort(expected, axis=1)
    clear = top[:, -1] - top[:, -2] > 4 * error * expected.std()
    assert clear.sum() > 30
    assert np.array_equal(found.argmax(1)[clear], expected.argmax(1)[clear])
