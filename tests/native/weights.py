"""Random raw rows of every format, and the arithmetic that the kernels promise, in numpy."""

from __future__ import annotations

import os
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from hetero.native import FORMATS, ExpertBank, Kernels, PackedMatrix, allocate, cpu_tiers, down_offset, expert_bytes

USABLE = [status.name for status in cpu_tiers() if status.usable]
SCALE_OFFSETS = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
Array = npt.NDArray[Any]


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
    rows = rng.integers(0, 256, (n, k // info.block_k, info.block_bytes), dtype=np.uint8)
    for offset in SCALE_OFFSETS.get(fmt, (0,)):
        scales = rng.uniform(-0.02, 0.02, rows.shape[:2]).astype(np.float16)
        rows[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
    return rows.reshape(n, -1)


def normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def dequantized(fmt: str, rows: Array, n: int, k: int) -> Array:
    """float32 [n, k] by the gguf package."""
    plain = {"F32": np.float32, "F16": np.float16}
    data = rows.view(plain[fmt]) if fmt in plain else rows
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[fmt]).astype(np.float32).reshape(n, k)


def as_read(fmt: str, x: Array) -> Array:
    """float64 activations as kernels of that format read them: int8 per group of 32, or unchanged."""
    if not FORMATS[fmt].quantised:
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
