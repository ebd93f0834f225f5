"""Configurations of the Kimi and GLM families: indexers, layers that share a choice, layers that predict further."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hetero.machine.types import ModelError
from hetero.models.checkpoint import open_checkpoint
from hetero.models.describe import describe
from hetero.models.families import family_for_hf
from tests.latent_gguf import gguf_of
from tests.tiny import tiny_hf
from tests.tiny_latent import LATENT_FAMILIES

GLM = LATENT_FAMILIES["glm_moe_dsa"][1] | {"architectures": ["GlmMoeDsaForCausalLM"], "num_hidden_layers": 8}
FULL = "full"


def read(raw):
    return family_for_hf(raw, "config.json").config_from_hf(raw)


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, (0, 1, 2, 3, 4, 5, 6, 7)),
        ({"indexer_types": [FULL, "shared", "shared", FULL] * 2}, (0, 3, 4, 7)),
        ({"indexer_types": [FULL, *["shared"] * 8]}, (0,)),  # one more: that of a layer that predicts further tokens
        ({"index_topk_pattern": "FSFSFFSS"}, (0, 2, 4, 5)),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, (0, 1, 2, 6)),
        ({"index_topk_freq": 3}, (0, 1, 4, 7)),
        ({"index_topk_freq": 0}, (0, 1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_layers_with_an_indexer_are_those_of_transformers(keys, layers):
    import transformers

    assert read(GLM | keys).indexer.layers == layers
    theirs = transformers.GlmMoeDsaConfig(**{k: v for k, v in (GLM | keys).items() if k != "architectures"})
    assert [i for i, kind in enumerate(theirs.indexer_types[:8]) if kind == FULL] == list(layers)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"indexer_types": ["shared", *[FULL] * 7]}, ["layer 0 has no indexer"]),
        ({"indexer_types": [FULL] * 7}, ["indexer_types", "8 layers"]),
        ({"indexer_types": ["half"] * 8}, ["indexer_types", "'full' or 'shared'"]),
        ({"index_topk_pattern": "FSX"}, ["index_topk_pattern"]),
        ({"index_head_dim": 8}, ["the indexer's keys have 8 values; rope turns 16"]),
        ({"q_lora_rank": None}, ["queries have no latent"]),
        ({"index_topk": 0}, ["index_topk", "0"]),
        ({"mlp_layer_types": ["dense"] * 7}, ["mlp_layer_types", "8 layers"]),
        ({"scoring_func": "softmax"}, ["scoring_func", "'sigmoid'"]),
    ],
)
def test_indexers_that_cannot_be_are_refused(keys, words):
    with pytest.raises(ModelError) as error:
        read(GLM | keys)
    assert all(word in error.value.message for word in ("config.json", *words))


def test_an_indexers_keys_count_in_the_cache_where_there_is_one():
    every, half = read(GLM), read(GLM | {"indexer_types": [FULL, "shared"] * 4})
    assert every.kv_elements_per_token - half.kv_elements_per_token == 4 * 64
    assert set(half.layer_states(0)) == {"latent", "index"}
    assert set(half.layer_states(1)) == {"latent"}


@pytest.mark.parametrize("family", sorted(LATENT_FAMILIES))
def test_a_config_alone_has_the_checkpoints_tensors(family, tmp_path):
    whole = tiny_hf(family, tmp_path)
    bare = tmp_path / "bare.json"
    raw = json.loads((whole / "config.json").read_text())
    bare.write_text(json.dumps(raw | {"dtype": "float32", "torch_dtype": "float32"}))
    planned, real = describe(str(bare)), describe(str(whole))
    assert {(t.name, t.shape, t.role) for t in planned.tensors} == {(t.name, t.shape, t.role) for t in real.tensors}
    assert planned.kv_elements_per_token == real.kv_elements_per_token


@pytest.mark.parametrize("family", sorted(LATENT_FAMILIES))
def test_gguf_and_hugging_face_have_the_same_configuration(family, tmp_path):
    # The eps that latents have in Hugging Face files, and a factor that float32 holds.
    directory = tiny_hf(family, tmp_path, rms_norm_eps=1e-6, routed_scaling_factor=2.5)
    with open_checkpoint(directory) as hf, open_checkpoint(gguf_of(directory, tmp_path / "m.gguf")) as gguf:
        ours, theirs = hf.config, gguf.config
        if theirs.mla is not None:  # a float32 in the file
            assert theirs.mla.latent_norm_eps == pytest.approx(1e-6)
            theirs = replace(theirs, mla=replace(theirs.mla, latent_norm_eps=1e-6))
        assert theirs.rms_norm_eps == pytest.approx(ours.rms_norm_eps)
        for part in ("rope", "moe", "mla", "indexer", "qk_norm", "attention_bias", "head_dim"):
            assert getattr(ours, part) == getattr(theirs, part), part
        assert ours.kv_elements_per_token == theirs.kv_elements_per_token


@pytest.mark.parametrize("family", ["glm4_moe", "glm_moe_dsa", "deepseek_v32", "glm4_moe_lite"])
def test_layers_that_predict_further_tokens_are_known_by_number(family, tmp_path):
    directory = tiny_hf(family, tmp_path)
    file, path = next(directory.glob("*.safetensors")), directory / "config.json"
    tensors, config = load_file(file), json.loads(path.read_text())
    behind = f"model.layers.{config['num_hidden_layers']}."
    mtp = {behind + name.split(".", 3)[3]: x for name, x in tensors.items() if name.startswith("model.layers.1.")}
    for name in ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm", "shared_head.head"):
        mtp[f"{behind}{name}.weight"] = np.ones(4, np.float32)
    file.unlink()
    save_file(tensors | mtp, file)
    with pytest.raises(ModelError, match="have no place in this architecture"):
        open_checkpoint(directory)
    path.write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    with open_checkpoint(directory) as c:
        assert {t.name for t in c.mtp} == set(mtp)
        assert c.config.n_layers == config["num_hidden_layers"]


@pytest.mark.parametrize("family", ["glm4_moe", "glm_moe_dsa_shared", "deepseek_v32"])
def test_gguf_counts_those_layers_among_its_blocks(family, tmp_path):
    path = gguf_of(tiny_hf(family, tmp_path), tmp_path / "m.gguf", mtp=True)
    with open_checkpoint(path) as c:
        n = LATENT_FAMILIES[family][1]["num_hidden_layers"]
        assert (c.config.n_layers, c.config.mtp_layers) == (n, 1)
        parts = ("nextn.eh_proj", "nextn.enorm", "attn_norm")
        assert {t.name for t in c.mtp} == {f"blk.{n}.{part}.weight" for part in parts}
