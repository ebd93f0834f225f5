"""Later families as their authors ship them: FP8 blocks and MXFP4, beside float32 copies of the very same values.

The copies agree with the reference, and so do FP8 models; MXFP4's kernels round activations, which is what is left.
"""

import json

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file, save_file

from hetero.engine import Engine
from hetero.models.convert import convert
from hetero.native import Kernels, choose_tier
from tests.engine.reference import hf_logits, relative
from tests.quantised import stored, write_safetensors
from tests.tiny import tiny_hf

IDS = np.random.default_rng(6).integers(0, 400, 100).tolist()
BOUND = 1e-3
ROUNDING = 0.02
"""Mean difference, in deviations of the logits, that 8-bit activations may make."""


def fp8(name, w):
    """Codes and the scales of 128 x 128 blocks, whose last ones are ragged; and the values."""
    grid = [-(-n // 128) for n in w.shape]
    scales, values, codes = np.empty(grid, np.float32), np.empty_like(w), np.empty(w.shape, np.uint8)
    for i in range(grid[0]):
        for j in range(grid[1]):
            at = slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128)
            scales[i, j] = np.abs(w[at]).max() / 448
            block = torch.from_numpy(w[at] / scales[i, j]).to(torch.float8_e4m3fn)
            codes[at], values[at] = block.view(torch.uint8).numpy(), block.float().numpy() * scales[i, j]
    return {name: stored(codes, "F8_E4M3"), name + "_scale_inv": stored(scales)}, values


def mxfp4(name, w):
    """gpt-oss's experts [E, in, out]: blocks of 32 inputs for each output, two neighbours in a byte; and the values."""
    rows = quantize(np.ascontiguousarray(w.swapaxes(1, 2)), GGMLQuantizationType.MXFP4)
    values = dequantize(rows, GGMLQuantizationType.MXFP4).swapaxes(1, 2)
    blocks = rows.reshape(*rows.shape[:2], -1, 17)
    codes = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)
    packed = codes[..., ::2] | codes[..., 1::2] << 4
    return {name + "_blocks": stored(packed), name + "_scales": stored(np.ascontiguousarray(blocks[..., 0]))}, values


SHIPPED = {
    "minimax_m2": (fp8, ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"), "fp8"),
    "bailing_moe_v2": (fp8, ("_proj.weight", "query_key_value.weight", "dense.weight"), "fp8"),
    "gpt_oss": (mxfp4, ("experts.gate_up_proj", "experts.down_proj"), "mxfp4"),
}


@pytest.fixture(params=sorted(SHIPPED))
def both(request, tmp_path):
    """The checkpoint as it is shipped, and its float32 copy."""
    encode, ends, method = SHIPPED[request.param]
    wide = {"hidden_size": 192, "head_dim": 48, "num_hidden_layers": 2} if request.param != "gpt_oss" else {}
    copy = tiny_hf(request.param, tmp_path, **wide)
    tensors, plain = {}, {}
    for name, w in load_file(copy / "model.safetensors").items():
        if name.endswith(ends):
            parts, values = encode(name, w)
            tensors |= parts
            plain[name] = np.ascontiguousarray(values)
        else:
            tensors[name] = stored(w)
            plain[name] = w
    save_file(plain, copy / "model.safetensors", {"format": "pt"})
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    config = json.loads((copy / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "weight_block_size": [128, 128]}
    (shipped / "config.json").write_text(json.dumps(config))
    for file in copy.glob("tokenizer*"):
        (shipped / file.name).write_bytes(file.read_bytes())
    write_safetensors(shipped / "model.safetensors", tensors)
    return shipped, copy


def logits(path):
    engine = Engine.load(path, device="cpu", threads=2, context=128, kv_dtype="f32")
    try:
        return engine.logits(IDS)
    finally:
        engine.close()


def test_shipped_codes_differ_from_their_values_by_the_rounding_of_activations_only(both, tmp_path):
    shipped, copy = both
    expected, found = hf_logits(copy, IDS), logits(shipped)
    assert relative(logits(copy), expected) <= BOUND
    if (shipped / "config.json").read_text().count('"fp8"'):
        assert relative(found, expected) <= BOUND
    assert np.abs(found - expected).mean() <= ROUNDING * expected.std()
    report = convert(shipped, tmp_path / "model.hetero", kernels=Kernels(choose_tier(None)))
    assert np.array_equal(logits(report.path), found)
