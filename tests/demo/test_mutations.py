"""The held-out perplexity notices it when a part of the path is wrong: each mutation at least doubles it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import evaluate
import numpy as np
import pytest

from hetero.engine import Engine
from hetero.models import demo
from hetero.models.load import Model, load_model, open_model
from hetero.native import Kernels

DIALOGUES = evaluate.held_out()["dialogues"][:20]


@pytest.fixture(scope="module")
def healthy(engine: Engine) -> float:
    return evaluate.perplexities(engine, DIALOGUES)[0]


def perplexity_of(engine: Engine, mutate: Callable[[Model], Model]) -> float:
    """The perplexity of a mutated copy of the model, run under the same plan."""
    mutant = Engine(mutate(load_model(open_model(demo.path()), Kernels(engine.plan.isa_tier))), engine.plan)
    try:
        return evaluate.perplexities(mutant, DIALOGUES)[0]
    finally:
        mutant.close()


def permuted_routers(model: Model) -> Model:
    """Every router scores expert e as expert e + 1."""
    for name, weight in model.small.items():
        if name.endswith(".mlp.gate.weight"):
            weight[:] = np.roll(weight, 1, axis=0)
    return model


def permuted_experts(model: Model) -> Model:
    """Expert e has the weights of expert e + 1."""
    for bank in model.banks.values():
        experts = bank.data.reshape(bank.n_experts, bank.stride)
        experts[:] = np.roll(experts, 1, axis=0)
    return model


def other_theta(model: Model) -> Model:
    """The rope turns a hundred times too slowly."""
    model.config = replace(model.config, rope=replace(model.config.rope, theta=model.config.rope.theta * 100))
    return model


def interleaved_rope(model: Model) -> Model:
    """The rope pairs neighbours instead of halves."""
    model.config = replace(model.config, rope=replace(model.config.rope, interleaved=True))
    return model


def rows_of_gate_shifted(model: Model) -> Model:
    """What an expert kernel computes that mistakes each row of a gate tile for its neighbour."""
    for bank in model.banks.values():
        experts = bank.data.reshape(bank.n_experts, -1)
        pairs = experts[:, : bank.down_offset].reshape(bank.n_experts, bank.inter // 16, 2, -1).copy()
        codes = pairs[:, :, 0, : 16 * bank.hidden].reshape(-1, bank.hidden // 4, 16, 4)
        pairs[:, :, 0, : 16 * bank.hidden] = np.roll(codes, 1, axis=2).reshape(*pairs.shape[:2], -1)
        experts[:, : bank.down_offset] = pairs.reshape(bank.n_experts, -1)
    return model


def lines_of_down_shifted(model: Model) -> Model:
    """What an expert kernel computes that reads the inputs of its down tiles four places off."""
    for bank in model.banks.values():
        tiles = bank.hidden // 16
        experts = bank.data.reshape(bank.n_experts, -1)
        stop = bank.down_offset + tiles * (16 * bank.inter + bank.inter)
        down = experts[:, bank.down_offset : stop].reshape(bank.n_experts, tiles, -1).copy()
        lines = down[:, :, : 16 * bank.inter].reshape(bank.n_experts, tiles, -1, 64)
        down[:, :, : 16 * bank.inter] = np.roll(lines, 1, axis=2).reshape(bank.n_experts, tiles, -1)
        experts[:, bank.down_offset : stop] = down.reshape(bank.n_experts, -1)
    return model


@pytest.mark.parametrize(
    "mutate",
    [permuted_routers, permuted_experts, other_theta, interleaved_rope, rows_of_gate_shifted, lines_of_down_shifted],
)
def test_a_mutated_model_at_least_doubles_the_perplexity(
    engine: Engine, healthy: float, mutate: Callable[[Model], Model]
) -> None:
    assert perplexity_of(engine, mutate) >= 2 * healthy


def test_an_unmutated_copy_has_the_same_perplexity(engine: Engine, healthy: float) -> None:
    assert perplexity_of(engine, lambda model: model) == healthy
