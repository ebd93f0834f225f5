"""Removal of single terms from a loaded model, after each of which the parity bound must be broken."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hetero.engine import Engine
from hetero.models.load import Model
from tests.engine.reference import relative

BOUND = 1e-3
Mutation = Callable[[Model], Model]


def config(**changes) -> Mutation:
    return lambda model: replace(model, config=replace(model.config, **changes))


def part(name, **changes) -> Mutation:
    """A change of a part of the configuration: moe, rope, multipliers or chunked."""
    return lambda model: config(**{name: replace(getattr(model.config, name), **changes)})(model)


def small(end: str, value: float) -> Mutation:
    """The small tensors whose names end so, filled with a constant: 0 for a bias, 1 for a norm."""

    def mutate(model: Model) -> Model:
        changed = {name: np.full_like(w, value) for name, w in model.small.items() if name.endswith(end)}
        assert changed, f"there is no {end}"
        return replace(model, small=model.small | changed)

    return mutate


def bank(**changes) -> Mutation:
    return lambda model: replace(model, banks={i: replace(b, **changes) for i, b in model.banks.items()})


def survivors(whole, mutations, ids, expected):
    """The mutations of the engine `whole` that leave its logits of `ids` within the bound, and how far they are."""
    found = {}
    for name, mutate in mutations.items():
        engine = Engine(mutate(whole.model), whole.plan)
        try:
            distance = relative(engine.logits(ids), expected)
        finally:
            engine.close()
        if distance <= BOUND:
            found[name] = distance
    return found
