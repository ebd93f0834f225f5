"""The demo model in every weight format: files that hetero and llama.cpp both read, and an exact forward over the same.

The bundled weights lie on the grid of Q8_0 already, so `original` puts each anywhere within its cell, as it was before:
every format then rounds as it would round a trained model.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from hetero.engine import Engine
from hetero.machine.plan import plan as make_plan
from hetero.machine.probe import probe
from hetero.machine.types import PlanRequest
from hetero.models import demo
from hetero.models.assemble import Tensor, assemble_gguf
from hetero.models.checkpoint import Checkpoint
from hetero.models.families import family_of_gguf
from hetero.models.formats import StoredTensor
from hetero.models.gguf_split import read_gguf_set
from hetero.models.load import load_model, open_model
from hetero.models.matrices import Read
from hetero.native import FORMATS, Kernels
from tests.models.text.oracle import library
from tests.native.weights import dequantized

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "demo"))
from export_gguf import LAYER_NAMES, is_quantised
from model import DemoConfig, DemoModel

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
GGML = ("F16", "BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "NVFP4")
GGML += ("MXFP4", "Q3_K", "Q2_K")
"""Formats that llama.cpp computes with too."""
OWN = tuple(name for name in FORMATS if name.startswith(("FP8", "I4_", "U4_")))
NARROW = "Q8_0"
"""What rows that are no whole blocks of a format are stored as; of the demo model, those of the experts' down matrices
(128 inputs) under formats with blocks of 256."""
_SEED = 7


@dataclass(frozen=True, slots=True)
class Coded:
    """A matrix in a format: its raw rows, uint8 [n, row_bytes], of values [..., out, in]."""

    format: str
    rows: Bytes
    shape: tuple[int, ...]

    def values(self) -> Floats:
        """By the gguf package or, for formats that ggml has not, by their definition."""
        k = self.shape[-1]
        return dequantized(self.format, self.rows, len(self.rows), k).reshape(self.shape)


def original() -> dict[str, Floats]:
    """The demo model's tensors by GGUF name, float32 [..., out, in]: matrices with noise within their cells of Q8_0."""
    rng = np.random.default_rng(_SEED)
    out = {}
    for t in gguf.GGUFReader(demo.path()).tensors:
        values = gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(t.shape[::-1].tolist())
        if t.tensor_type == gguf.GGMLQuantizationType.Q8_0:
            blocks = t.data.reshape(-1, 34)
            steps = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
            noise = rng.uniform(-0.5, 0.5, (len(blocks), 32)).astype(np.float32) * steps
            values = values + noise.reshape(values.shape)
        out[t.name] = values
    return out


def coded(fmt: str, values: Mapping[str, Floats]) -> dict[str, Coded]:
    """The matrices of `values` in format `fmt`, or in `NARROW` where its blocks do not fit."""
    out = {}
    for name, x in values.items():
        if is_quantised(name, x.shape):
            used = fmt if x.shape[-1] % FORMATS[fmt].block_k == 0 else NARROW
            out[name] = Coded(used, _encode(used, x.reshape(-1, x.shape[-1])), x.shape)
    return out


def _encode(fmt: str, x: Floats) -> Bytes:
    if fmt in GGML:
        return _by_ggml(fmt, x)
    encode = _fp8 if fmt == "FP8_E4M3" else _i4 if fmt.startswith("I4") else _u4
    group = FORMATS[fmt].block_k
    return encode(fmt, x.reshape(-1, group)).reshape(len(x), -1)


