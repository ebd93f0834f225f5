"""GGUF's formats of 1 to 3 bits that kernels do not compute with: their exact values, and the kept kind for each.

In all of them a weight is an integer from a grid (or of three values) times d * sub * unit: `d` is fp16 per 256 inputs,
`sub` a small odd integer per group, `unit` a power of two. The grids are data of the formats (ggml-common.h) and lie in
iquant_grids.json: for each entry the rank of its values among the format's, 2 or 4 bits each.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from hetero.native.formats import row_bytes

U8 = npt.NDArray[np.uint8]
Ints = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]
_K = 256
_LEVELS = {
    **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S"), (8, 25, 43)),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62),
    "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
    "IQ1": (-8, 0, 8),
}
"""The values that occur in a grid; IQ1's are eighths, because a shift of an eighth is added to them."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Weights of `n` blocks of 256: numbers int16 [n, 256], d float32 [n, 1], sub int32 [n, groups], and the unit."""

    numbers: Ints
    d: F32
    sub: Ints
    unit: float

    def values(self) -> F32:
        """float32 [n, 256]; every product is exact, so their order does not matter."""
        scale = (self.d * np.float32(self.unit) * self.sub.astype(np.float32)).astype(np.float32)
        n, groups = scale.shape
        values: F32 = (self.numbers.reshape(n, groups, -1).astype(np.float32) * scale[..., None]).reshape(n, _K)
        return values


@functools.cache
def _grid(name: str, width: int) -> Ints:
    """int16 [entries, width]."""
    text = resources.files(__package__).joinpath("iquant_grids.json").read_text(encoding="ascii")
    packed = np.frombuffer(base64.b85decode(json.loads(text)[name]), np.uint8)
    bits = 2 if len(_LEVELS[name]) == 3 else 4
    ranks = packed[:, None] >> np.arange(0, 8, bits, dtype=np.uint8) & ((1 << bits) - 1)
    grid: Ints = np.array(_LEVELS[name], np.int16)[ranks].reshape(-1, width)
    return grid


def _half(raw: U8) -> Ints:
    wide: Ints = np.ascontiguousarray(raw).view(np.float16).astype(np.float32)
    return wide


def _bits(raw: Ints, shifts: tuple[int, ...] | range, mask: int) -> Ints:
    """The bit fields of each value, flat per block: int32 [n, values * fields]."""
    fields = raw[..., None].astype(np.int64) >> np.array(shifts) & mask
    flat: Ints = fields.reshape(len(raw), -1).astype(np.int32)
    return flat


def _signed(numbers: Ints, signs: Ints) -> Ints:
    """Numbers [n, 256] with the signs that bytes [n, 32] hold, a bit for each."""
    return np.where(_bits(signs, range(8), 1) == 1, -numbers, numbers)


def _even_signs(seven: Ints) -> Ints:
    """Bytes of eight signs from seven, the eighth such that an even number is set."""
    parity = np.bitwise_xor.reduce(seven[..., None] >> np.arange(7) & 1, axis=-1)
    signs: Ints = seven | parity << 7
    return signs


def _looked_up(name: str, index: Ints, width: int) -> Ints:
    numbers: Ints = _grid(name, width)[index].reshape(len(index), _K)
    return numbers


def _words(raw: U8, kind: str) -> Ints:
    return np.ascontiguousarray(raw).view(kind)


def _iq2_xxs(b: U8) -> Parts:
    pairs = _words(b[:, 2:], "<u4").reshape(len(b), 8, 2)
    index = np.ascontiguousarray(pairs[..., 0]).view(np.uint8)
    signs = _even_signs(_bits(pairs[..., 1], (0, 7, 14, 21), 127))
    numbers = _signed(_looked_up("IQ2_XXS", index, 8), signs)
    return Parts(numbers, _half(b[:, :2]), 2 * _bits(pairs[..., 1], (28,), 15) + 1, 1 / 8)


