"""The weight formats that the kernels know, and their sizes, raw and packed. Needs no native library."""

from __future__ import annotations

from dataclasses import dataclass

TILE_ROWS = 16
BLOCK_K = 32
EXPERT_ALIGNMENT = 4096


@dataclass(frozen=True, slots=True)
class FormatInfo:
    """One format: its raw blocks and what a tile of 16 rows holds of it.

    `code` is its number in hetero.h. A raw block covers `block_k` inputs in `block_bytes`. A tile's block of
    16 rows x 32 inputs takes `tile_code_bytes`; its scale stream takes `tile_scale_bytes` per `scale_k` inputs.
    """

    name: str
    code: int
    code_bits: int
    block_k: int
    block_bytes: int
    scale_k: int = 0
    tile_scale_bytes: int = 0

    @property
    def tile_code_bytes(self) -> int:
        return TILE_ROWS * BLOCK_K * self.code_bits // 8

    @property
    def bits_per_weight(self) -> float:
        """Bits that one packed weight takes, scales included."""
        scales = self.tile_scale_bytes / (TILE_ROWS * self.scale_k) if self.scale_k else 0.0
        return 8 * (self.tile_code_bytes / (TILE_ROWS * BLOCK_K) + scales)

    @property
    def quantised(self) -> bool:
        """Whether weights are codes with scales."""
        return self.scale_k > 0

    @property
    def plain(self) -> bool:
        """Whether weights are floating-point numbers: kernels read float32 activations, not int8 per group of 32, and
        rows may have any length (FP8 pads its last block with zeros)."""
        return not self.quantised or self.name == "FP8_E4M3"

    @property
    def kernel(self) -> str:
        """The format in whose inner loop it is computed, at the same speed."""
        return {"I4_": "Q4_0", "U4_": "Q4_1", "I8_": "Q8_0", "NVF": "NVFP4"}.get(self.name[:3], self.name)


_GGML: tuple[tuple[str, int, int, int, int, int], ...] = (
    ("F32", 32, 1, 4, 0, 0),
    ("F16", 16, 1, 2, 0, 0),
    ("BF16", 16, 1, 2, 0, 0),
    ("Q8_0", 8, 32, 34, 32, 32),
    ("Q4_0", 4, 32, 18, 32, 32),
    ("Q4_1", 4, 32, 20, 32, 64),
    ("Q5_0", 5, 32, 22, 32, 32),
    ("Q5_1", 5, 32, 24, 32, 64),
    ("Q4_K", 4, 256, 144, 256, 256),
    ("Q5_K", 5, 256, 176, 256, 256),
    ("Q6_K", 6, 256, 210, 256, 288),
    ("Q2_K", 2, 256, 84, 256, 320),
    ("Q3_K", 3, 256, 110, 256, 224),
    ("IQ4_NL", 4, 32, 18, 32, 32),
    ("IQ4_XS", 4, 256, 136, 256, 128),
    ("MXFP4", 4, 32, 17, 32, 16),
    ("NVFP4", 4, 64, 36, 64, 64),
    ("FP8_E4M3", 8, 128, 132, 128, 64),
)
"""Name, bits of a code, inputs and bytes of a raw block, inputs and bytes of an entry of the scale stream."""
# Symmetric: a scale. With a zero point: a scale, one byte of zero point and one of nothing.
_INT4 = tuple(
    (f"{kind}_{group}{scale}", 4, group, group // 2 + head, group, entry)
    for kind, head, entry in (("I4", 2, 32), ("U4", 4, 48))
    for scale in ("", "_F16")
    for group in (32, 64, 128)
)

# e4m3 scales per 16 under one float32, which is a factor of them or, with a minus sign, their divisor.
_NVFP4 = tuple((f"NVFP4_F32_{k}", 4, k, 4 + k // 16 + k // 2, k, k + 64) for k in (64, 128, 256))
_INT8 = tuple(
    (f"I8_{group}{scale}", 8, group, group + entry // 16, group, entry)
    for scale, entry in (("", 32), ("_F16", 32), ("_F32", 64))
    for group in (32, 64, 128)
)

_ALL = _GGML + _INT4 + _NVFP4 + _INT8

FORMATS: dict[str, FormatInfo] = {row[0]: FormatInfo(row[0], code, *row[1:]) for code, row in enumerate(_ALL)}
"""By name. I4_G and U4_G are groups of G integers of 4 bits with a bf16 scale (_F16: fp16), U4 with a zero point; I8_G
of 8 bits with a bf16 scale (_F16, _F32: fp16, float32)."""


def format_info(fmt: str) -> FormatInfo:
    """The format of that name; ValueError when there is none."""
    try:
        return FORMATS[fmt]
    except KeyError:
        raise ValueError(f"unknown weight format {fmt}: expected one of {', '.join(FORMATS)}") from None


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def row_bytes(fmt: str, k: int) -> int:
    """Bytes of one raw row of `k` inputs; ValueError if `k` is no whole number of blocks and must be."""
    info = format_info(fmt)
    if k < 1 or (k % info.block_k and not info.plain):
        raise ValueError(f"{fmt} rows come in blocks of {info.block_k}, and {k} is no multiple of that")
    return -(-k // info.block_k) * info.block_bytes


def cache_row_bytes(fmt: str, width: int) -> int:
    """Bytes of a row of `width` values of the KV cache: whole blocks, the last one filled up with zeros."""
    return row_bytes(fmt, _round_up(width, format_info(fmt).block_k))


def tile_bytes(fmt: str, k: int) -> int:
    """Bytes of one packed tile: 16 rows of `k` inputs."""
    info = format_info(fmt)
    row_bytes(fmt, k)
    codes = -(-k // BLOCK_K) * info.tile_code_bytes
    scales = -(-k // info.scale_k) * info.tile_scale_bytes if info.scale_k else 0
    return _round_up(codes + scales, 64)


def packed_bytes(fmt: str, n: int, k: int) -> int:
    """Bytes of a packed matrix of `n` output rows and `k` inputs."""
    if n < 1:
        raise ValueError(f"a matrix of {n} rows cannot be packed")
    return -(-n // TILE_ROWS) * tile_bytes(fmt, k)


def down_offset(gate_fmt: str, up_fmt: str, hidden: int, inter: int) -> int:
    """Where an expert's down tiles start, behind its interleaved gate and up tiles."""
    return packed_bytes(gate_fmt, inter, hidden) + packed_bytes(up_fmt, inter, hidden)


def expert_bytes(gate_fmt: str, up_fmt: str, down_fmt: str, hidden: int, inter: int) -> int:
    """Bytes of one packed expert, padded to 4096 so that one direct read fetches it."""
    used = down_offset(gate_fmt, up_fmt, hidden, inter) + packed_bytes(down_fmt, hidden, inter)
    return _round_up(used, EXPERT_ALIGNMENT)