def _by_ggml(fmt: str, x: Floats) -> Bytes:
    """By llama.cpp's own quantisers, without an importance matrix."""
    n, k = x.shape
    out = np.zeros((n, k // FORMATS[fmt].block_k * FORMATS[fmt].block_bytes), np.uint8)
    quantise = library().ggml_quantize_chunk
    quantise.restype = ctypes.c_size_t
    quantise.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    kind = int(gguf.GGMLQuantizationType[fmt])
    written = quantise(kind, x.ctypes.data, out.ctypes.data, 0, n, k, None)
    assert written == out.nbytes, f"ggml wrote {written} bytes of {fmt}, expected {out.nbytes}"
    return out


def _half(fmt: str, scales: Floats) -> tuple[Bytes, Floats]:
    """Scales [m] as fp16 or bf16, uint8 [m, 2], and the values they then have, [m, 1]."""
    half = torch.from_numpy(scales).to(torch.float16 if fmt.endswith("_F16") else torch.bfloat16)
    return half.view(torch.uint8).numpy().reshape(-1, 2), half.float().numpy()[:, None]


def _nibbles(codes: Floats) -> Bytes:
    """Codes 0 to 15 [m, group], packed as the kernels' raw rows have them: k beside k + 16 of each 32."""
    pairs = codes.astype(np.uint8).reshape(len(codes), -1, 2, 16)
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(len(codes), -1)


def _i4(fmt: str, groups: Floats) -> Bytes:
    """w = (q - 8) s, with s such that the largest weight becomes -8 or 7."""
    head, scale = _half(fmt, np.maximum(groups.max(1) / 7, -groups.min(1) / 8))
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    return np.concatenate([head, _nibbles(np.clip(np.rint(groups * inverse), -8, 7) + 8)], axis=1)


def _u4(fmt: str, groups: Floats) -> Bytes:
    """w = (q - z) s, over the group's range, which takes in zero."""
    low, high = np.minimum(groups.min(1), 0), np.maximum(groups.max(1), 0)
    head, scale = _half(fmt, (high - low) / 15)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    zero = np.clip(np.rint(-low[:, None] * inverse), 0, 15)
    tail = np.concatenate([zero, np.zeros_like(zero)], axis=1).astype(np.uint8)
    return np.concatenate([head, tail, _nibbles(np.clip(np.rint(groups * inverse) + zero, 0, 15))], axis=1)


def _fp8(fmt: str, groups: Floats) -> Bytes:
    """e4m3 under a float32 scale per 128 inputs; the largest weight becomes 448."""
    scale = np.maximum(np.abs(groups).max(1, keepdims=True), 1e-30).astype(np.float32) / np.float32(448)
    codes = torch.from_numpy(groups / scale).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return np.concatenate([scale.view(np.uint8), codes], axis=1)


def write(path: Path, values: Mapping[str, Floats], matrices: Mapping[str, Coded]) -> Path:
    """A GGUF file with the demo model's metadata, `matrices`, and whatever else is in `values` as float32."""
    reader = gguf.GGUFReader(demo.path())
    writer = gguf.GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for name, x in values.items():
        made = matrices.get(name)
        if made is None:
            writer.add_tensor(name, x)
        else:
            rows = made.rows.reshape(*made.shape[:-1], -1)
            data = rows.view(np.float16) if made.format == "F16" else rows
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[made.format])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@dataclass(frozen=True, slots=True)
class _InMemory:
    """A matrix whose raw rows are at hand."""

    stored: StoredTensor
    format: str
    n: int
    k: int
    data: Bytes

    def rows(self, read: Read, start: int, stop: int) -> Bytes:
        return self.data[start:stop]


def checkpoint(matrices: Mapping[str, Coded]) -> Checkpoint:
    """The demo model with `matrices` in place of its own, for formats that no GGUF file holds."""
    files, stored = read_gguf_set(demo.path())
    meta = files[0].metadata
    config, tensors, _ = assemble_gguf(family_of_gguf(meta, "demo"), meta, stored, (demo.path(),))

    def changed(t: Tensor) -> Tensor:
        made = matrices.get(t.matrices[0].stored.name)
        if made is None:
            return t
        memory = _InMemory(t.matrices[0].stored, made.format, len(made.rows), made.shape[-1], made.rows)
        return Tensor(replace(t.info, format=made.format, n_bytes=made.rows.nbytes), (memory,))

    new = {name: changed(t) for name, t in tensors.items()}
    return Checkpoint(demo.path(), "gguf", (demo.path(),), new, config, "demo", metadata=meta)


def engine(source: Path | Checkpoint, tier: str, context: int) -> Engine:
    """hetero on one CPU, with a float32 cache: nothing but activations is rounded beside the weights."""
    with contextlib.closing(open_model(source) if isinstance(source, Path) else source) as opened:
        request = PlanRequest(device="cpu", threads=1, context=context, kv_dtype="f32")
        plan = replace(make_plan(opened.index, probe(device="cpu"), request), isa_tier=tier)
        return Engine(load_model(opened, Kernels(tier)), plan)


Forward = Callable[[list[int]], npt.NDArray[Any]]


def exact(values: Mapping[str, Floats], matrices: Mapping[str, Coded]) -> Forward:
    """Logits float64 [T, vocab] by the model's own training code, in float64, over exactly the coded weights."""
    held = {name: torch.from_numpy(matrices[name].values() if name in matrices else x) for name, x in values.items()}
    config = DemoConfig()
    state = {"embed.weight": held["token_embd.weight"], "norm.weight": held["output_norm.weight"]}
    for layer in range(config.layers):
        ours, theirs = f"layers.{layer}.", f"blk.{layer}."
        state |= {ours + name: held[theirs + new] for name, new in LAYER_NAMES.items()}
        gate_up = torch.cat([held[theirs + "ffn_gate_exps.weight"], held[theirs + "ffn_up_exps.weight"]], dim=1)
        state[ours + "moe.gate_up"] = gate_up.transpose(1, 2)
        state[ours + "moe.down"] = held[theirs + "ffn_down_exps.weight"].transpose(1, 2)
    model = DemoModel(config)
    model.load_state_dict(state)
    model.double()  # so that nothing but the weights is rounded

    def forward(ids: list[int]) -> npt.NDArray[Any]:
        with torch.inference_mode():
            return model.head(model(torch.tensor([ids]))[0])[0].numpy()

    return forward
