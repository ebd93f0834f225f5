"""What a calibration finds is what the experts are given, and what an error of a layer does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from hetero.engine import Engine, calibration
from hetero.engine.calibration import calibrate, joined
from hetero.machine.types import UsageError
from hetero.models.importance import importance_of
from hetero.native import ExpertBank, Kernels, Pool, allocate, down_offset, expert_bytes
from hetero.native.kernels import ACTIVATIONS
from tests.tiny import random_weights, tiny_config, tiny_gguf, write_gguf

TEXT = "the three thieves thought that the weather there " * 12


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tiny_gguf("qwen3moe", tmp_path_factory.mktemp("calibrate") / "m.gguf")
    loaded = Engine.load(path, device="cpu", threads=2, context=128, kv_dtype="f32")
    yield loaded
    loaded.close()


def by_hand(engine: Engine, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Importance of a layer's inputs and hiddens in float64 from the very definition, and the experts' shares."""
    seen: list[tuple[torch.Tensor, ...]] = []

    def watch(number: int, *parts: torch.Tensor) -> None:
        if number == layer:
            seen.append(tuple(part.clone() for part in parts))

    with engine.using(partial(calibration._WatchedOps, watch)):
        for ids in calibration.windows(engine, TEXT):
            engine.logits(ids)
    x, ids, weights = (torch.cat(parts) for parts in zip(*seen, strict=True))
    bank, kernels = engine.model.banks[layer], engine.model.kernels
    inputs, hiddens = np.zeros((bank.n_experts, bank.hidden)), np.zeros((bank.n_experts, bank.inter))
    total, visits = np.zeros(bank.n_experts), np.zeros(bank.n_experts, np.int64)
    for e in range(bank.n_experts):
        raw = kernels.unpack_expert(bank.data[e * bank.stride :][: bank.stride], "F32", "F32", "F32", 64, 32)
        gate, up = (torch.from_numpy(rows.view(np.float32).copy()).double() for rows in raw[:2])
        for t in range(len(x)):
            for slot in range(ids.shape[1]):
                if ids[t, slot] == e:
                    token, square = x[t].double(), float(weights[t, slot]) ** 2
                    inputs[e] += square * token.square().numpy()
                    hidden = torch.nn.functional.silu(gate @ token) * (up @ token)
                    hiddens[e] += square * hidden.square().numpy()
                    total[e] += square
                    visits[e] += 1
    return importance_of(inputs, total, visits), importance_of(hiddens, total, visits), total / total.sum()


def test_statistics_are_those_of_what_the_experts_are_given(engine: Engine) -> None:
    found = calibrate(engine, TEXT)
    for layer, known in found.layers.items():
        inputs, hiddens, usage = by_hand(engine, layer)
        assert np.allclose(known.inputs, inputs, rtol=1e-3)
        assert np.allclose(known.hiddens, hiddens, rtol=1e-3)
        assert np.allclose(known.usage, usage, rtol=1e-4)
        assert known.of("down", 3) is not known.of("up", 3)
        assert np.array_equal(known.of("down", 3), known.hiddens[3])
        assert np.array_equal(known.of("gate", 3), known.inputs[3])
    assert found.tokens == sum(len(ids) for ids in calibration.windows(engine, TEXT))
    again = calibrate(engine, TEXT)
    assert again.name == found.name != calibrate(engine, TEXT + " and").name
    assert all(np.array_equal(again.layers[i].inputs, found.layers[i].inputs) for i in found.layers)
    assert [again.layers[i].sensitivity for i in found.layers] == [k.sensitivity for k in found.layers.values()]


def test_a_layer_counts_by_what_an_error_of_its_output_does(tmp_path: Path) -> None:
    found = []
    for size in (0.2, 2.0):
        weights = random_weights("qwen3moe", tiny_config("qwen3moe"))
        weights["model.layers.0.mlp.experts.down.weight"][:] = 0
        weights["model.layers.1.mlp.experts.down.weight"] *= np.float32(size)
        path = write_gguf(tmp_path / "m.gguf", "qwen3moe", tiny_config("qwen3moe"), weights)
        engine = Engine.load(path, device="cpu", threads=2, context=128, kv_dtype="f32")
        found.append([known.sensitivity for known in calibrate(engine, TEXT).layers.values()])
        engine.close()
    assert found[0][0] < 1e-6 < found[0][1]
    assert found[1][0] < 1e-6
    assert found[1][1] > 10 * found[0][1]


def test_rare_experts_take_after_their_layer_and_no_input_counts_nothing() -> None:
    squares = np.array([[8.0, 0.0], [0.0, 0.3], [0.0, 0.0]], np.float32)
    found = importance_of(squares, np.array([4.0, 0.1, 0.0], np.float32), np.array([10**6, 1, 0]))
    assert found[0, 1] < 0.01 < 1.9 < found[0, 0]
    assert found[2] == pytest.approx(np.array([8.0, 0.3]) / 4.15, rel=1e-5)  # the layer's own mean
    assert found[1, 0] > 1
    assert (found > 0).all()
    assert np.allclose(found.mean(1), 1)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_down_gets_what_the_kernels_give_it(activation: str) -> None:
    kernels, n = Kernels("generic"), 32
    rng = np.random.default_rng(1)
    gate, up = (4 * rng.standard_normal((n, n), np.float32) for _ in range(2))
    data = allocate(expert_bytes("F32", "F32", "F32", n, n))
    rows = [w.view(np.uint8).reshape(n, -1) for w in (gate, up, np.eye(n, dtype=np.float32))]
    kernels.pack_expert(rows[0], "F32", rows[1], "F32", rows[2], "F32", n, n, data)
    at = down_offset("F32", "F32", n, n)
    bank = ExpertBank(1, n, n, "F32", "F32", "F32", data, data.nbytes, at, activation)
    x, out = rng.standard_normal((20, n), np.float32), np.zeros((20, n), np.float32)
    with Pool([0], kernels) as pool:
        kernels.moe(pool, bank, x, np.zeros((20, 1), np.int32), np.ones((20, 1), np.float32), out)
    found = joined(activation, *(torch.from_numpy(x @ w.T) for w in (gate, up))).numpy()
    assert np.abs(found - out).max() <= 1e-4 * np.abs(out).max()


def test_texts_and_models_that_tell_nothing_are_refused(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the text has 6 tokens"):
        calibrate(engine, "ththth")
    dense = Engine.load(tiny_gguf("llama", tmp_path / "d.gguf"), device="cpu", threads=1, context=128)
    with pytest.raises(UsageError, match="no experts to calibrate"):
        calibrate(dense, TEXT)
    dense.close()
