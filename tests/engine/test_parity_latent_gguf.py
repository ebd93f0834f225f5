"""The Kimi and GLM families as GGUF files, in hetero, in llama.cpp and in the reference of the same weights.

llama.cpp is no oracle for Kimi as it is: it does not read YaRN's betas for deepseek2, so Kimi is compared with it under
its own constants and with the reference alone under the model's. It norms the latents with the model's eps, the
reference always with 1e-6, and hetero as either does: GGUF files as llama.cpp.
"""

import numpy as np
import pytest

from tests.engine.gguf_parity import BOUND, greedy, load, prompt
from tests.engine.llamacpp import LlamaCpp
from tests.engine.reference import Choices, hf_logits, relative
from tests.latent_gguf import gguf_of
from tests.tiny import tiny_hf
from tests.tiny_latent import LATENT_FAMILIES

_KIMI_ROPE = LATENT_FAMILIES["kimi_k25"][1]["rope_parameters"]
AS_LLAMA_CPP_HAS_IT = {"kimi_k25": {"rope_parameters": _KIMI_ROPE | {"beta_fast": 32.0, "beta_slow": 1.0}}}


@pytest.fixture(scope="module", params=sorted(LATENT_FAMILIES))
def files(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    directory = tiny_hf(request.param, folder, **AS_LLAMA_CPP_HAS_IT.get(request.param, {}))
    return directory, gguf_of(directory, folder / "model.gguf")


def clear_rows(engine, peer, ids):
    """Largest difference to llama.cpp in deviations, without the rows where an undecided indexer chose otherwise."""
    found, expected = engine.logits(ids), peer.logits(ids)
    distance = np.abs(found - expected).max(1) / expected.std()
    far = distance > BOUND
    assert far.mean() <= (0.02 if engine.model.config.indexer else 0)
    return distance[~far].max()


def test_all_positions_agree_with_the_reference_and_with_llama_cpp(engine, peer, files):
    ids = prompt(200)
    choices = Choices(engine)
    assert relative(engine.logits(ids), hf_logits(files[0], ids, choices)) <= BOUND
    assert clear_rows(engine, peer, ids) <= BOUND


@pytest.mark.parametrize("chunk", [1, 33])
def test_chunks_agree_with_llama_cpp(engine, peer, chunk, monkeypatch):
    monkeypatch.setattr(engine._schedule, "_chunk", chunk)
    assert clear_rows(engine, peer, prompt(90, seed=1)) <= BOUND


def test_greedy_text_of_64_tokens_is_llama_cpps(engine, peer):
    ids = prompt(30, seed=2)
    assert greedy(engine, ids, 64) == peer.greedy(ids, 64)


@pytest.mark.parametrize("betas", ["written", "missing"])
def test_kimis_betas_are_read_or_known_without_llama_cpp(betas, tmp_path):
    sizes = {"n_routed_experts": 384, "num_hidden_layers": 2, "rms_norm_eps": 1e-6}
    directory = tiny_hf("kimi_k25", tmp_path, **sizes)
    path, ids = gguf_of(directory, tmp_path / "model.gguf", betas=betas == "written"), prompt(200)
    expected = hf_logits(directory, ids)
    engine = load(path)
    try:
        assert relative(engine.logits(ids), expected) <= BOUND
    finally:
        engine.close()
    peer = LlamaCpp(path)
    try:
        assert relative(peer.logits(ids), expected) > BOUND, "llama.cpp has it now: compare with it"
    finally:
        peer.close()
