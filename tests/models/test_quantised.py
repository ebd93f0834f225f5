"""Quantised safetensors: every value is, in float32, what the formula of its kind says, for experts and dense matrices.

What the formulae say is computed in tests/quantised.py and, further down, by compressed-tensors and transformers.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from hetero.machine.types import ModelError
from hetero.models.checkpoint import Checkpoint, open_checkpoint
from hetero.models.convert import convert
from hetero.models.families import qwen3_moe
from hetero.models.families.common import FusedExperts
from hetero.models.store import open_store
from hetero.native import Kernels
from tests import quantised as q
from tests.tiny import random_weights, tiny_config
from tests.tiny_tokenizer import save_tokenizer

KERNELS = Kernels("generic")
ODD = {"hidden_size": 160, "moe_intermediate_size": 96, "head_dim": 40}  # ragged blocks of 128, groups of 32
RAGGED = {"hidden_size": 192, "moe_intermediate_size": 320, "head_dim": 48}  # multiples of 64 alone
EVEN = {"hidden_size": 256, "moe_intermediate_size": 128, "head_dim": 64}

KINDS: dict[str, tuple[q.Make, str, dict[str, int]]] = {
    "fp8 128x128": (q.fp8_grid, "FP8_E4M3", ODD),
    "fp8 128x128, whole": (q.fp8_grid, "FP8_E4M3", EVEN),
    "fp8 128x128 ue8m0": (partial(q.fp8_grid, scale="F8_E8M0", name="scale"), "FP8_E4M3", ODD),
    "fp8 per row": (q.fp8_rows, "FP8_E4M3", ODD),
    "fp8 per row, float32": (partial(q.fp8_rows, flat=True, wide=True), "FP8_E4M3", ODD),
    "fp8 per tensor": (q.fp8_one, "FP8_E4M3", ODD),
    "int4 group 32": (q.compressed_int4, "I4_32", ODD),
    "int4 group 32, fp16": (partial(q.compressed_int4, half=True), "I4_32_F16", ODD),
    "int4 group 64": (partial(q.compressed_int4, group=64), "I4_64", EVEN),
    "int4 group 128": (partial(q.compressed_int4, group=128), "I4_128", EVEN),
    "int4 group 32, zero points": (partial(q.compressed_int4, zeros=True), "U4_32", ODD),
    "int4 group 128, zero points": (partial(q.compressed_int4, group=128, zeros=True, half=True), "U4_128_F16", EVEN),
    "gptq": (q.gptq, "U4_128_F16", EVEN),
    "gptq group 32": (partial(q.gptq, group=32), "U4_32_F16", ODD),
    "awq": (q.awq, "U4_128_F16", EVEN),
    "awq group 32": (partial(q.awq, group=32), "U4_32_F16", ODD),
    "mxfp4 in int8": (partial(q.mxfp4, signed=True), "MXFP4", ODD),
    "mxfp4 packed": (partial(q.mxfp4, name="weight_packed"), "MXFP4", ODD),
    "int8 per row": (q.int8, "I8_32", ODD),
    "int8 per row, float32": (partial(q.int8, scale="F32"), "I8_128_F32", EVEN),
    "int8 group 64, fp16": (partial(q.int8, group=64, scale="F16"), "I8_64_F16", EVEN),
    "int8 packed": (partial(q.packed_int8, group=32), "I8_32", ODD),
    "int8 packed, per row, float32": (partial(q.packed_int8, scale="F32"), "I8_32_F32", ODD),
    "gptq 8 bits": (q.gptq8, "I8_128_F16", EVEN),
    "gptq 8 bits, group 32": (partial(q.gptq8, group=32), "I8_32_F16", ODD),
    "mxfp8": (q.mxfp8, "BF16", ODD),
    "nvfp4": (q.nvfp4, "NVFP4_F32_64", RAGGED),
    "nvfp4, 128": (q.nvfp4, "NVFP4_F32_128", EVEN),
    "nvfp4, 256, divided": (partial(q.nvfp4, divides=True), "NVFP4_F32_256", EVEN | {"moe_intermediate_size": 256}),
    "nvfp4, divided": (partial(q.nvfp4, divides=True), "NVFP4_F32_64", RAGGED),
}  # fmt: skip


def quantised_names(config: dict[str, Any]) -> list[str]:
    """The matrices that are quantised: attention, and experts one by one."""
    p = [f"model.layers.{i}." for i in range(config["num_hidden_layers"])]
    names = [f"{i}self_attn.{m}_proj" for i in p for m in "qkvo"]
    return names + [f"{i}mlp.experts.{e}.{m}_proj" for i in p for e in range(8) for m in ("gate", "up", "down")]


def canonical(config: dict[str, Any], weights: dict[str, Any], name: str) -> npt.NDArray[np.float32]:
    """The plain weights of a matrix by the name that one expert's has in a file."""
    if ".experts." not in name:
        return weights[f"{name}.weight"]
    stem, expert, part = name.rsplit(".", 2)
    return weights[f"{stem}.{part.removesuffix('_proj')}.weight"][int(expert)]


