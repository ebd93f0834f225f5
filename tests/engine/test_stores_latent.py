"""The Kimi and GLM families as they are downloaded and as stores: FP8 and INT4 weights, the very logits of a store."""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hetero.engine import Engine
from hetero.models.checkpoint import open_checkpoint
from hetero.models.convert import convert
from hetero.native import Kernels, choose_tier
from tests import quantised as q
from tests.engine.reference import Choices, relative
from tests.latent_gguf import gguf_of
from tests.tiny import load_reference, tiny_hf
from tests.tiny_latent import LATENT_FAMILIES

IDS = np.random.default_rng(4).integers(0, 400, 90).tolist()
INT4 = {"config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32, "type": "int", "symmetric": True}}}}
INT4 |= {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["re:.*self_attn.*", "lm_head"]}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3", "activation_scheme": "dynamic"}
EXPERT = re.compile(r"(?:language_model\.)?model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
MATRIX = re.compile(r"model\.layers\.\d+\..*(_proj|_mqa|wq_b|wk)\.weight")
HUB = {
    "kimi_k25": (q.compressed_int4, EXPERT, INT4),
    "deepseek_v32": (q.fp8_grid, MATRIX, FP8),
    "glm4_moe": (q.fp8_grid, MATRIX, FP8),
}


def load(path):
    return Engine.load(path, device="cpu", threads=2, context=128, kv_dtype="f32")


def logits(path):
    engine = load(path)
    try:
        return engine.logits(IDS)
    finally:
        engine.close()


def quantise(directory, make, which, config):
    """Replace the matrices whose names are `which` by quantised ones of the hub's form; returns their values."""
    rng, file = np.random.default_rng(0), next(directory.glob("*.safetensors"))
    tensors, values = {}, {}
    for name, tensor in load_file(file).items():
        if not which.fullmatch(name):
            tensors[name] = q.stored(tensor.numpy())
            continue
        made = make(rng, *tensor.shape)
        values[name] = torch.from_numpy(made.values)
        tensors |= {f"{name.removesuffix('weight')}{part}": stored for part, stored in made.parts.items()}
    file.unlink()  # a reference that is loaded keeps the old one mapped
    q.write_safetensors(file, tensors)
    path = directory / "config.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw.get("text_config", raw)["quantization_config"] = config
    path.write_text(json.dumps(raw), encoding="utf-8")
    return values


def with_values(model, values):
    """The reference with the values of the quantised matrices."""
    state = model.state_dict()
    for name, value in values.items():
        expert = EXPERT.fullmatch(name)
        if not expert:
            state[name].copy_(value)
            continue
        stem, half = f"model.layers.{expert[1]}.mlp.experts.", len(value)
        at = {"gate": slice(half), "up": slice(half, None), "down": slice(None)}[expert[3]]
        state[f"{stem}{'down' if expert[3] == 'down' else 'gate_up'}_proj"][int(expert[2]), at].copy_(value)
    return model


@pytest.mark.parametrize("family", sorted(HUB))
def test_files_of_the_hubs_form_give_the_references_logits(family, tmp_path):
    directory = tiny_hf(family, tmp_path)
    model = load_reference(directory)
    values = quantise(directory, *HUB[family])
    with open_checkpoint(directory) as c:
        format = c.info("model.layers.1.mlp.experts.up.weight").format
        assert format == ("I4_32" if family == "kimi_k25" else "FP8_E4M3")
    engine = load(directory)
    try:
        choices = Choices(engine)
        found = engine.logits(IDS)
        choices.teach(model, IDS)
        with torch.inference_mode():
            expected = with_values(model, values)(torch.tensor([IDS])).logits[0].numpy()
    finally:
        engine.close()
    if format == "FP8_E4M3":  # its kernels take activations as they are
        assert relative(found, expected) <= 1e-3
    else:
        assert np.sqrt(((found - expected) ** 2).mean()) < 0.03 * expected.std()


@pytest.mark.parametrize(
    ("family", "kind"), [(f, "safetensors") for f in sorted(LATENT_FAMILIES)] + [("glm_moe_dsa_shared", "gguf")]
)
def test_a_store_gives_the_checkpoints_logits(family, kind, tmp_path):
    source = tiny_hf(family, tmp_path)
    source = gguf_of(source, tmp_path / "model.gguf") if kind == "gguf" else source
    report = convert(source, tmp_path / "model.hetero", kernels=Kernels(choose_tier(None)))
    assert np.array_equal(logits(report.path), logits(source))
