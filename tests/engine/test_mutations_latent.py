"""Every term of the families in `tests.tiny_latent` matters: without any one of them the parity bound is broken."""

import numpy as np
import pytest
import torch

from hetero.engine import Engine, selection
from tests.engine.mutations import BOUND, Mutation, part, small, survivors
from tests.engine.reference import Choices, hf_logits, relative
from tests.tiny import tiny_hf
from tests.tiny_latent import LATENT_FAMILIES

COMMON = {
    "input norm": small("input_layernorm.weight", 1),
    "second norm": small("post_attention_layernorm.weight", 1),
    "last norm": small("model.norm.weight", 1),
    "rope": part("rope", theta=2e4),
    "pairs": part("rope", interleaved=False),
    "correction bias": small("e_score_correction_bias", 0),
    "sigmoid": part("moe", scoring="softmax"),
    "renormalisation": part("moe", norm_topk=False),
    "top-k": part("moe", top_k=3),
    "shared expert": part("moe", shared_intermediate_size=0),
}
SCALING = {"scaling": part("moe", scaling=1.0)}
LATENT = COMMON | {
    "norm of the queries' latent": small("q_a_layernorm.weight", 1),
    "norm of the latent": small("kv_a_layernorm.weight", 1),
}
YARN = {
    "YaRN": part("rope", kind="default"),
    "beta_fast": part("rope", beta_fast=8.0),
    "beta_slow": part("rope", beta_slow=0.25),
    "original context": part("rope", original_context=512),
    "factor": part("rope", factor=4.0),
    "mscale of the softmax": part("rope", mscale_all_dim=None, attention_factor=1.0),
    "mscale of the rotation": part("rope", mscale=None),
}
GROUPS = {
    "groups": part("moe", n_group=1),
    "open groups": part("moe", topk_group=3),
    "group score": part("moe", group_score="max"),
}
INDEXER = {
    "selection": part("indexer", top_k=1024),
    "its size": part("indexer", top_k=47),
    "norm of the keys": small("indexer.k_norm.weight", 1),
    "bias of that norm": small("indexer.k_norm.bias", 0),
}
ATTENTION = {f"{name} bias": small(f"{name}_proj.bias", 0) for name in ("q", "k", "v")}
GROUPED = {name: mutate for name, mutate in COMMON.items() if name != "pairs"} | ATTENTION
GROUPED |= {"halves": part("rope", interleaved=True), "partial rope": part("rope", dim=32)}
MUTATIONS: dict[str, dict[str, Mutation]] = {
    "kimi_k25": LATENT | SCALING | YARN,
    "glm4_moe": GROUPED | SCALING | {"q norm": small("q_norm.weight", 1), "k norm": small("k_norm.weight", 1)},
    "glm4_moe_air": GROUPED,
    "glm4_moe_lite": LATENT | SCALING,
    "deepseek_v32": LATENT
    | SCALING
    | YARN
    | {"beta_fast": part("rope", beta_fast=1.2)}
    | GROUPS
    | INDEXER
    | {"its halves": part("indexer", interleaved=True)},
    "glm_moe_dsa": LATENT | SCALING | INDEXER | {"its pairs": part("indexer", interleaved=False)},
    "glm_moe_dsa_shared": LATENT | SCALING | INDEXER | {"which share": part("indexer", layers=(0,))},
}


@pytest.fixture(scope="module", params=sorted(MUTATIONS))
def case(request, tmp_path_factory):
    directory = tiny_hf(request.param, tmp_path_factory.mktemp(request.param))
    ids = np.random.default_rng(3).integers(0, 400, 100).tolist()
    whole = Engine.load(directory, device="cpu", threads=2, context=256, kv_dtype="f32")
    choices = Choices(whole)
    found = whole.logits(ids)
    expected = hf_logits(directory, ids, choices)
    assert relative(found, expected) <= BOUND
    yield request.param, whole, ids, expected
    whole.close()


def test_without_any_one_term_the_bound_is_broken(case):
    family, whole, ids, expected = case
    assert not survivors(whole, MUTATIONS[family], ids, expected)


def without_relu(q, weights, keys):
    return ((q @ keys.T) * weights[..., None]).sum(1)


def without_weights(q, weights, keys):
    return (q @ keys.T).relu().sum(1)


def first_positions(q, weights, keys):
    return -torch.arange(len(keys), dtype=torch.float32).repeat(len(q), 1)


@pytest.mark.parametrize("rank", [without_relu, without_weights, first_positions])
def test_without_any_one_term_of_the_scores_the_bound_is_broken(case, rank, monkeypatch):
    _, whole, ids, expected = case
    monkeypatch.setattr(selection, "rank", rank)
    assert (relative(whole.logits(ids), expected) > BOUND) == (whole.model.config.indexer is not None)


def test_every_family_is_mutated():
    assert set(MUTATIONS) == set(LATENT_FAMILIES)