OF_8_BITS = [kind for kind in KINDS if kind.startswith(("int8 packed", "gptq 8 bits"))]
EIGHT = {"quantization_config": {"bits": 8}}
"""What a config.json has to say of packed integers of 8 bits."""


def make(
    path: Path, kind: q.Make, sizes: dict[str, int], config: dict[str, Any] | None = None
) -> tuple[Path, dict[str, q.Stored], dict[str, npt.NDArray[np.float32]]]:
    """A tiny Qwen3-MoE quantised as `kind`; returns its directory, its tensors and the values of its matrices."""
    sizes_of_all = tiny_config("qwen3moe", **sizes)
    rng = np.random.default_rng(0)
    weights = random_weights("qwen3moe", sizes_of_all)
    tensors = {n: q.stored(w) for n, w in weights.items() if ".experts." not in n}
    values = {}
    for name in quantised_names(sizes_of_all):
        made = kind(rng, *canonical(sizes_of_all, weights, name).shape)
        tensors.pop(f"{name}.weight", None)
        tensors |= {f"{name}.{part}": t for part, t in made.parts.items()}
        values[name] = made.values
    write(path, sizes_of_all | (config or {}), tensors)
    return path, tensors, values


def write(path: Path, config: dict[str, Any], tensors: dict[str, q.Stored]) -> None:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"architectures": ["Qwen3MoeForCausalLM"]} | config))
    q.write_safetensors(path / "model.safetensors", tensors)


