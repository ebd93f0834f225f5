"""A family whose experts have biases and gpt-oss's activation: checkpoint, store and ledger carry them to kernels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hetero.machine.ledger import small_bytes
from hetero.machine.types import ModelError
from hetero.models import families
from hetero.models.convert import convert
from hetero.models.families import qwen3_moe
from hetero.models.families.common import expert_tensors
from hetero.models.load import load_model, open_model
from hetero.native import Kernels
from tests.tiny import tiny_hf

PARTS = ("gate", "up", "down")


def biased(config):
    return dataclasses.replace(config, moe=dataclasses.replace(config.moe, activation="gpt_oss", expert_bias=True))


def expected_tensors(config, names=()):
    out = qwen3_moe.expected_tensors(config, names)
    for layer in range(config.n_layers):
        prefix, moe = f"model.layers.{layer}.mlp.", config.moe
        out |= expert_tensors(prefix, config.hidden_size, moe.intermediate_size, moe.n_experts, moe.expert_bias)
    return out


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Qwen3-MoE checkpoint with biased experts, of a family that declares them."""
    known = {name: getattr(qwen3_moe, name) for name in dir(qwen3_moe)}
    known["config_from_hf"] = lambda raw, where="": biased(qwen3_moe.config_from_hf(raw, where))
    known["expected_tensors"] = expected_tensors
    monkeypatch.setitem(families.FAMILIES, "qwen3_moe", SimpleNamespace(**known))
    made = tiny_hf("qwen3_moe", tmp_path)
    path = made / "model.safetensors"
    tensors, rng = load_file(path), np.random.default_rng(0)
    for layer in range(3):
        for part, width in zip(PARTS, (32, 32, 64), strict=True):
            values = rng.standard_normal((16, width)).astype(np.float32)
            tensors[f"model.layers.{layer}.mlp.experts.{part}.bias"] = values
    save_file(tensors, path, {"format": "pt"})
    return made


def test_banks_hold_the_biases_from_checkpoint_and_store(directory: Path) -> None:
    kernels = Kernels("generic")
    written = load_file(directory / "model.safetensors")
    for path in (directory, convert(directory, kernels=kernels).path):
        model = load_model(open_model(path), kernels)
        for layer, bank in model.banks.items():
            assert bank.activation == "gpt_oss"
            for part in PARTS:
                given = written[f"model.layers.{layer}.mlp.experts.{part}.bias"]
                assert np.array_equal(getattr(bank, f"{part}_bias"), given)
        assert small_bytes(model.index) == 4 * sum(array.size for array in model.small.values())


def test_a_missing_bias_is_named(directory: Path) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.experts.up.bias"]
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.experts\.up\.bias"):
        open_model(directory)
