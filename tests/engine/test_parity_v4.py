"""DeepSeek-V4 as a GGUF file, in hetero, in llama.cpp and in transformers; and what each of its terms is worth."""

from dataclasses import replace

import pytest
import torch

from hetero.engine.owners import NativeOwner
from hetero.models import compressed, hyper
from hetero.models.families import deepseek_v4
from tests.engine.gguf_parity import BOUND, greedy, load, prompt
from tests.engine.mutations import bank, part, small, survivors
from tests.engine.reference import hf_logits, relative
from tests.tiny import tiny_hf
from tests.v4_gguf import v4_gguf

AS_LLAMA_CPP_HAS_IT = {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}}
"""Rates that it has as constants."""
AS_LLAMA_CPP_HAS_IT |= {"index_head_dim": 64}
"""It rotates the keys of indexers by Hadamard matrices of 64 or more."""


MUTATIONS = {
    "input norm": small("input_layernorm.weight", 1),
    "second norm": small("post_attention_layernorm.weight", 1),
    "last norm": small("model.norm.weight", 1),
    "norm of the queries' latent": small("q_a_layernorm.weight", 1),
    "norm of keys": small("kv_a_layernorm.weight", 1),
    "norm of entries": small("self_attn.compressor.kv_norm.weight", 1),
    "bias by the place in a run": small("self_attn.compressor.position_bias", 0),
    "sinks": small("sinks", -100),
    "window": part("compressed", window=25),
    "rope": part("rope", theta=2e4),
    "width of the rope": part("rope", dim=4),
    "base of the second rope": lambda model: entries_rope(model, theta=8e4),
    "YaRN": lambda model: entries_rope(model, kind="default"),
    "beta_fast": lambda model: entries_rope(model, beta_fast=0.05),
    "beta_slow": lambda model: entries_rope(model, beta_slow=0.05),
    "original context": lambda model: entries_rope(model, original_context=512),
    "factor": lambda model: entries_rope(model, factor=4.0),
    "no temperature": lambda model: entries_rope(model, attention_factor=None),
    "choice": part("indexer", top_k=1024),
    "its size": part("indexer", top_k=11),
    "norm of the indexer's keys": small("indexer.compressor.kv_norm.weight", 1),
    "bias of the indexer's keys": small("indexer.compressor.position_bias", 0),
    "base of the connections": small("_hc.base", 0),
    "their scale": small("_hc.scale", 1),
    "base of the last ones": small("hc_head.base", 0),
    "scale of the last ones": small("hc_head.scale", 1),
    "Sinkhorn's iterations": part("hyper", iterations=1),
    "correction bias": small("e_score_correction_bias", 0),
    "root of softplus": part("moe", scoring="sigmoid"),
    "renormalisation": part("moe", norm_topk=False),
    "scaling": part("moe", scaling=1.0),
    "top-k": part("moe", top_k=3),
    "experts by token": small("tid2eid", 1),
    "clamped experts": bank(activation="silu"),
}


def entries_rope(model, **changes):
    rope = replace(model.config.compressed.rope, **changes)
    return part("compressed", rope=rope)(model)


def without_relu(q, weights, keys):
    return ((q @ keys.T) * weights[..., None]).sum(1)


def without_weights(q, weights, keys):
    return (q @ keys.T).relu().sum(1)


def own_run_only(self, kept, rows):
    """The sums without the run before, as if each were the first."""
    tail, n = kept.states[self.prefix + "tail"], len(rows)
    rows = torch.cat([tail.view(len(tail), 2, -1), rows])
    tail.copy_(rows[n:].flatten(1))
    first, last = kept.first // self.rate, (kept.first + n) // self.rate
    start = len(rows) - n + first * self.rate - kept.first
    runs = self._run(rows, start, last - first)[..., -self.dim :]
    vectors, logits = runs.unbind(2)
    return (vectors * logits.softmax(1)).sum(1)


CODE = {
    "norm of queries": (compressed, "unit", lambda x, eps: x),
    "norm of the streams": (hyper, "unit", lambda x, eps: x),
    "rows and columns": (NativeOwner, "balanced", lambda self, x, _: x.softmax(-1)),
    "direction of the mix": (deepseek_v4, "widen", lambda s, out, spread, mix: hyper.widen(s, out, spread, mix.mT)),
    "output turned back": (compressed, "turn_back", lambda x, cos, sin: x),
    "the run before": (compressed.Compressor, "sums", own_run_only),
    "relu of the scores": (compressed, "rank", without_relu),
    "weights of the scores": (compressed, "rank", without_weights),
    "weights of experts by token": (deepseek_v4, "weigh", lambda logits, ids, moe: torch.full(ids.shape, 0.375)),
    "clamped shared expert": (deepseek_v4, "LIMIT", 1e9),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("v4")
    directory = tiny_hf("deepseek_v4", folder, **AS_LLAMA_CPP_HAS_IT)
    return directory, v4_gguf(directory, folder / "model.gguf")


def test_all_positions_agree_with_the_reference_and_with_llama_cpp(engine, peer, files):
    ids = prompt(200)
    found = engine.logits(ids)
    assert relative(found, hf_logits(files[0], ids)) <= BOUND
    assert relative(found, peer.logits(ids)) <= BOUND


@pytest.mark.parametrize("chunk", [1, 33])
def test_chunks_agree_with_llama_cpp(engine, peer, chunk, monkeypatch):
    ids = prompt(140, seed=1)
    monkeypatch.setattr(engine._schedule, "_chunk", chunk)
    assert relative(engine.logits(ids), peer.logits(ids)) <= BOUND


def test_greedy_text_of_64_tokens_is_llama_cpps(engine, peer):
    ids = prompt(100, seed=2)
    assert greedy(engine, ids, 64) == peer.greedy(ids, 64)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    directory = tiny_hf("deepseek_v4", tmp_path_factory.mktemp("v4_hf"))
    whole, ids = load(directory), prompt(100, seed=3)
    expected = hf_logits(directory, ids)
    assert relative(whole.logits(ids), expected) <= BOUND
    yield whole, ids, expected
    whole.close()


def test_without_any_one_term_the_bound_is_broken(case):
    whole, ids, expected = case
    assert not survivors(whole, MUTATIONS, ids, expected)


@pytest.mark.parametrize("name", CODE)
def test_without_any_one_step_the_bound_is_broken(case, name, monkeypatch):
    whole, ids, expected = case
    monkeypatch.setattr(*CODE[name])
    assert relative(whole.logits(ids), expected) > BOUND
