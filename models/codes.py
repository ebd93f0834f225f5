"""Numbers of quantised files as numpy arrays: scales to float32, and the few codes that are zero points."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hetero.models.formats import plain_to_f32

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
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


def word_codes(words: npt.NDArray[np.uint32], bits: int = 4, order: tuple[int, ...] = ()) -> Bytes:
    """The codes of words [..., m] as uint8 [..., 32 / bits * m], one per byte; `order` says which comes first."""
    shifts = np.array([bits * place for place in order or range(32 // bits)], dtype=np.uint32)
    wide = (words[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    codes: Bytes = wide.astype(np.uint8).reshape(*words.shape[:-1], -1)
    return codes
