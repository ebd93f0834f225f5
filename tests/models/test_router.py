"""The shared router, in torch and natively, against float64 formulae written down again here."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from hetero.models.config import MoeConfig
from hetero.models.router import route
from hetero.native import Kernels, Pool, cpu_tiers
from hetero.native.prepared import PreparedRouter

TIERS = [t.name for t in cpu_tiers() if t.built and t.usable]


def native(tier):
    """`route` by the kernels of a tier."""

    def run(logits, moe, bias):
        kernels = Kernels(tier)
        tokens = logits.shape[0]
        ids, weights = torch.empty(tokens, moe.top_k, dtype=torch.int32), torch.empty(tokens, moe.top_k)
        router = PreparedRouter(
            kernels, moe.n_experts, moe.top_k, sigmoid=moe.scoring == "sigmoid", norm_topk=moe.norm_topk,
            n_group=moe.n_group, topk_group=moe.topk_group, group_top2=moe.group_score == "top2",
            scaling=moe.scaling, bias=0 if bias is None else bias.data_ptr(),
        )  # fmt: skip
        with Pool([0, 1], kernels) as pool:
            router(pool, tokens, logits.data_ptr(), ids.data_ptr(), weights.data_ptr())
        return ids, weights

    return run


@pytest.fixture(params=["torch", *TIERS])
def choose(request):
    return route if request.param == "torch" else native(request.param)


def reference(logits, moe, bias):
    """Ids (set) and weights by expert of one token, in float64, straight from the papers' formulae."""
    x = logits.astype(np.float64)
    if moe.scoring == "sigmoid":
        scores = 1 / (1 + np.exp(-x))
    else:
        scores = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    choice = scores + (0 if bias is None else bias.astype(np.float64))
    size = len(x) // moe.n_group
    groups = choice.reshape(moe.n_group, size)
    value = groups.max(1) if moe.group_score == "max" else np.sort(groups, 1)[:, -2:].sum(1)
    opened = np.argsort(-value, kind="stable")[: moe.topk_group]
    allowed = np.isin(np.arange(len(x)) // size, opened)
    order = [e for e in np.argsort(-choice, kind="stable") if allowed[e]][: moe.top_k]
    weights = scores[order]
    if moe.norm_topk:
        weights = weights / weights.sum()
    return dict(zip(order, weights * moe.scaling, strict=True))


GRID = list(itertools.product(["softmax", "sigmoid"], [None, 0.0, 12.0, 35.0, -3.0], [True, False], [1.0, 2.5], [1, 4]))


@pytest.mark.parametrize(("scoring", "offset", "norm", "scaling", "groups"), GRID)
def test_choice_and_weights_equal_the_formulae(choose, scoring, offset, norm, scaling, groups):
    rng = np.random.default_rng(0)
    moe = MoeConfig(
        n_experts=16, top_k=4, intermediate_size=1, scoring=scoring, norm_topk=norm, scaling=scaling,
        n_group=groups, topk_group=min(2, groups), group_score="top2" if scoring == "sigmoid" else "max",
    )  # fmt: skip
    logits = rng.uniform(-6, 6, (64, 16)).astype(np.float32)
    bias = None if offset is None else (offset + rng.normal(0, 0.3, 16)).astype(np.float32)
    ids, weights = choose(torch.from_numpy(logits), moe, None if bias is None else torch.from_numpy(bias))
    assert ids.dtype == torch.int32
    assert weights.dtype == torch.float32
    for row in range(len(logits)):
        expected = reference(logits[row], moe, bias)
        if set(ids[row].tolist()) != set(expected):
            everything = reference(logits[row], replace(moe, top_k=16, topk_group=moe.n_group, norm_topk=False), bias)
            (found,), (right,) = set(ids[row].tolist()) - set(expected), set(expected) - set(ids[row].tolist())
            scores = [everything[e] / scaling + (0 if bias is None else float(bias[e])) for e in (found, right)]
            assert abs(scores[0] - scores[1]) < np.spacing(np.float32(scores[1]))  # equal in float32
            continue
        for expert, weight in zip(ids[row].tolist(), weights[row].tolist(), strict=True):
            assert weight == pytest.approx(expected[expert], rel=2e-6)


def test_a_huge_bias_never_makes_weights_vanish(choose):
    moe = MoeConfig(n_experts=8, top_k=2, intermediate_size=1, scoring="sigmoid", correction_bias=True)
    logits = torch.full((1, 8), -18.0)
    _, weights = choose(logits, moe, torch.full((8,), 35.0))
    assert torch.isfinite(weights).all()
    assert weights.sum().item() == pytest.approx(1.0)


def test_a_closed_group_stays_closed_when_open_scores_are_negative(choose):
    moe = MoeConfig(
        n_experts=8, top_k=2, intermediate_size=1, scoring="sigmoid", n_group=2, topk_group=1, group_score="top2"
    )
    bias = torch.tensor([-3.0, -3.0, -3.0, -3.0, -5.0, -5.0, -5.0, -5.0])
    ids, _ = choose(torch.zeros(1, 8), moe, bias)
    assert set(ids[0].tolist()) <= {0, 1, 2, 3}


def test_bfloat16_logits_are_routed_in_float32():
    moe = MoeConfig(n_experts=8, top_k=3, intermediate_size=1)
    logits = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    ids, weights = route(logits, moe, None)
    again, same = route(logits.float(), moe, None)
    assert torch.equal(ids, again)
    assert torch.equal(weights, same)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_native_choices_survive_nan_and_do_not_depend_on_other_tokens(tier, scoring):
    moe = MoeConfig(n_experts=40, top_k=7, intermediate_size=1, scoring=scoring, norm_topk=scoring == "sigmoid")
    logits = torch.randn(600, 40, generator=torch.Generator().manual_seed(1))
    logits[3, 5] = float("nan")
    ids, weights = native(tier)(logits, moe, None)
    assert ids.min() >= 0
    assert ids.max() < 40
    assert all(len(set(row)) == 7 for row in ids.tolist())
    assert weights[3].isnan().any()
    assert not weights[torch.arange(600) != 3].isnan().any()
    alone = [native(tier)(logits[t : t + 1], moe, None) for t in range(20)]
    assert torch.equal(torch.cat([i for i, _ in alone]), ids[:20])
    assert torch.equal(torch.cat([w for _, w in alone])[4:], weights[4:20])
