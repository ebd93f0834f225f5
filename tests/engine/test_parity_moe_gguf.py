"""Mixtral and the families after it as GGUF files, in hetero, in llama.cpp and in the reference of the same weights.

llama.cpp is an oracle where the file says all that it needs: it rounds gpt-oss's YaRN range, does not clip OLMoE's q, k
and v, and has Llama 4's chunk, floor and temperature as constants, so those models are compared without them (or with
its constants), and with the reference alone as they are.
"""

import pytest

from tests.engine.gguf_parity import BOUND, greedy, load, prompt
from tests.engine.llamacpp import LlamaCpp
from tests.engine.reference import hf_logits, relative
from tests.moe_gguf import gguf_of
from tests.tiny import tiny_hf
from tests.tiny_moe import MOE_FAMILIES

_LLAMA4 = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1}
AS_LLAMA_CPP_HAS_IT = {
    "olmoe": {"clip_qkv": None},
    "gpt_oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}},
    "llama4": _LLAMA4,
    "llama4_maverick": _LLAMA4 | {"num_local_experts": 128},  # by which llama.cpp tells that there is no q/k norm
}


@pytest.fixture(scope="module", params=sorted(MOE_FAMILIES))
def files(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    directory = tiny_hf(request.param, folder, **AS_LLAMA_CPP_HAS_IT.get(request.param, {}))
    return directory, gguf_of(directory, folder / "model.gguf")


def test_all_positions_agree_with_the_reference_and_with_llama_cpp(engine, peer, files):
    ids = prompt(200)
    found = engine.logits(ids)
    assert relative(found, hf_logits(files[0], ids)) <= BOUND
    assert relative(found, peer.logits(ids)) <= BOUND


@pytest.mark.parametrize("chunk", [1, 33])
def test_chunks_agree_with_llama_cpp(engine, peer, chunk, monkeypatch):
    ids = prompt(90, seed=1)
    monkeypatch.setattr(engine._schedule, "_chunk", chunk)
    assert relative(engine.logits(ids), peer.logits(ids)) <= BOUND


def test_greedy_text_of_64_tokens_is_llama_cpps(engine, peer):
    ids = prompt(30, seed=2)
    assert greedy(engine, ids, 64) == peer.greedy(ids, 64)


@pytest.mark.parametrize("family", ["olmoe", "gpt_oss"])
def test_what_llama_cpp_lacks_is_read_from_gguf_all_the_same(family, tmp_path):
    directory = tiny_hf(family, tmp_path)
    path, ids = gguf_of(directory, tmp_path / "model.gguf"), prompt(200)
    engine = load(path)
    try:
        assert relative(engine.logits(ids), hf_logits(directory, ids)) <= BOUND
    finally:
        engine.close()
    peer = LlamaCpp(path)
    try:
        assert relative(peer.logits(ids), hf_logits(directory, ids)) > BOUND, "llama.cpp has it now: compare with it"
    finally:
        peer.close()
