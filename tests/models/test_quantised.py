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

from hetero.models.checkpoint import Checkpoint, open_checkpoint
from hetero.native import Kernels
from tests import quantised as q
from tests.tiny import random_weights, tiny_config

KERNELS = Kernels("generic")
ODD = {"hidden_size": 160, "moe_intermediate_size": 96, "head_dim": 40}  # ragged blocks of 128, groups of 32
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
    path, _, values = make(tmp_path / "m", maker, sizes)
    with open_checkpoint(path) as c:
        for name, truth in values.items():
            equal(read(c, name), truth)
        for name in ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.experts.5.down_proj"):
            for start, stop in ((0, 1), (3, 21), (len(values[name]) - 5, len(values[name]))):
                equal(read(c, name, start, stop), values[name][start:stop])
        assert c.info("model.layers.0.mlp.experts.up.weight").format == format
        assert c.info("model.layers.0.self_attn.o_proj.weight").format == format
        assert c.info("model.embed_tokens.weight").format == "F32"
        assert c.notes == ()
