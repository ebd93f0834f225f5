"""DeepSeek-V4 as shipped: FP8 attention and experts of 4-bit floats with e8m0 scales, experts by token as integers."""

import json
import struct

import numpy as np
import pytest

from hetero.engine import Engine
from hetero.machine.types import ModelError
from hetero.models.checkpoint import open_checkpoint
from hetero.models.convert import convert
from hetero.models.families import family_for_hf
from hetero.models.load import load_model
from hetero.native import Kernels, choose_tier
from tests.quantised import Stored, fp8_grid, mxfp4, stored, write_safetensors
from tests.tiny import tiny_hf
from tests.tiny_v4 import V4


def read_safetensors(path):
    """Name to (dtype, shape, bytes)."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    data = raw[8 + size :]
    return {n: Stored(h["dtype"], tuple(h["shape"]), data[slice(*h["data_offsets"])]) for n, h in header.items()}


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A directory as the hub has it, and the values of its quantised matrices by their name in the file."""
    directory = tiny_hf("deepseek_v4", tmp_path_factory.mktemp("v4"))
    rng, values = np.random.default_rng(0), {}
    path = next(directory.glob("*.safetensors"))
    tensors = read_safetensors(path)
    for name, t in list(tensors.items()):
        stem = name.removesuffix(".weight")
        if ".experts." in name:
            made = mxfp4(rng, *t.shape, signed=True)
        elif ".attn.w" in name:
            made = fp8_grid(rng, *t.shape, scale="F8_E8M0", name="scale")
        elif name.endswith("tid2eid"):
            rows = np.frombuffer(t.data, np.int64).reshape(t.shape)
            tensors[name] = stored(rows.astype(np.int32), "I32")
            continue
        else:
            continue
        del tensors[name]
        tensors |= {f"{stem}.{part}": t for part, t in made.parts.items()}
        values[name] = made.values
    for name in ("e_proj.weight", "attn.wq_a.weight", "hc_head_fn", "attn.compressor.ape"):  # draft layers
        tensors[f"mtp.0.{name}"] = stored(np.ones((2, 32), np.float32))
    write_safetensors(path, tensors)
    return directory, values


def test_experts_of_4_bits_and_matrices_of_8_are_read_as_the_formulae_say(shipped):
    directory, values = shipped
    kernels = Kernels(choose_tier(None))
    with open_checkpoint(directory) as source:
        model = load_model(source, kernels)
    assert len(source.mtp) == 4
    attention = values["model.layers.1.attn.wq_b.weight"]
    found = kernels.dequantize_packed(model.matrices["model.layers.1.self_attn.q_b_proj.weight"])
    assert np.array_equal(found.reshape(attention.shape), attention)
    grouped = model.matrices["model.layers.0.self_attn.o_a_proj.weight"]
    assert grouped.shape == (4, 16, 64)
    assert np.array_equal(kernels.dequantize_packed(grouped).reshape(64, 64), values["model.layers.0.attn.wo_a.weight"])
    bank = model.banks[3]
    assert bank.gate_format == bank.down_format == "MXFP4"
    one = bank.data[5 * bank.stride : 6 * bank.stride]
    parts = kernels.unpack_expert(one, "MXFP4", "MXFP4", "MXFP4", bank.hidden, bank.inter)
    for part, name in zip(parts, ("w1", "w3", "w2"), strict=True):
        want = values[f"model.layers.3.ffn.experts.5.{name}.weight"]
        assert np.array_equal(kernels.dequantize("MXFP4", part, *want.shape), want)


def test_a_store_of_it_answers_as_the_checkpoint_does(shipped, tmp_path):
    directory, _ = shipped
    ids = np.random.default_rng(1).integers(0, 400, 70).tolist()
    store = convert(directory, tmp_path / "v4.hetero", kernels=Kernels(choose_tier(None))).path
    found = []
    for path in (directory, store):
        engine = Engine.load(path, device="cpu", threads=2, context=128)
        found.append(engine.logits(ids))
        engine.close()
    assert np.isfinite(found[0]).all()
    assert np.array_equal(*found)


@pytest.mark.parametrize("expert", [-1, 16])
def test_a_table_with_experts_that_there_are_not_is_refused(shipped, tmp_path, expert):
    source = next(shipped[0].glob("*.safetensors"))
    tensors = read_safetensors(source)
    name = next(name for name in tensors if name.endswith("tid2eid"))
    rows = np.frombuffer(tensors[name].data, np.int32).reshape(tensors[name].shape).copy()
    rows[3, 1] = expert
    (tmp_path / "config.json").write_bytes((shipped[0] / "config.json").read_bytes())
    (tmp_path / "tokenizer.json").write_bytes((shipped[0] / "tokenizer.json").read_bytes())
    write_safetensors(tmp_path / "model.safetensors", tensors | {name: stored(rows)})
    with open_checkpoint(tmp_path) as checkpoint, pytest.raises(ModelError, match="expected 0 to 15"):
        load_model(checkpoint, Kernels(choose_tier(None)))


FULL = V4 | {"architectures": ["DeepseekV4ForCausalLM"]}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"layer_types": ["full_attention"] * 5}, ["layer_types", "sliding_attention"]),
        ({"layer_types": ["sliding_attention"] * 4}, ["layer_types", "5 of"]),
        ({"layer_types": None, "compress_ratios": [0, 4, 7, 4, 0]}, ["compress_ratios"]),
        ({"compress_rates": {"heavily_compressed_attention": 1}}, ["heavily_compressed_attention", "from 2"]),
        ({"compress_rates": [4, 128]}, ["compress_rates", "an object"]),
        ({"mlp_layer_types": ["dense"] * 5}, ["mlp_layer_types", "'hash_moe' or 'moe'"]),
        ({"scoring_func": "sigmoid"}, ["scoring_func", "'sqrtsoftplus'"]),
        ({"swiglu_limit": 7.0}, ["swiglu_limit", "10.0"]),
        ({"norm_topk_prob": False}, ["norm_topk_prob"]),
        ({"num_key_value_heads": 2}, ["num_key_value_heads"]),
        ({"o_groups": 3}, ["3 groups of 8 heads"]),
        ({"o_lora_rank": 8}, ["8 rows", "16"]),
        ({"index_head_dim": 4}, ["the indexer's keys have 4 values; rope turns 8"]),
        ({"rope_parameters": {"rope_type": "longrope"}}, ["'longrope'"]),
        ({"rope_parameters": [1]}, ["rope_parameters", "an object"]),
    ],
)
def test_configurations_that_cannot_be_are_refused(keys, words):
    raw = FULL | keys
    raw["partial_rotary_factor"] = 0.25
    with pytest.raises(ModelError) as e:
        family_for_hf(raw, "config.json").config_from_hf(raw)
    assert all(word in str(e.value) for word in words), str(e.value)


def test_both_spellings_of_a_configuration_are_the_same(tmp_path):
    import transformers

    directory = tiny_hf("deepseek_v4", tmp_path)
    hub = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    theirs = json.loads(transformers.DeepseekV4Config(**V4).to_json_string(use_diff=False))
    family = family_for_hf(hub, "config.json")
    bare = {key: value for key, value in hub.items() if key != "compress_ratios"}
    kinds = transformers.DeepseekV4Config(**{key: V4[key] for key in ("num_hidden_layers", "head_dim")}).layer_types
    assert family.config_from_hf(bare) == family.config_from_hf(bare | {"layer_types": kinds})
    assert family.config_from_hf(hub) == family.config_from_hf(theirs)