def read(c: Checkpoint, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
    """Values of rows of one matrix, by the name that it has in the file."""
    stem, expert, part = name.rsplit(".", 2)
    one = int(expert) if ".experts." in name else None
    full = f"{name}.weight" if one is None else f"{stem}.{part.removesuffix('_proj')}.weight"
    info = c.info(full)
    rows = c.read_rows(full, one, start, stop)
    return KERNELS.dequantize(info.format, rows, len(rows), info.shape[-1])


def equal(found: npt.NDArray[np.float32], truth: npt.NDArray[np.float32]) -> None:
    """The same numbers; a negative zero is a zero."""
    np.testing.assert_array_equal(found, truth)


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_formula(tmp_path: Path, kind: str) -> None:
    maker, format, sizes = KINDS[kind]
    path, _, values = make(tmp_path / "m", maker, sizes, EIGHT if kind in OF_8_BITS else None)
    with open_checkpoint(path) as c:
        for name, truth in values.items():
            equal(read(c, name), truth)
        for name in ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.experts.5.down_proj"):
            for start, stop in ((0, 1), (3, 21), (len(values[name]) - 5, len(values[name]))):
                equal(read(c, name, start, stop), values[name][start:stop])
        assert c.info("model.layers.0.mlp.experts.down.weight").format == format
        assert c.info("model.embed_tokens.weight").format == "F32"
        assert [n for n in c.notes if "MXFP8 are held as BF16" not in n] == []
        assert bool(c.notes) == (kind == "mxfp8")


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("stack", [q.fused_mxfp4, q.fused_fp8])
def test_stacks_of_codes_give_each_expert_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: Any, interleaved: bool
) -> None:
    monkeypatch.setattr(qwen3_moe, "FUSED_EXPERTS", FusedExperts(interleaved=interleaved))
    config = tiny_config("qwen3moe", **ODD)
    tensors = {n: q.stored(w) for n, w in random_weights("qwen3moe", config).items() if ".experts." not in n}
    truth = {}
    for layer in range(2):
        parts, both, down = stack(np.random.default_rng(layer), 8, 96, 160)
        stem = f"model.layers.{layer}.mlp.experts"
        tensors |= {f"{stem}.{name}": t for name, t in parts.items()}
        halves = (both[:, 0::2], both[:, 1::2]) if interleaved else (both[:, :96], both[:, 96:])
        truth |= {f"{stem}.{e}.gate_proj": halves[0][e] for e in range(8)}
        truth |= {f"{stem}.{e}.up_proj": halves[1][e] for e in range(8)}
        truth |= {f"{stem}.{e}.down_proj": down[e] for e in range(8)}
    write(tmp_path / "m", config, tensors)
    with open_checkpoint(tmp_path / "m") as c:
        for name, values in truth.items():
            equal(read(c, name), values)
            equal(read(c, name, 7, 30), values[7:30])


STORED = ["fp8 128x128", "int4 group 32, zero points", "gptq", "awq", "mxfp4 in int8", "int8 per row", "nvfp4, divided"]


@pytest.mark.parametrize("kind", STORED)
def test_a_store_keeps_codes_and_scales(tmp_path: Path, kind: str) -> None:
    path, _, values = make(tmp_path / "m", KINDS[kind][0], KINDS[kind][2])
    save_tokenizer(path)
    store = open_store(convert(path, tmp_path / "m.hetero", kernels=KERNELS).path)
    slot = store.manifest.layout.layers[1]
    data = np.fromfile(store.path / slot.file, np.uint8)[5 * slot.stride :][: slot.stride]
    rows = KERNELS.unpack_expert(data, *slot.formats, slot.hidden, slot.inter)
    for part, raw, format in zip(("gate", "up", "down"), rows, slot.formats, strict=True):
        truth = values[f"model.layers.1.mlp.experts.5.{part}_proj"]
        equal(KERNELS.dequantize(format, raw, *truth.shape), truth)


# --- other implementations


