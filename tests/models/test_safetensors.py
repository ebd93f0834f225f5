"""Hugging Face directories are read with canonical names and stacked experts, whatever their sharding."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from hetero.models.checkpoint import open_checkpoint
from hetero.models.families import family_for_hf
from hetero.models.names import from_hf
from tests.tiny import FAMILIES, tiny_hf
from tests.tiny_moe import MOE_FAMILIES


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each family's directory, made once."""
    root = tmp_path_factory.mktemp("hf")
    done: dict[tuple[str, bool], Path] = {}

    def make(family: str, sharded: bool = False) -> Path:
        key = (family, sharded)
        if key not in done:
            done[key] = tiny_hf(family, root / str(sharded), sharded=sharded)
        return done[key]

    return make


def everything(directory: Path) -> dict[str, Any]:
    """All tensors that are not skipped by their canonical names, experts apart, through the safetensors package."""
    family = family_for_hf(json.loads((directory / "config.json").read_text()), "config.json")
    out: dict[str, Any] = {}
    for file in directory.glob("*.safetensors"):
        out |= load_file(file)
    skip = "|".join(family.SKIP_HF)
    named = {from_hf(name, family.RENAME_HF): out[name] for name in out if not re.fullmatch(skip, name)}
    for name in [name for name in named if name.endswith(".kv_b_proj.weight")]:
        named |= halves(name, named.pop(name), json.loads((directory / "config.json").read_text()))
    return named


def halves(name: str, joint: Any, config: dict[str, Any]) -> dict[str, Any]:
    """kv_b by heads, as it is read: the keys' part [heads, latent, nope] and the values' part [heads, v, latent]."""
    nope, v = config["qk_nope_head_dim"], config["v_head_dim"]
    by_head = joint.reshape(-1, nope + v, joint.shape[1])
    key = np.ascontiguousarray(by_head[:, :nope].transpose(0, 2, 1))
    return {name.replace("kv_b", "k_b"): key, name.replace("kv_b", "v_b"): by_head[:, nope:]}


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(MOE_FAMILIES) - {"kimi_k25"}))  # with names of their own
def test_every_tensor_of_the_files_is_read_exactly(made: Any, family: str) -> None:
    directory = made(family)
    truth = everything(directory)
    with open_checkpoint(directory) as c:
        read = 0
        for t in c.index.tensors:
            if t.role != "expert":
                np.testing.assert_array_equal(c.read_f32(t.name), truth[t.name].reshape(t.shape))
                read += 1
                continue
            stem, which = t.name.removesuffix(".weight").rsplit(".", 1)
            for e in range(t.shape[0]):
                expected = truth[f"{stem}.{e}.{which}_proj.weight"]
                assert c.read_rows(t.name, e).tobytes() == expected.tobytes()
                read += 1
        assert read == len(truth)
        assert c.kind == "safetensors"
        assert c.directory == directory
        assert c.hf_config["architectures"]
        assert all("leaves out" in note for note in c.notes)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3"])
def test_sharding_changes_nothing(made: Any, family: str) -> None:
    with open_checkpoint(made(family, True)) as shards, open_checkpoint(made(family)) as whole:
        assert len(shards.files) > 1
        assert shards.index == whole.index
        for t in whole.index.tensors:
            assert shards.read_rows(t.name).tobytes() == whole.read_rows(t.name).tobytes()


def test_rows_across_experts_follow_each_other(made: Any) -> None:
    with open_checkpoint(made("qwen3_moe", True)) as c:
        name = "model.layers.1.mlp.experts.down.weight"
        n, out, _ = c.info(name).shape
        flat = np.concatenate([c.read_rows(name, e) for e in range(n)])
        np.testing.assert_array_equal(c.read_rows(name), flat)
        np.testing.assert_array_equal(c.read_rows(name, start=out - 3, stop=2 * out + 1), flat[out - 3 : 2 * out + 1])


