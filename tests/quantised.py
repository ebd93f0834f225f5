"""Random matrices as quantised checkpoints store them, and the float32 values that they stand for by the formulae.

The values are computed here one element at a time from the definition, not by the code under test: FP8 and e8m0 through
torch's types, integers and nibbles by shifting.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
AWQ = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: the format's own name of its type, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def stored(array: Array, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> Stored:
    names = {"float32": "F32", "float16": "F16", "uint8": "U8", "int8": "I8", "int32": "I32", "uint32": "I32"}
    names |= {"int64": "I64", "uint16": "BF16", "float64": "F64"}
    return Stored(dtype or names[array.dtype.name], shape or array.shape, np.ascontiguousarray(array).tobytes())


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    """Any dtype, also those that numpy and older versions of the safetensors package lack."""
    header, offset = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [offset, offset + len(t.data)]}
        offset += len(t.data)
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(t.data for t in tensors.values()))


@dataclass(frozen=True)
class Quantised:
    """Tensors by what follows the matrix's name, and the values of the matrix."""

    parts: dict[str, Stored]
    values: npt.NDArray[np.float32]


def bf16(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.float32]]:
    """Positive bfloat16 numbers as they are stored, and as float32."""
    bits = ((rng.uniform(0.01, 0.03, shape).astype(np.float32)).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def e4m3(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    codes = rng.integers(0, 256, shape, dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x38
    return codes, torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()


def fp8_grid(
    rng: np.random.Generator, n: int, k: int, *, scale: str = "F32", name: str = "weight_scale_inv"
) -> Quantised:
    """e4m3 under a scale per 128 x 128, the last ones ragged."""
    codes, values = e4m3(rng, (n, k))
    grid = (-(-n // 128), -(-k // 128))
    if scale == "F8_E8M0":
        exponent = rng.integers(100, 130, grid, dtype=np.uint8)
        exponent[0, 0] = 0
        scales = torch.from_numpy(exponent).view(torch.float8_e8m0fnu).float().numpy()
        s = stored(exponent, "F8_E8M0")
    else:
        scales = rng.uniform(1e-4, 2e-3, grid).astype(np.float32)
        s = stored(scales)
    full = np.repeat(np.repeat(scales, 128, axis=0), 128, axis=1)[:n, :k]
    return Quantised({"weight": stored(codes, "F8_E4M3"), name: s}, values * full)


def fp8_rows(rng: np.random.Generator, n: int, k: int, *, flat: bool = False, wide: bool = False) -> Quantised:
    """e4m3 under a scale per row, stored as [n, 1] or [n], in float32 or bfloat16."""
    codes, values = e4m3(rng, (n, k))
    shape = (n,) if flat else (n, 1)
    bits, scales = bf16(rng, shape)
    s = stored(scales) if wide else stored(bits, "BF16")
    return Quantised({"weight": stored(codes, "F8_E4M3"), "weight_scale": s}, values * scales.reshape(n, 1))


def fp8_one(rng: np.random.Generator, n: int, k: int) -> Quantised:
    """e4m3 under one scale, as Mistral stores it."""
    codes, values = e4m3(rng, (n, k))
    scale = np.float32(0.0123)
    parts = {"weight": stored(codes, "F8_E4M3"), "weight_scale": stored(np.array(scale), shape=())}
    parts["input_scale"] = stored(np.array(scale))
    return Quantised(parts, values * scale)


def packed_words(codes: Array, bits: int = 4) -> npt.NDArray[np.uint32]:
    """Eight codes of 4 bits or four of 8 to a word along the last axis, the first in the lowest bits."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    words = codes.reshape(*codes.shape[:-1], -1, 32 // bits).astype(np.uint32) << shifts
    return np.bitwise_or.reduce(words, axis=-1)


def int8(rng: np.random.Generator, n: int, k: int, *, group: int = 0, scale: str = "BF16") -> Quantised:
    """compressed-tensors' int-quantized: signed bytes with a scale per row (group 0) or group."""
    codes, scales, s = _int8(rng, n, k, group, scale)
    return Quantised({"weight": stored(codes.astype(np.int8)), "weight_scale": s}, codes.astype(np.float32) * scales)


def packed_int8(rng: np.random.Generator, n: int, k: int, *, group: int = 0, scale: str = "BF16") -> Quantised:
    """compressed-tensors' pack-quantized with 8 bits: 128 more than the number, four to a word."""
    codes, scales, s = _int8(rng, n, k, group, scale)
    parts = {"weight_packed": stored(packed_words(codes + 128, 8)), "weight_scale": s}
    parts["weight_shape"] = stored(np.array([n, k], dtype=np.int64))
    return Quantised(parts, codes.astype(np.float32) * scales)


def _int8(rng: np.random.Generator, n: int, k: int, group: int, scale: str) -> tuple[Array, Array, Stored]:
    codes, groups = rng.integers(-128, 128, (n, k)), k // group if group else 1
    bits, scales = bf16(rng, (n, groups))
    s = stored(bits, "BF16")
    if scale != "BF16":
        scales = rng.uniform(0.01, 0.03, (n, groups)).astype(np.float16 if scale == "F16" else np.float32)
        s = stored(scales)
    return codes, np.repeat(scales.astype(np.float32), k // groups, axis=1), s


def gptq8(rng: np.random.Generator, n: int, k: int, *, group: int = 128) -> Quantised:
    """GPTQ with 8 bits, whose zero points are all 128 and stored less one."""
    codes, groups = rng.integers(0, 256, (k, n)), k // group
    scales = rng.uniform(0.01, 0.03, (groups, n)).astype(np.float16)
    parts = {
        "qweight": stored(np.ascontiguousarray(packed_words(codes.T, 8).T)),
        "qzeros": stored(packed_words(np.full((groups, n), 127), 8)),
        "scales": stored(scales),
    }
    wide = np.repeat(scales.astype(np.float32), group, axis=0)
    return Quantised(parts, np.ascontiguousarray(((codes - 128).astype(np.float32) * wide).T))


def mxfp8(rng: np.random.Generator, n: int, k: int) -> Quantised:
    """e4m3 with an e8m0 scale per 32."""
    codes, values = e4m3(rng, (n, k))
    exponent = rng.integers(100, 130, (n, k // 32)).astype(np.uint8)
    scales = np.exp2(exponent.astype(np.float32) - 127)
    parts = {"weight": stored(codes, "F8_E4M3"), "weight_scale": stored(exponent)}
    return Quantised(parts, values * np.repeat(scales, 32, axis=1))


def nvfp4(rng: np.random.Generator, n: int, k: int, *, divides: bool = False) -> Quantised:
    """e2m1 with an e4m3 scale per 16 and a float32: ModelOpt's factor, or the divisor of compressed-tensors."""
    codes = rng.integers(0, 16, (n, k))
    raw = rng.integers(0, 0x7F, (n, k // 16), dtype=np.uint8)
    scales = torch.from_numpy(raw).view(torch.float8_e4m3fn).float().numpy()
    whole = np.float32(rng.uniform(500, 3000) if divides else rng.uniform(1e-4, 1e-3))
    parts = {"weight_packed" if divides else "weight": stored(nibbles(codes)), "weight_scale": stored(raw, "F8_E4M3")}
    if divides:
        parts |= {"weight_global_scale": stored(np.array([whole])), "input_global_scale": stored(np.array([whole]))}
    else:
        parts |= {"weight_scale_2": stored(np.array(whole), shape=()), "input_scale": stored(np.array(whole), shape=())}
    full = scales / whole if divides else scales * whole
    return Quantised(parts, E2M1[codes] * np.repeat(full, 16, axis=1))


def compressed_int4(
    rng: np.random.Generator, n: int, k: int, *, group: int = 32, zeros: bool = False, half: bool = False
) -> Quantised:
    """compressed-tensors' pack-quantized; n need not be a multiple of 8."""
    codes = rng.integers(0, 16, (n, k))
    bits, scales = bf16(rng, (n, k // group))
    if half:
        scales = scales.astype(np.float16).astype(np.float32)
    zero = rng.integers(0, 16, (n, k // group)) if zeros else np.full((n, k // group), 8)
    parts = {
        "weight_packed": stored(packed_words(codes)),
        "weight_scale": stored(scales.astype(np.float16)) if half else stored(bits, "BF16"),
        "weight_shape": stored(np.array([n, k], dtype=np.int64)),
    }
    if zeros:
        padded = np.zeros((-(-n // 8) * 8, k // group), dtype=zero.dtype)
        padded[:n] = zero
        parts["weight_zero_point"] = stored(np.ascontiguousarray(packed_words(padded.T).T))
    values = (codes - np.repeat(zero, group, axis=1)).astype(np.float32) * np.repeat(scales, group, axis=1)
    return Quantised(parts, values)


def gptq(
    rng: np.random.Generator, n: int, k: int, *, group: int = 128, symmetric: bool = False, v2: bool = False
) -> Quantised:
    """GPTQ; zero points are stored less one but for the second version of the format."""
    codes, groups = rng.integers(0, 16, (k, n)), k // group
    scales = rng.uniform(0.01, 0.03, (groups, n)).astype(np.float16)
    zero = np.full((groups, n), 8) if symmetric else rng.integers(0 if v2 else 1, 16 if v2 else 17, (groups, n))
    parts = {
        "qweight": stored(np.ascontiguousarray(packed_words(codes.T).T)),
        "qzeros": stored(packed_words(zero if v2 else zero - 1)),
        "scales": stored(scales),
        "g_idx": stored((np.arange(k) // group).astype(np.int32)),
    }
    wide = np.repeat(zero, group, axis=0), np.repeat(scales.astype(np.float32), group, axis=0)
    return Quantised(parts, np.ascontiguousarray(((codes - wide[0]).astype(np.float32) * wide[1]).T))


def awq(rng: np.random.Generator, n: int, k: int, *, group: int = 128) -> Quantised:
    """AWQ (GEMM): eight outputs to a word, in the order 0 2 4 6 1 3 5 7."""
    codes, groups = rng.integers(0, 16, (k, n)), k // group
    scales, zero = rng.uniform(0.01, 0.03, (groups, n)).astype(np.float16), rng.integers(0, 16, (groups, n))

    def words(q: Array) -> npt.NDArray[np.uint32]:
        out = np.zeros((q.shape[0], n // 8), dtype=np.uint32)
        for j, nibble in enumerate(AWQ):
            out |= q[:, j::8].astype(np.uint32) << np.uint32(4 * nibble)
        return out

    parts = {"qweight": stored(words(codes)), "qzeros": stored(words(zero)), "scales": stored(scales)}
    wide = np.repeat(zero, group, axis=0), np.repeat(scales.astype(np.float32), group, axis=0)
    return Quantised(parts, np.ascontiguousarray(((codes - wide[0]).astype(np.float32) * wide[1]).T))


def nibbles(codes: Array) -> npt.NDArray[np.uint8]:
    """Two codes to a byte along the last axis, the first in the low half."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def mxfp4(rng: np.random.Generator, n: int, k: int, *, name: str = "weight", signed: bool = False) -> Quantised:
    """e2m1 with an e8m0 scale per 32: DeepSeek-V4's int8 bytes, or compressed-tensors' uint8."""
    codes, exponent = rng.integers(0, 16, (n, k)), rng.integers(110, 130, (n, k // 32)).astype(np.uint8)
    raw = nibbles(codes)
    scale = stored(exponent, "F8_E8M0") if signed else stored(exponent)
    parts = {name: stored(raw.view(np.int8) if signed else raw), "scale" if signed else "weight_scale": scale}
    return Quantised(parts, E2M1[codes] * np.repeat(np.exp2(exponent.astype(np.float32) - 127), 32, axis=1))


Stack = tuple[dict[str, Stored], Array, Array]


def fused_mxfp4(rng: np.random.Generator, experts: int, inter: int, hidden: int) -> Stack:
    """gpt-oss: gate and up rows in turn, blocks of 16 bytes beside their scales. Tensors, gate_up and down values."""
    parts: dict[str, Stored] = {}
    values = []
    for name, n, k in (("gate_up_proj", 2 * inter, hidden), ("down_proj", hidden, inter)):
        codes = rng.integers(0, 16, (experts, n, k))
        exponent = rng.integers(110, 130, (experts, n, k // 32)).astype(np.uint8)
        parts[f"{name}_blocks"] = stored(nibbles(codes), shape=(experts, n, k // 32, 16))
        parts[f"{name}_scales"] = stored(exponent)
        values.append(E2M1[codes] * np.repeat(np.exp2(exponent.astype(np.float32) - 127), 32, axis=2))
    return parts, values[0], values[1]


def fused_fp8(rng: np.random.Generator, experts: int, inter: int, hidden: int) -> Stack:
    """Stacks of e4m3 with a grid of scales per expert. Tensors, gate_up and down values."""
    parts: dict[str, Stored] = {}
    values = []
    for name, n, k in (("gate_up_proj", 2 * inter, hidden), ("down_proj", hidden, inter)):
        made = [fp8_grid(rng, n, k) for _ in range(experts)]
        for part, suffix in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
            one = made[0].parts[part]
            data = b"".join(m.parts[part].data for m in made)
            parts[name + suffix] = Stored(one.dtype, (experts, *one.shape), data)
        values.append(np.stack([m.values for m in made]))
    return parts, values[0], values[1]


Make = Callable[..., Quantised]
