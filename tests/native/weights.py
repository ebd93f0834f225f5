"""Random raw rows of every format, and the arithmetic that the kernels promise, in numpy."""

from __future__ import annotations

import os
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from hetero.native import (
    FORMATS,
    ExpertBank,
    Kernels,
    PackedMatrix,
    allocate,
    cpu_tiers,
    down_offset,
    expert_bytes,
    row_bytes,
)

USABLE = [status.name for status in cpu_tiers() if status.usable]
HALVES = {
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    **{"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)},
    **dict.fromkeys(("MXFP4", "NVFP4", "FP8_E4M3"), ()),
    **{fmt: () for fmt in FORMATS if fmt.startswith("NVFP4_") or fmt.endswith("_F32")},
}
"""Where a format has fp16 or bf16 scales, other than at 0."""
WITH_MINIMUM = ("Q4_1", "Q5_1", "Q4_K", "Q5_K", "Q2_K", *(fmt for fmt in FORMATS if fmt.startswith("U4")))
Array = npt.NDArray[Any]
_SOME = ("I4_64", "I4_128_F16", "U4_32_F16", "U4_128", "NVFP4_F32_64", "NVFP4_F32_256", "I8_32", "I8_128_F32")
THINNED = [f for f, i in FORMATS.items() if i.kernel == f or f in _SOME]
"""The formats without those that share both inner loop and kind of scales with another; the rest run in `make soak`."""


def cpus(count: int) -> list[int]:
    """`count` CPUs, repeating the allowed ones where there are fewer."""
    allowed = sorted(os.sched_getaffinity(0))
    return [allowed[i % len(allowed)] for i in range(count)]


def raw_rows(fmt: str, n: int, k: int, seed: int = 0) -> Array:
    """Raw rows, uint8 [n, row_bytes]: any bits for codes and sub-scales, small finite fp16 scales."""
    rng = np.random.default_rng(seed)
    info = FORMATS[fmt]
    if fmt == "BF16":
        return np.ascontiguousarray((normal(rng, n, k).view(np.uint32) >> 16).astype(np.uint16)).view(np.uint8)
    if not info.quantised:
        return normal(rng, n, k).astype(np.float32 if fmt == "F32" else np.float16).view(np.uint8)
    rows = rng.integers(0, 256, (n, -(-k // info.block_k), info.block_bytes), dtype=np.uint8)
    with_scales(fmt, rows, rng.uniform(-0.02, 0.02, (2, *rows.shape[:2])).astype(np.float32))
    if fmt == "MXFP4":
        rows[..., 0] = rng.integers(118, 123, rows.shape[:2])
    elif fmt == "NVFP4":
        rows[..., :4] = rng.integers(0, 0x30, (*rows.shape[:2], 4))
    elif fmt == "FP8_E4M3":
        rows[..., 4:][rows[..., 4:] & 0x7F == 0x7F] = 0x7E
        rows.reshape(n, -1)[:, row_bytes(fmt, k) - -k % 128 :] = 0
    elif fmt.startswith("NVFP4_"):
        rows[..., 4 : 4 + info.block_k // 16] = rng.integers(0, 0x40, (*rows.shape[:2], info.block_k // 16))
        wholes = np.where(np.arange(n) % 2, 0.01, -90).astype(np.float32)  # factors and divisors
        rows[..., :4] = np.repeat(wholes[:, None], rows.shape[1], 1)[..., None].view(np.uint8)
    elif fmt.startswith("U4"):
        rows[..., 2] = rng.integers(0, 17, rows.shape[:2])
        rows[..., 3] = 0
    return rows.reshape(n, -1)


def with_scales(fmt: str, rows: Array, scales: Array) -> None:
    """Writes float32 scales [2, n, blocks] (the second: minima) into raw blocks [n, blocks, block_bytes]."""
    bfloat = fmt[:2] in ("I4", "U4", "I8") and not fmt.endswith("_F16")
    for offset, values in zip(HALVES.get(fmt, (0,)), scales, strict=False):
        stored = (values.view(np.uint32) >> 16).astype(np.uint16) if bfloat else values.astype(np.float16)
        rows[:, :, offset : offset + 2] = stored[..., None].view(np.uint8)
    if fmt == "FP8_E4M3" or fmt.endswith("_F32") or fmt.startswith("NVFP4_"):
        rows[..., :4] = np.ascontiguousarray(scales[0])[..., None].view(np.uint8)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def dequantized(fmt: str, rows: Array, n: int, k: int) -> Array:
    """float32 [n, k] by the gguf package; of formats that ggml has not, by their definition."""
    plain = {"F32": np.float32, "F16": np.float16}
    if fmt == "FP8_E4M3":
        blocks = rows.reshape(n, -1, 132)
        scales, codes = np.ascontiguousarray(blocks[..., :4]).view(np.float32), torch.from_numpy(blocks[..., 4:].copy())
        return (codes.view(torch.float8_e4m3fn).float().numpy() * scales).reshape(n, -1)[:, :k]
    if fmt.startswith("NVFP4_"):
        return _nvfp4(fmt, rows.reshape(n, -1, FORMATS[fmt].block_bytes)).reshape(n, k)
    if fmt[:3] == "I8_":
        blocks = rows.reshape(n, -1, FORMATS[fmt].block_bytes)
        scales = _scales(fmt, blocks)
        return (blocks[..., -FORMATS[fmt].block_k :].view(np.int8).astype(np.float32) * scales).reshape(n, k)
    if fmt[:3] in ("I4_", "U4_"):
        return _int4(fmt, rows.reshape(n, -1, FORMATS[fmt].block_bytes)).reshape(n, k)
    data = rows.view(plain[fmt]) if fmt in plain else rows
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[fmt]).astype(np.float32).reshape(n, k)


def _int4(fmt: str, blocks: Array) -> Array:
    head = 2 if fmt.startswith("I4") else 4
    wide = _scales(fmt, blocks)
    zero = 8 if head == 2 else blocks[..., 2:3].astype(np.int32)
    packed = blocks[..., head:].reshape(*blocks.shape[:2], -1, 1, 16)
    codes = np.concatenate([packed & 15, packed >> 4], axis=3).reshape(*blocks.shape[:2], -1)
    return ((codes.astype(np.int32) - zero).astype(np.float32) * wide).astype(np.float32)


def _scales(fmt: str, blocks: Array) -> Array:
    """float32 [n, blocks, 1] of the scales at the beginning of blocks."""
    if fmt.endswith("_F32"):
        return np.ascontiguousarray(blocks[..., :4]).view(np.float32)
    scales = np.ascontiguousarray(blocks[..., :2]).view(np.uint16)
    if fmt.endswith("_F16"):
        return scales.view(np.float16).astype(np.float32)
    return (scales.astype(np.uint32) << 16).view(np.float32)


def _nvfp4(fmt: str, blocks: Array) -> Array:
    """Code * (scale * whole), or where the float32 is negative code * (scale / -whole), each rounded to float32."""
    count = FORMATS[fmt].block_k // 16
    whole = np.ascontiguousarray(blocks[..., :4]).view(np.float32)
    scales = torch.from_numpy(blocks[..., 4 : 4 + count].copy()).view(torch.float8_e4m3fn).float().numpy()
    scales = np.where(whole < 0, scales / -whole, scales * whole).astype(np.float32)
    packed = blocks[..., 4 + count :].reshape(*blocks.shape[:2], -1, 1, 16)
    codes = np.concatenate([packed & 15, packed >> 4], axis=3).reshape(*blocks.shape[:2], count, 16)
    book = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    return np.where(codes & 8, -book[codes & 7], book[codes & 7]) * scales[..., None]


def as_read(fmt: str, x: Array) -> Array:
    """float64 activations as kernels of that format read them: int8 per group of 32, or unchanged."""
    if FORMATS[fmt].plain:
        return x.astype(np.float64)
    groups = x.reshape(len(x), x.shape[1] // 32, 32)
    amax = np.abs(groups).max(-1, keepdims=True)
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=amax > 1e-30)
    return (np.rint(groups * inverse).astype(np.float64) * (amax / np.float32(127))).reshape(x.shape)


def packed(kernels: Kernels, fmt: str, rows: Array, n: int, k: int) -> PackedMatrix:
    return PackedMatrix(fmt, n, k, kernels.pack(fmt, rows, n, k), (n, k))


def bank(kernels: Kernels, formats: tuple[str, str, str], n_experts: int, hidden: int, inter: int) -> Any:
    """A random bank and its float64 weights: (ExpertBank, gate [E, I, H], up [E, I, H], down [E, H, I])."""
    gate, up, down = formats
    stride = expert_bytes(gate, up, down, hidden, inter)
    data = allocate(n_experts * stride)
    dense: tuple[list[Array], ...] = ([], [], [])
    for e in range(n_experts):
        shapes = ((gate, inter, hidden), (up, inter, hidden), (down, hidden, inter))
        rows = [raw_rows(fmt, n, k, 10 * e + i) for i, (fmt, n, k) in enumerate(shapes)]
        for (fmt, n, k), raw, to in zip(shapes, rows, dense, strict=True):
            to.append(dequantized(fmt, raw, n, k).astype(np.float64))
        out = data[e * stride : (e + 1) * stride]
        kernels.pack_expert(rows[0], gate, rows[1], up, rows[2], down, hidden, inter, out)
    offset = down_offset(gate, up, hidden, inter)
    built = ExpertBank(n_experts, hidden, inter, gate, up, down, data, stride, offset)
    return built, *(np.stack(matrices) for matrices in dense)