@pytest.mark.parametrize("inside", ["config.json", "model.safetensors.index.json", "model-00002-of-*.safetensors"])
def test_a_file_inside_opens_the_directory(made: Any, inside: str) -> None:
    directory = made("llama", True)
    file = next(directory.glob(inside))
    with open_checkpoint(file) as a, open_checkpoint(directory) as b:
        assert a.index == b.index
        assert a.directory == directory


def test_hub_cache_with_symlinks_works_and_gives_the_name(made: Any, tmp_path: Path) -> None:
    repo = tmp_path / "models--acme--tiny-llama"
    snapshot = repo / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for i, file in enumerate(sorted(made("llama", True).iterdir())):
        shutil.copy(file, repo / "blobs" / f"{i:040x}")
        (snapshot / file.name).symlink_to(f"../../blobs/{i:040x}")
    with open_checkpoint(snapshot) as c:
        assert c.index.name == "acme/tiny-llama"
        assert c.read_f32("model.norm.weight").shape == (64,)


def test_paths_with_spaces_and_other_scripts_work(made: Any, tmp_path: Path) -> None:
    directory = tmp_path / "модель 专家 (1)"
    shutil.copytree(made("llama"), directory)
    with open_checkpoint(directory) as c:
        assert c.index.name == directory.name


def test_half_precision_is_read_as_it_is(tmp_path: Path) -> None:
    directory = tiny_hf("llama", tmp_path, dtype="bfloat16")
    name = "model.layers.0.mlp.up_proj.weight"
    with open_checkpoint(directory) as c, safe_open(directory / "model.safetensors", framework="pt") as f:
        assert c.info(name).format == "BF16"
        np.testing.assert_array_equal(c.read_f32(name), f.get_tensor(name).float().numpy())
        assert c.read_rows(name).shape == (96, 128)


def test_head_is_tied_where_the_file_has_none(made: Any, tmp_path: Path) -> None:
    tied = tiny_hf("llama", tmp_path, tie_word_embeddings=True)
    with open_checkpoint(tied) as c:
        assert c.config.tie_word_embeddings
        assert c.notes == ()
    copy = tmp_path / "copy"
    shutil.copytree(made("llama"), copy)
    tensors = everything(copy)
    del tensors["lm_head.weight"]
    save_file(tensors, copy / "model.safetensors")
    with open_checkpoint(copy) as c:
        assert c.config.tie_word_embeddings
        assert "lm_head.weight" in c.notes[0]


def test_head_in_the_file_is_used_whatever_the_config_says(made: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made("llama"), copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with open_checkpoint(copy) as c:
        assert not c.config.tie_word_embeddings
        assert "lm_head.weight" in c
        assert "its own lm_head.weight, which is used though tie_word_embeddings is true" in c.notes[0]


def test_stray_files_and_harmless_tensors_are_left_out(made: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made("llama"), copy)
    tensors = everything(copy)
    for layer in range(3):
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = np.ones(8, dtype=np.float64)
    save_file(tensors, copy / "model.safetensors")
    (copy / "extra.safetensors").write_bytes(b"not looked at")
    with open_checkpoint(copy) as c, open_checkpoint(made("llama")) as plain:
        assert c.index.tensors == plain.index.tensors
        assert any("extra.safetensors" in n for n in c.notes)


def test_mtp_layers_are_left_out(made: Any, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made("deepseek_v3"), copy)
    tensors = everything(copy)
    tensors["model.layers.3.eh_proj.weight"] = np.zeros((64, 128), dtype=np.float32)
    tensors["model.layers.3.mlp.experts.0.gate_proj.weight"] = np.zeros((32, 64), dtype=np.float32)
    save_file(tensors, copy / "model.safetensors")
    config = json.loads((copy / "config.json").read_text())
    config.pop("num_mtp_layers", None)
    (copy / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    with open_checkpoint(copy) as c, open_checkpoint(made("deepseek_v3")) as plain:
        assert c.index.tensors == plain.index.tensors
        assert c.config.mtp_layers == 1
