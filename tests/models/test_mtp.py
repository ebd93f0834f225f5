"""Multi-token prediction layers: left out of the model, kept byte for byte in the store."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hetero.machine.types import ModelError
from hetero.models.checkpoint import open_checkpoint
from hetero.models.convert import convert, verify
from hetero.models.layout import PIECE_SOURCE_BYTES
from hetero.models.store import open_store
from hetero.native import Kernels, choose_tier
from tests.tiny import tiny_hf
from tests.tiny_gguf import tiny_gguf


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return Kernels(choose_tier(None))


@pytest.fixture
def source(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A DeepSeek-V3 with one prediction layer, one tensor of which is longer than a piece."""
    path = tiny_hf("deepseek_v3", tmp_path / "source")
    rng = np.random.default_rng(5)
    mtp = {
        "model.layers.3.eh_proj.weight": rng.standard_normal((64, 128), dtype=np.float32),
        "model.layers.3.enorm.weight": rng.standard_normal(64, dtype=np.float32),
        "model.layers.3.mlp.experts.0.gate_proj.weight": rng.standard_normal((33, 65)).astype(np.float16),
        "model.layers.3.shared_head.head.weight": rng.integers(0, 255, PIECE_SOURCE_BYTES + 7, dtype=np.uint8),
    }
    save_file(load_file(path / "model.safetensors") | mtp, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config.pop("num_mtp_layers", None)
    (path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    return path, mtp


def test_a_store_keeps_every_byte_of_the_prediction_layers(
    source: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, kernels: Kernels
) -> None:
    path, mtp = source
    store = convert(path, tmp_path / "m.hetero", kernels=kernels).path
    layout = open_store(store).manifest.layout
    assert {slot.name: slot.shape for slot in layout.mtp} == {name: value.shape for name, value in mtp.items()}
    data = (store / "mtp.bin").read_bytes()
    for slot in layout.mtp:
        assert data[slot.offset : slot.offset + slot.length] == mtp[slot.name].tobytes()
    verify(store)


def test_prediction_layers_do_not_change_the_fingerprint(
    source: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, kernels: Kernels
) -> None:
    plain = tiny_hf("deepseek_v3", tmp_path / "plain")
    assert (
        convert(source[0], tmp_path / "a.hetero", kernels=kernels).fingerprint
        == convert(plain, tmp_path / "b.hetero", kernels=kernels).fingerprint
    )


def test_a_store_with_prediction_layers_is_replaced_by_force(
    source: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, kernels: Kernels
) -> None:
    first = convert(source[0], tmp_path / "m.hetero", kernels=kernels)
    again = convert(source[0], tmp_path / "m.hetero", experts="q8", kernels=kernels, force=True)
    assert (first.experts, again.experts) == ("keep", "q8")
    assert sorted(path.name for path in tmp_path.glob("m.hetero*")) == ["m.hetero"]
    verify(again.path)


@pytest.mark.parametrize("where", ["first", "last"])
def test_a_flipped_bit_of_a_prediction_layer_is_found(
    source: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, kernels: Kernels, where: str
) -> None:
    store = convert(source[0], tmp_path / "m.hetero", kernels=kernels).path
    with open(store / "mtp.bin", "r+b") as file:
        file.seek(0 if where == "first" else os.path.getsize(store / "mtp.bin") - 1)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(ModelError, match=r"mtp\.bin: model\.layers\.3\..* is damaged"):
        verify(store)


def test_a_store_without_its_prediction_file_is_refused(
    source: tuple[Path, dict[str, np.ndarray]], tmp_path: Path, kernels: Kernels
) -> None:
    store = convert(source[0], tmp_path / "m.hetero", kernels=kernels).path
    (store / "mtp.bin").unlink()
    with pytest.raises(ModelError, match=r"mtp\.bin is missing"):
        open_store(store)


def test_the_quantised_prediction_layer_of_a_gguf_is_kept(tmp_path: Path, kernels: Kernels) -> None:
    raw = np.random.default_rng(1).standard_normal((4, 64), dtype=np.float32)
    meta = {"deepseek2.nextn_predict_layers": 1, "deepseek2.block_count": 3}
    extra = {"blk.2.nextn.eh_proj.weight": raw}
    path = tiny_gguf("deepseek2", tmp_path / "m.gguf", num_hidden_layers=2, extra=extra, metadata=meta)
    with open_checkpoint(path) as checkpoint:
        names = [t.name for t in checkpoint.mtp]
    assert names == ["blk.2.nextn.eh_proj.weight"]
    store = convert(path, tmp_path / "m.hetero", kernels=kernels).path
    (slot,) = open_store(store).manifest.layout.mtp
    assert (store / "mtp.bin").read_bytes()[: slot.length] == raw.tobytes()