def _iq2_xs(b: U8) -> Parts:
    words = _words(b[:, 2:66], "<u2")
    numbers = _signed(_looked_up("IQ2_XS", words & 511, 8), _even_signs(words.astype(np.int32) >> 9))
    return Parts(numbers, _half(b[:, :2]), 2 * _bits(b[:, 66:], (0, 4), 15) + 1, 1 / 8)


def _iq2_s(b: U8) -> Parts:
    index = b[:, 2:34] | _bits(b[:, 66:74], (0, 2, 4, 6), 3) << 8
    numbers = _signed(_looked_up("IQ2_S", index, 8), b[:, 34:66])
    return Parts(numbers, _half(b[:, :2]), 2 * _bits(b[:, 74:], (0, 4), 15) + 1, 1 / 8)


def _iq3_xxs(b: U8) -> Parts:
    words = _words(b[:, 66:], "<u4")
    numbers = _signed(_looked_up("IQ3_XXS", b[:, 2:66], 4), _even_signs(_bits(words, (0, 7, 14, 21), 127)))
    return Parts(numbers, _half(b[:, :2]), 2 * _bits(words, (28,), 15) + 1, 1 / 4)


def _iq3_s(b: U8) -> Parts:
    index = b[:, 2:66] | _bits(b[:, 66:74], range(8), 1) << 8
    numbers = _signed(_looked_up("IQ3_S", index, 4), b[:, 74:106])
    return Parts(numbers, _half(b[:, :2]), 2 * _bits(b[:, 106:], (0, 4), 15) + 1, 1.0)


