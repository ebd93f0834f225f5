"""Numbers of quantised files as numpy arrays: scales to float32, and 4-bit codes from reading order to block order."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hetero.models.formats import plain_to_f32

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
_LOW, _HIGH = 0x0F0F0F0F0F0F0F0F, 0xF0F0F0F0F0F0F0F0
_PIECE = 1 << 20
"""Bytes that are reordered at a time: few enough to stay in a cache, enough that threads seldom wait for the
interpreter's lock between two steps."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which nibble of a word holds output 0, 1, ... of its eight."""

SCALE_DTYPES = ("F32", "F16", "BF16", "F8_E8M0", "U8")
E8M0_NAN = 255


def scales_to_f32(raw: Bytes, dtype: str) -> Floats:
    """Scales of one of SCALE_DTYPES as float32, exactly; U8 and F8_E8M0 are powers of two, 2^(byte - 127)."""
    if dtype not in ("F8_E8M0", "U8"):
        return plain_to_f32(raw.reshape(-1), dtype)
    exponent = raw.reshape(-1).astype(np.uint32)
    # 2^-127 is subnormal; 255 means NaN.
    bits = np.where(exponent == 0, np.uint32(0x00400000), exponent << np.uint32(23))
    scales: Floats = np.where(exponent == E8M0_NAN, np.uint32(0x7FC00000), bits).view(np.float32)
    return scales


def block_order(codes: Bytes, run: int) -> Bytes:
    """4-bit codes in reading order (low nibble first) to the order of ggml's blocks of `run` = 32 or 16 codes.

    In a block of 2h codes byte j then holds code j low and code j + h high. Any shape; the last axis is a multiple of
    run / 2 bytes.
    """
    source = np.ascontiguousarray(codes).reshape(-1)
    out = np.empty(codes.shape, dtype=np.uint8)
    flat = out.reshape(-1)
    for start in range(0, len(source), _PIECE):
        _order(source[start : start + _PIECE], flat[start : start + _PIECE], np.uint64 if run == 32 else np.uint32)
    return out


def _order(codes: Bytes, out: Bytes, wide: type[np.uint64] | type[np.uint32]) -> None:
    """One piece of `block_order`; a half of a block is a number of type `wide`."""
    low, high, four = wide(_LOW & np.iinfo(wide).max), wide(_HIGH & np.iinfo(wide).max), wide(4)
    halves = codes.view(wide).reshape(-1, 2)
    first, second = halves[:, 0], halves[:, 1]
    # Byte i of a half holds codes 2i and 2i + 1, so it gives bytes 2i and 2i + 1 of the block.
    even = (first & low) | ((second & low) << four)
    odd = ((first >> four) & low) | (second & high)
    pairs = out.view(np.uint16)
    pairs[:] = odd.view(np.uint8)
    pairs <<= np.uint16(8)
    pairs |= even.view(np.uint8)


def word_codes(words: npt.NDArray[np.uint32], order: tuple[int, ...] = tuple(range(8))) -> Bytes:
    """The codes of words [..., m] as uint8 [..., 8 m], one per byte; `order` says which nibble comes first."""
    shifts = np.array([4 * nibble for nibble in order], dtype=np.uint32)
    codes: Bytes = ((words[..., None] >> shifts) & np.uint32(15)).astype(np.uint8).reshape(*words.shape[:-1], -1)
    return codes


def joined(codes: Bytes) -> Bytes:
    """Codes one per byte, [..., 32 b], as blocks [..., b, 16]: code j low and code j + 16 high."""
    blocks = codes.reshape(*codes.shape[:-1], -1, 2, 16)
    both: Bytes = blocks[..., 0, :] | (blocks[..., 1, :] << np.uint8(4))
    return both