def test_values_are_those_of_compressed_tensors(tmp_path: Path) -> None:
    packing = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    for zeros in (False, True):
        path, tensors, _ = make(tmp_path / str(zeros), partial(q.compressed_int4, zeros=zeros), ODD)
        name = "model.layers.1.mlp.experts.5.down_proj"
        part = {p: tensor(t) for n, t in tensors.items() if (p := n.removeprefix(f"{name}.")) != n}
        shape = torch.Size(part["weight_shape"].tolist())
        codes = packing.unpack_from_int32(part["weight_packed"], 4, shape).float()
        if zeros:
            groups = torch.Size((shape[0], shape[1] // 32))
            zero = packing.unpack_from_int32(part["weight_zero_point"], 4, groups, packed_dim=0).float()
            codes = codes - zero.repeat_interleave(32, dim=1)
        truth = codes * part["weight_scale"].float().repeat_interleave(32, dim=1)
        with open_checkpoint(path) as c:
            equal(read(c, name), truth.numpy())


@pytest.mark.parametrize("kind", ["nvfp4, divided", "mxfp8", "int8 per row"])
def test_floating_point_codes_have_the_values_of_compressed_tensors(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
    from compressed_tensors.compressors.naive_quantized.base import IntQuantizationCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    compressor, args = {
        "mxfp8": (MXFP8QuantizationCompressor, {"num_bits": 8, "type": "float", "group_size": 32}),
        "int8 per row": (IntQuantizationCompressor, {"num_bits": 8, "type": "int", "strategy": "channel"}),
        "nvfp4, divided": (None, {"num_bits": 4, "type": "float", "group_size": 16}),
    }[kind]
    maker, _, sizes = KINDS[kind]
    path, tensors, _ = make(tmp_path / "m", maker, sizes)
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    for name in (NAME, "model.layers.0.self_attn.k_proj"):
        parts = {p: tensor(t) for n, t in tensors.items() if (p := n.removeprefix(f"{name}.")) != n}
        if compressor is None:  # its decompress() makes bfloat16 of them
            packed, whole = parts["weight_packed"], parts["weight_global_scale"]
            codes = unpack_fp4_from_uint8(packed, len(packed), 2 * packed.shape[1], dtype=torch.float32)
            truth = dequantize(codes, parts["weight_scale"].float(), args=scheme.weights, global_scale=whole)
        else:
            wide = {"weight_scale": parts["weight_scale"].float()} if kind == "int8 per row" else {}
            truth = compressor.decompress(parts | wide, scheme)["weight"].float()
        with open_checkpoint(path) as c:
            equal(read(c, name), truth.numpy())


def test_values_are_those_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    monkeypatch.setattr(qwen3_moe, "FUSED_EXPERTS", FusedExperts(interleaved=True))
    config = tiny_config("qwen3moe", **ODD)
    tensors = {n: q.stored(w) for n, w in random_weights("qwen3moe", config).items() if ".experts." not in n}
    for layer in range(2):
        parts, _, _ = q.fused_mxfp4(np.random.default_rng(layer), 8, 96, 160)
        tensors |= {f"model.layers.{layer}.mlp.experts.{n}": t for n, t in parts.items()}
    write(tmp_path / "m", config, tensors)
    stem = "model.layers.1.mlp.experts"
    blocks, scales = (tensor(tensors[f"{stem}.gate_up_proj_{what}"]) for what in ("blocks", "scales"))
    truth = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # [E, hidden, 2 inter]
    with open_checkpoint(tmp_path / "m") as c:
        equal(read(c, f"{stem}.3.gate_proj"), truth[3].T[0::2].numpy())
        equal(read(c, f"{stem}.3.up_proj"), truth[3].T[1::2].numpy())


def tensor(t: q.Stored) -> torch.Tensor:
    """A stored tensor for torch."""
    types = {"I32": torch.int32, "I64": torch.int64, "BF16": torch.bfloat16, "U8": torch.uint8, "F16": torch.float16}
    types |= {"F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn, "I8": torch.int8}
    return torch.frombuffer(bytearray(t.data), dtype=types[t.dtype]).reshape(t.shape)


# --- what does not belong together

NAME = "model.layers.1.mlp.experts.5.down_proj"


def broken(tmp_path: Path, kind: str, change: Any, config: dict[str, Any] | None = None) -> Path:
    """A checkpoint of `kind` after `change(tensors)`."""
    path, tensors, _ = make(tmp_path / "m", KINDS[kind][0], KINDS[kind][2], config)
    change(tensors)
    q.write_safetensors(path / "model.safetensors", tensors)
    return path


def without(part: str) -> Any:
    return lambda tensors: tensors.pop(f"{NAME}.{part}")


def put(part: str, array: Any, dtype: str | None = None) -> Any:
    return lambda tensors: tensors.__setitem__(f"{NAME}.{part}", q.stored(array, dtype))


SYMMETRIC = {"quantization_config": {"config_groups": {"g": {"weights": {"symmetric": False, "num_bits": 4}}}}}
HEADERS: dict[str, tuple[str, Any, dict[str, Any] | None, list[str]]] = {
    "fp8 without scales": ("fp8 128x128", without("weight_scale_inv"), None, ["down_proj.weight", "has no scales"]),
    "fp8 grid of another size": (
        "fp8 128x128", put("weight_scale_inv", np.ones((3, 1), np.float32)), None, ["[3, 1]; expected [2, 1] for"],
    ),
    "fp8 blocks of another size": (
        "fp8 128x128", lambda t: None, {"quantization_config": {"weight_block_size": [32, 32]}}, ["multiple of 128"],
    ),
    "fp8 scales of integers": ("fp8 128x128", put("weight_scale_inv", np.ones((2, 1), np.int32)), None, ["dtype I32"]),
    "fp8 with two kinds of scales": (
        "fp8 128x128", put("weight_scale", np.ones((160, 1), np.float32)), None,
        ["down_proj.weight_scale_inv' and '", "down_proj.weight_scale' are all scales", "expected one"],
    ),
    "weights twice": (
        "gptq", put("weight", np.ones((256, 128), np.float32)), None, ["down_proj.weight' and '", "are all weights"],
    ),
    "plain weights with scales": (
        "fp8 128x128", put("weight", np.ones((160, 96), np.float32)), None, ["is F32, but has scales"],
    ),
    "one expert in another type": (
        "fp8 128x128", lambda t: (without("weight_scale_inv")(t), put("weight", np.ones((160, 96), np.float32))(t)),
        None, ["type F32, but expert 0 has [160, 96] and FP8_E4M3"],
    ),
    "int4 without scales": ("int4 group 32", without("weight_scale"), None, ["has no scales", "weight_scale"]),
    "int4 group that divides nothing": (
        "int4 group 32", put("weight_scale", np.ones((160, 5), np.uint16)), None, ["[160, 5]; expected groups of 32"],
    ),
    "int4 group of 16": ("int4 group 32", put("weight_scale", np.ones((160, 6), np.uint16)), None, ["groups of 32"]),
    "int4 zero points missing": ("int4 group 32", lambda t: None, SYMMETRIC, ["no zero points", "symmetric false"]),
    "int4 zero points of another shape": (
        "int4 group 32, zero points", put("weight_zero_point", np.ones((160, 3), np.int32)), None, ["expected [20, 3]"],
    ),
    "int4 permuted": ("int4 group 32", put("weight_g_idx", np.ones(96, np.int32)), None, ["permutes the inputs"]),
    "group of the config differs": (
        "gptq", lambda t: None, {"quantization_config": {"bits": 4, "group_size": 64}}, ["groups of 128", "says 64"],
    ),
    "3 bits": ("gptq", lambda t: None, {"quantization_config": {"bits": 3, "group_size": 128}}, ["codes of 3 bits"]),
    "4 bits that are called 8": (
        "gptq", lambda t: None, {"quantization_config": {"bits": 8}}, ["qzeros' has shape [2, 32]; expected [2, 64]"],
    ),
    "gptq columns": ("gptq", put("qweight", np.ones((16, 100), np.int32)), None, ["[16, 100]", "(GPTQ)", "(AWQ)"]),
    "gptq zero points missing": ("gptq", without("qzeros"), None, ["no zero points; expected 'qzeros'"]),
    "awq zero points of another shape": ("awq", put("qzeros", np.ones((2, 32), np.int32)), None, ["expected [1, 32]"]),
    "mxfp4 scales of another shape": (
        "mxfp4 in int8", put("scale", np.ones((160, 2), np.uint8), "F8_E8M0"), None, ["[160, 2]; expected [160, 3]"],
    ),
    "nvfp4 without its second scale": (
        "mxfp4 packed", put("weight_scale", np.ones((160, 6), np.uint8), "F8_E4M3"), None,
        ["has no scales", "'weight_scale_2' or 'weight_global_scale'"],
    ),
    "nvfp4 with several second scales": (
        "nvfp4", put("weight_scale_2", np.ones(192, np.float32)), None, ["has shape [192]; expected one number"],
    ),
    "nvfp4 scales of another shape": (
        "nvfp4", put("weight_scale", np.ones((192, 5), np.uint8), "F8_E4M3"), None, ["[192, 5]; expected [192, 20]"],
    ),
    "bytes with scales of no known kind": (
        "mxfp4 in int8", put("scale", np.ones((160, 1), np.float32)), None, ["scales of F32", "this version reads"],
    ),
    "int8 with zero points": (
        "int8 per row", put("weight_zero_point", np.ones((160, 1), np.int8)), None, ["with zero points", "symmetric"],
    ),
    "int8 scales of another shape": (
        "int8 per row", put("weight_scale", np.ones((160, 5), np.uint16)), None, ["[160, 5]; expected groups of 32"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_tensors_that_do_not_belong_together_are_refused_by_their_headers(tmp_path: Path, case: str) -> None:
    kind, change, config, words = HEADERS[case]
    with pytest.raises(ModelError) as caught:
        open_checkpoint(broken(tmp_path, kind, change, config))
    assert "model.safetensors" in caught.value.message
    assert NAME in caught.value.message or config
    assert all(word in caught.value.message for word in words), caught.value.message
    assert caught.value.message.isprintable()
    assert caught.value.hint
    assert caught.value.code == 4


def spoil(part: str, value: int, at: int = 0) -> Any:
    def change(tensors: dict[str, q.Stored]) -> None:
        old = tensors[f"{NAME}.{part}"]
        size = {"F32": 4, "BF16": 2, "I32": 4, "I64": 8, "F16": 2}.get(old.dtype, 1)
        data = bytearray(old.data)
        data[at * size : (at + 1) * size] = value.to_bytes(size, "little")
        tensors[f"{NAME}.{part}"] = q.Stored(old.dtype, old.shape, bytes(data))

    return change


CONTENTS: dict[str, tuple[str, Any, dict[str, Any] | None, list[str]]] = {
    "fp8 code NaN": ("fp8 128x128", spoil("weight", 0x7F, 100), None, ["a weight of block 0 of row 1 is NaN"]),
    "fp8 scale NaN": ("fp8 128x128", spoil("weight_scale_inv", 0x7FC00000, 1), None, ["row 128 is NaN"]),
    "fp8 scale infinite": ("fp8 128x128", spoil("weight_scale_inv", 0x7F800000), None, ["NaN or infinite"]),
    "fp8 weights beyond float32": ("fp8 128x128", spoil("weight_scale_inv", 0x7F000000), None, ["a weight of block 0"]),
    "fp8 scale zero": ("fp8 128x128", spoil("weight_scale_inv", 0), None, ["block 0 of row 0 is 0, but the codes"]),
    "ue8m0 scale NaN": ("fp8 128x128 ue8m0", spoil("scale", 255), None, ["NaN"]),
    "int4 scale NaN": ("int4 group 32", spoil("weight_scale", 0x7FC0, 4), None, ["block 1 of row 1 is NaN"]),
    "int4 scale zero": ("int4 group 32", spoil("weight_scale", 0, 4), None, ["group 1 of row 1 is 0, but the codes"]),
    "int4 shape": ("int4 group 32", spoil("weight_shape", 161), None, ["is [161, 96]; expected [160, 96]"]),
    "gptq permuted": ("gptq", spoil("g_idx", 7, 3), None, ["g_idx", "permutes the inputs"]),
    "gptq not symmetric": ("gptq", lambda t: None, {"quantization_config": {"sym": True}}, ["zero point", "symmetric"]),
    "gptq of 8 bits, not symmetric": (
        "gptq 8 bits", spoil("qzeros", 0x7F7F7F7E), EIGHT, ["the zero point of group 0 of row 0 is 127; expected 128"],
    ),
    "int8 scale NaN": ("int8 per row", spoil("weight_scale", 0x7FC0, 3), None, ["row 3 is NaN"]),
    "int8 scale zero": ("int8 per row", spoil("weight_scale", 0, 3), None, ["group 0 of row 3 is 0, but the codes"]),
    "mxfp8 scale NaN": ("mxfp8", spoil("weight_scale", 255, 4), None, ["of row 1 is NaN"]),
    "mxfp8 beyond bfloat16": ("mxfp8", spoil("weight_scale", 0, 4), None, ["block 1 of row 1", "smaller than any"]),
    "nvfp4 scale NaN": ("nvfp4", spoil("weight_scale", 0x7F, 21), None, ["group 1 of row 1 is NaN or negative"]),
    "nvfp4 scale negative": ("nvfp4", spoil("weight_scale", 0xB8, 1), None, ["group 1 of row 0 is NaN or negative"]),
    "nvfp4 second scale zero": ("nvfp4", spoil("weight_scale_2", 0), None, ["weight_scale_2' holds 0.0; expected a"]),
    "nvfp4 second scale infinite": ("nvfp4", spoil("weight_scale_2", 0x7F800000), None, ["holds inf; expected a pos"]),
    "mxfp4 scale NaN": ("mxfp4 in int8", spoil("scale", 255, 4), None, ["block 1 of row 1 is NaN"]),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTENTS)
def test_damaged_contents_are_named_before_they_are_used(tmp_path: Path, case: str) -> None:
    kind, change, config, words = CONTENTS[case]
    path = broken(tmp_path, kind, change, config)
    save_tokenizer(path)
    with pytest.raises(ModelError) as caught:
        convert(path, tmp_path / "m.hetero", kernels=KERNELS)
    assert all(word in caught.value.message for word in words), caught.value.message
    assert "layers.1.mlp.experts" in caught.value.message or config
    assert caught.value.message.isprintable()
    assert not (tmp_path / "m.hetero").exists()


def test_a_zero_scale_of_codes_that_are_zero_is_sound(tmp_path: Path) -> None:
    def change(tensors: dict[str, q.Stored]) -> None:
        for part in ("weight", "weight_scale_inv"):
            old = tensors[f"{NAME}.{part}"]
            tensors[f"{NAME}.{part}"] = q.Stored(old.dtype, old.shape, bytes(len(old.data)))

    with open_checkpoint(broken(tmp_path, "fp8 128x128", change)) as c:
        assert not read(c, NAME).any()


def test_gptq_says_by_its_format_what_zero_points_mean(tmp_path: Path) -> None:
    v2 = {"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq_v2", "bits": 4}}
    path, _, values = make(tmp_path / "2", partial(q.gptq, v2=True), EVEN, v2)
    with open_checkpoint(path) as c:
        equal(read(c, NAME), values[NAME])
    symmetric = {"quantization_config": {"quant_method": "gptq", "sym": True, "bits": 4}}
    path, _, values = make(tmp_path / "s", partial(q.gptq, symmetric=True), EVEN, symmetric)
    with open_checkpoint(path) as c:
        assert c.info("model.layers.0.mlp.experts.up.weight").format == "I4_128_F16"
        equal(read(c, NAME), values[NAME])


def test_a_plain_checkpoint_that_calls_itself_quantised_is_read_as_it_is(tmp_path: Path) -> None:
    config = tiny_config("qwen3moe", **ODD)
    weights = random_weights("qwen3moe", config)
    tensors = {n: q.stored(w) for n, w in weights.items() if ".experts." not in n}
    tensors |= {f"{n}.weight": q.stored(canonical(config, weights, n)) for n in quantised_names(config) if "exp" in n}
    write(tmp_path / "m", config | {"quantization_config": {"quant_method": "fp8", "ignore": ["re:(a+)+$"]}}, tensors)
    with open_checkpoint(tmp_path / "m") as c:
        assert c.info("model.layers.0.mlp.experts.up.weight").format == "F32"