def _shifted(index: Ints, minus: Ints) -> Ints:
    """IQ1's grid numbers in eighths, one eighth added or, where `minus`, taken off; minus is [n, 256 / run]."""
    shift = np.where(minus == 1, -1, 1).repeat(_K // minus.shape[1], axis=1)
    numbers: Ints = _looked_up("IQ1", index, 8) + shift
    return numbers


def _iq1_s(b: U8) -> Parts:
    high = _words(b[:, 34:], "<u2")
    index = b[:, 2:34] | _bits(high, (0, 3, 6, 9), 7) << 8
    return Parts(_shifted(index, _bits(high, (15,), 1)), _half(b[:, :2]), 2 * _bits(high, (12,), 7) + 1, 1 / 8)


def _iq1_m(b: U8) -> Parts:
    words = _words(b[:, 48:], "<u2")
    d = np.bitwise_or.reduce((words & 0xF000) >> np.array([12, 8, 4, 0], np.uint16), axis=1).astype(np.uint16)
    index = b[:, :32] | _bits(b[:, 32:48], (0, 4), 7) << 8
    numbers = _shifted(index, _bits(b[:, 32:48], (3, 7), 1))
    return Parts(numbers, d.view(np.float16).astype(np.float32)[:, None], 2 * _bits(words, (0, 3, 6, 9), 7) + 1, 1 / 8)


def _tq1_0(b: U8) -> Parts:
    """Five numbers of three values to a byte, written as fractions of 256 in base 3."""
    parts = []
    for start, stop, powers in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        shifted = b[:, None, start:stop] * (3 ** np.arange(powers)).astype(np.uint8)[:, None]
        parts.append(((shifted.astype(np.int16) * 3) >> 8).reshape(len(b), -1))
    return Parts(np.concatenate(parts, axis=1) - 1, _half(b[:, 52:]), np.ones((len(b), 1), np.int32), 1.0)


def _tq2_0(b: U8) -> Parts:
    codes = b[:, :64].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    numbers = codes.reshape(len(b), _K).astype(np.int16) - 1
    return Parts(numbers, _half(b[:, 64:]), np.ones((len(b), 1), np.int32), 1.0)


def _as_q2_k(parts: Parts) -> tuple[U8, F32]:
    """Three values, and a fourth: scale 1 and minimum 1 of d. Without loss."""
    n = len(parts.numbers)
    codes = (parts.numbers + 1).astype(np.uint8).reshape(n, 2, 4, 32)
    low = np.bitwise_or.reduce(codes << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2).reshape(n, 64)
    d = parts.d.astype(np.float16).view(np.uint8)
    return np.concatenate([np.full((n, 16), 0x11, np.uint8), low, d, d], axis=1), parts.values()


def _as_q6_k(parts: Parts) -> tuple[U8, F32]:
    """A scale per 16: IQ1's eighths as they are (without loss), of IQ2 8, 25 and 43 as 6, 18 and 31."""
    n, numbers, unit = len(parts.numbers), parts.numbers, parts.unit
    if np.abs(numbers).max(initial=0) > 31:
        numbers, unit = np.rint(numbers * (31 / 43)), unit * 43 / 31
    codes = (numbers + 32).astype(np.uint8).reshape(n, 2, 4, 32)  # of 128: four runs of 32
    low = (codes[:, :, :2] & 15 | codes[:, :, 2:] << 4).reshape(n, 128)
    high = np.bitwise_or.reduce(codes >> 4 << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2).reshape(n, 64)
    d = (parts.d * np.float32(unit)).astype(np.float16)
    rows = np.concatenate([low, high, parts.sub.astype(np.uint8), d.view(np.uint8)], axis=1)
    return rows, Parts(numbers, d.astype(np.float32), parts.sub, 1.0).values()


def _as_q4_0(parts: Parts) -> tuple[U8, F32]:
    """IQ2_XXS: 8, 25 and 43 as 1, 3 and 5 times 8.5."""
    n = len(parts.numbers)
    numbers = np.rint(parts.numbers / 8.5)
    d = (parts.d * np.float32(8.5 * parts.unit) * parts.sub.astype(np.float32)).astype(np.float16)[..., None]
    blocks = np.concatenate([d.view(np.uint8), _nibbles((numbers + 8).astype(np.uint8))], axis=2)
    return blocks.reshape(n, -1), (numbers.reshape(n, 8, 32) * d.astype(np.float32)).reshape(n, _K).astype(np.float32)


def _as_q4_1(parts: Parts) -> tuple[U8, F32]:
    """Evenly spaced values, 16 of them at most, from the least of each group on; IQ3_XXS's 62 as 60."""
    n = len(parts.numbers)
    groups = parts.numbers.reshape(n, 8, 32)
    step = 8 if parts.unit < 1 else 2
    lowest = -15 * step // 2 if np.abs(groups).max(initial=0) > 9 or step == 2 else groups.min(axis=2, keepdims=True)
    codes = np.clip((groups - lowest) // step, 0, 15)
    scale = (parts.d * np.float32(parts.unit) * parts.sub.astype(np.float32))[..., None]
    d = (scale * np.float32(step)).astype(np.float16)
    m = (d.astype(np.float32) * np.asarray(lowest / step, np.float32)).astype(np.float16)
    blocks = np.concatenate([d.view(np.uint8), m.view(np.uint8), _nibbles(codes.astype(np.uint8))], axis=2)
    values = codes.astype(np.float32) * d.astype(np.float32) + m.astype(np.float32)
    return blocks.reshape(n, -1), values.reshape(n, _K)


def _nibbles(codes: U8) -> U8:
    """Codes [n, 256] as [n, 8, 16]: of each 32 the first half in the low bits."""
    runs = codes.reshape(-1, 8, 2, 16)
    return (runs[:, :, 0] | runs[:, :, 1] << 4).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A format that is read and repacked: bytes of its block of 256, the kept format, and how both are made.

    `loss` bounds the relative RMS error of repacked weights; what is lost depends on the grid alone.
    """

    block_bytes: int
    target: str
    loss: float
    read: Callable[[U8], Parts]
    pack: Callable[[Parts], tuple[U8, F32]]


FOREIGN: dict[str, Foreign] = {
    "IQ1_S": Foreign(50, "Q4_1", 0.0005, _iq1_s, _as_q4_1),
    "IQ1_M": Foreign(56, "Q6_K", 0.0, _iq1_m, _as_q6_k),
    "IQ2_XXS": Foreign(66, "Q4_0", 0.024, _iq2_xxs, _as_q4_0),
    "IQ2_XS": Foreign(74, "Q6_K", 0.011, _iq2_xs, _as_q6_k),
    "IQ2_S": Foreign(82, "Q6_K", 0.011, _iq2_s, _as_q6_k),
    "IQ3_XXS": Foreign(98, "Q4_1", 0.021, _iq3_xxs, _as_q4_1),
    "IQ3_S": Foreign(110, "Q4_1", 0.0006, _iq3_s, _as_q4_1),
    "TQ1_0": Foreign(54, "Q2_K", 0.0, _tq1_0, _as_q2_k),
    "TQ2_0": Foreign(66, "Q2_K", 0.0, _tq2_0, _as_q2_k),
}
"""By ggml's name."""


_AT_ONCE = 8192
"""Blocks that are repacked at once: some tens of MB of intermediate arrays."""


def kept_format(fmt: str) -> str:
    """The format in which weights of a file's format are held: its own unless it is foreign."""
    return FOREIGN[fmt].target if fmt in FOREIGN else fmt


def stored_row_bytes(fmt: str, k: int) -> int:
    """Bytes of a row of k weights in a file; ValueError where its blocks do not divide k."""
    if fmt not in FOREIGN:
        return row_bytes(fmt, k)
    if k % _K:
        raise ValueError(f"{fmt} rows come in blocks of {_K}, and {k} is no multiple of that")
    return k // _K * FOREIGN[fmt].block_bytes


def notes(formats: Iterable[str]) -> tuple[str, ...]:
    """What becomes of the foreign ones among a file's formats, one sentence each."""
    found = sorted(set(formats) & FOREIGN.keys())
    return tuple(f"{fmt} weights are held as {FOREIGN[fmt].target}, {_loss_text(FOREIGN[fmt].loss)}" for fmt in found)


def _loss_text(loss: float) -> str:
    return f"with a relative RMS error of at most {loss:.2%}" if loss else "without loss"


def dequantize(fmt: str, rows: U8) -> F32:
    """Rows of a foreign format, uint8 [n, row_bytes], as float32 [n, k], to the bit as ggml's reference."""
    return FOREIGN[fmt].read(_blocks(fmt, rows)).values().reshape(len(rows), -1)


def repack(fmt: str, rows: U8) -> tuple[str, U8, float]:
    """Rows of a foreign format in its kept one: (its name, uint8 [n, its row bytes], relative RMS error).

    The error is that of the weights, 0 where nothing was lost, and NaN for scales that are no numbers.
    """
    foreign, blocks = FOREIGN[fmt], _blocks(fmt, rows)
    packed, lost, norm = [], 0.0, 0.0
    for start in range(0, len(blocks), _AT_ONCE):
        with np.errstate(over="ignore", invalid="ignore"):  # bad scales stay bad, and are found where all are checked
            parts = foreign.read(blocks[start : start + _AT_ONCE])
            raw, values = foreign.pack(parts)
            exact = parts.values().ravel()
            delta = values.ravel() - exact
            lost += float(np.dot(delta, delta))
            norm += float(np.dot(exact, exact))
        packed.append(raw)
    error = (lost / norm) ** 0.5 if norm else 0.0
    out = np.empty((len(rows), row_bytes(foreign.target, rows.shape[1] // foreign.block_bytes * _K)), np.uint8)
    if packed:
        np.concatenate(packed, out=out.reshape(len(blocks), -1))
    return foreign.target, out, error


def _blocks(fmt: str, rows: U8) -> U8:
    return np.ascontiguousarray(rows).reshape(-1, FOREIGN[fmt].block_bytes)
