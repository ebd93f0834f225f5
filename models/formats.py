"""Number formats of weights in files: names, block sizes, and plain types to float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hetero.models.iquants import FOREIGN
from hetero.native.formats import FORMATS as NATIVE_FORMATS
from hetero.native.formats import row_bytes as row_bytes


@dataclass(frozen=True, slots=True)
class Format:
    """How a row is stored: `block` values in `n_bytes` bytes."""

    name: str
    block: int
    n_bytes: int
    supported: bool = True


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as it lies in a file: its raw name, row-major shape, format name, and place."""

    name: str
    shape: tuple[int, ...]
    format: str
    file: int
    offset: int
    n_bytes: int


_SUPPORTED = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K"},
    **{13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16", 39: "MXFP4", 40: "NVFP4"},
}
# Known by name and size only, so that an error can say what a file holds. ggml's own ids end at 42.
_UNSUPPORTED = {
    9: ("Q8_1", 32, 36),
    15: ("Q8_K", 256, 292),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
}
FORMATS: dict[str, Format] = {i.name: Format(i.name, i.block_k, i.block_bytes) for i in NATIVE_FORMATS.values()}
"""The formats whose rows the kernels take, by ggml's name or, where ggml has no such type, by their own."""
_REPACKED = {16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 29: "IQ1_M"}
_REPACKED |= {34: "TQ1_0", 35: "TQ2_0"}
GGML_TYPES: dict[int, Format] = {
    26: Format("I32", 1, 4),
    **{i: FORMATS[name] for i, name in _SUPPORTED.items()},
    **{i: Format(name, 256, FOREIGN[name].block_bytes) for i, name in _REPACKED.items()},
    **{i: Format(*f, supported=False) for i, f in _UNSUPPORTED.items()},
}
GGML_NAMES_ONLY: dict[int, str] = {
    4: "Q4_2 (removed from ggml)",
    5: "Q4_3 (removed from ggml)",
    31: "Q4_0_4_4 (removed from ggml)",
    32: "Q4_0_4_8 (removed from ggml)",
    33: "Q4_0_8_8 (removed from ggml)",
    36: "IQ4_NL_4_4 (removed from ggml)",
    37: "IQ4_NL_4_8 (removed from ggml)",
    38: "IQ4_NL_8_8 (removed from ggml)",
    41: "Q1_0",
    42: "Q2_0",
}
"""Ids whose blocks cannot be sized; from 97 on they belong to ik_llama.cpp."""

SAFETENSORS_BITS: dict[str, int] = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8},
    **{"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32},
    **{"I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}
"""Bits of one value for every dtype of the safetensors format."""
SAFETENSORS_SUPPORTED = ("F32", "F16", "BF16")


def ggml_type_name(type_id: int) -> str:
    """What to call a ggml type in a message, known or not."""
    if type_id in GGML_TYPES:
        return GGML_TYPES[type_id].name
    if type_id in GGML_NAMES_ONLY:
        return GGML_NAMES_ONLY[type_id]
    return f"number {type_id}" + (" (a type of ik_llama.cpp)" if 97 <= type_id < 1000 else "")


def stored_item(tensor: StoredTensor) -> int:
    """Bytes of one value of a tensor in a safetensors file."""
    return SAFETENSORS_BITS[tensor.format] // 8


def n_elements(shape: tuple[int, ...]) -> int:
    """The number of values, exactly (never overflows)."""
    return math.prod(shape)


def plain_to_f32(raw: npt.NDArray[np.uint8], fmt: str) -> npt.NDArray[np.float32]:
    """The values of little-endian F32, F16 or BF16 bytes, 1-D. Other formats are a ValueError."""
    if fmt == "F32":
        return raw.view("<f4").astype(np.float32)
    if fmt == "F16":
        return raw.view("<f2").astype(np.float32)
    if fmt == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    raise ValueError(f"{fmt} is no plain format")
