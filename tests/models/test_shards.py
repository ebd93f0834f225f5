"""Shards that are missing and tensors that are there twice: noted where nothing is lost by it, else refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hetero.machine.types import ModelError
from hetero.models.checkpoint import open_checkpoint
from hetero.models.safetensors_file import INDEX, SINGLE
from tests.tiny import tiny_hf

MTP = {
    "model.layers.3.enorm.weight": np.ones(64, np.float32),
    "model.layers.3.mlp.experts.0.gate_proj.weight": np.ones((3, 5), np.float32),
}


def sharded(path: Path, parts: Mapping[str, Mapping[str, Any]], mtp_layers: int = 1) -> Path:
    """A tiny DeepSeek-V3 of three layers in one file beside the files `parts`, all in an index."""
    path = tiny_hf("deepseek_v3", path)
    weights = load_file(path / SINGLE)
    (path / SINGLE).unlink()
    files = {"model-1.safetensors": weights} | dict(parts)
    for name, tensors in files.items():
        save_file(dict(tensors), path / name)
    weight_map = {tensor: name for name, tensors in reversed(files.items()) for tensor in tensors}
    (path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    config = json.loads((path / "config.json").read_text())
    config.pop("num_mtp_layers", None)
    (path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": mtp_layers}))
    return path


def test_a_missing_shard_of_prediction_layers_alone_is_noted(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m", {"mtp.safetensors": MTP})
    with open_checkpoint(path) as c:
        assert len(c.mtp) == 2
    (path / "mtp.safetensors").unlink()
    with open_checkpoint(path) as c:
        assert c.mtp == ()
        assert [n for n in c.notes if "mtp.safetensors: is missing; it has only multi-token prediction" in n]


@pytest.mark.parametrize(
    ("tensors", "layers"),
    [(MTP, 0), ({**MTP, "model.layers.4.enorm.weight": np.ones(64, np.float32)}, 1), ({"extra": np.ones(1)}, 1)],
)
def test_a_missing_shard_of_anything_else_is_not(tmp_path: Path, tensors: Any, layers: int) -> None:
    path = sharded(tmp_path / "m", {"mtp.safetensors": tensors}, layers)
    (path / "mtp.safetensors").unlink()
    with pytest.raises(ModelError, match=r"1 of 2 files of the model is missing: 'mtp\.safetensors'"):
        open_checkpoint(path)


def test_a_second_copy_that_is_alike_is_noted_and_one_that_is_not_is_refused(tmp_path: Path) -> None:
    name = "model.norm.weight"
    weights = load_file(tiny_hf("deepseek_v3", tmp_path / "one") / SINGLE)
    more = {"model-2.safetensors": {name: weights[name], **MTP}}
    with open_checkpoint(sharded(tmp_path / "alike", more)) as c:
        said = "model-2.safetensors: the tensor 'model.norm.weight' is a second copy"
        assert [n for n in c.notes if n.startswith(said)]
    other = weights[name].copy()
    other[-1] = np.nextafter(other[-1], np.float32(9))
    for value in (other, other.astype(np.float16), other[:-1]):
        folder = sharded(tmp_path / f"{value.dtype}{value.shape}", {"model-2.safetensors": {name: value, **MTP}})
        with pytest.raises(ModelError, match=r"model-2.*'model\.norm\.weight' differs from that in 'mod") as caught:
            open_checkpoint(folder)
        assert caught.value.hint
