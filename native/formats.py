"""The weight formats that the kernels know, and their sizes, raw and packed. Needs no native library."""

from __future__ import annotations

from dataclasses import dataclass

TILE_ROWS = 16
BLOCK_K = 32
EXPERT_ALIGNMENT = 4096


@dataclass(frozen=True, slots=True)
class FormatInfo:
    """One format: its raw (ggml) blocks and what a tile of 16 rows holds of it.

    `code` is its number in hetero.h. A raw block covers `block_k` inputs in `block_bytes`. A tile's block of
    16 rows x 32 inputs takes `tile_code_bytes`; its scale stream takes `tile_scale_bytes` per `scale_k` inputs.
    """

    name: str
    code: int
    code_bits: int
    block_k: int
    block_bytes: int
    tile_code_bytes: int
    scale_k: int = 0
    tile_scale_bytes: int = 0

    @property
    def bits_per_weight(self) -> float:
        """Bits that one packed weight takes, scales included."""
        scales = self.tile_scale_bytes / (TILE_ROWS * self.scale_k) if self.scale_k else 0.0
        return 8 * (self.tile_code_bytes / (TILE_ROWS * BLOCK_K) + scales)

    @property
    def quantised(self) -> bool:
        return self.scale_k > 0


FORMATS: dict[str, FormatInfo] = {
    info.name: info
    for info in (
        FormatInfo("F32", 0, 32, 1, 4, 2048),
        FormatInfo("F16", 1, 16, 1, 2, 1024),
        FormatInfo("BF16", 2, 16, 1, 2, 1024),
        FormatInfo("Q8_0", 3, 8, 32, 34, 512, 32, 32),
        FormatInfo("Q4_0", 4, 4, 32, 18, 256, 32, 32),
        FormatInfo("Q4_1", 5, 4, 32, 20, 256, 32, 64),
        FormatInfo("Q5_0", 6, 5, 32, 22, 320, 32, 32),
        FormatInfo("Q5_1", 7, 5, 32, 24, 320, 32, 64),
        FormatInfo("Q4_K", 8, 4, 256, 144, 256, 256, 256),
        FormatInfo("Q5_K", 9, 5, 256, 176, 320, 256, 256),
        FormatInfo("Q6_K", 10, 6, 256, 210, 384, 256, 288),
    )
}


def format_info(fmt: str) -> FormatInfo:
    """The format of that name; ValueError when there is none."""
    try:
        return FORMATS[fmt]
    except KeyError:
        raise ValueError(f"unknown weight format {fmt}: expected one of {', '.join(FORMATS)}") from None


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def row_bytes(fmt: str, k: int) -> int:
    """Bytes of one raw row of `k` inputs; ValueError if `k` is no whole number of blocks."""
    info = format_info(fmt)
    if k < 1 or k % info.block_k:
        raise ValueError(f"{fmt} rows come in blocks of {info.block_k}, and {k} is no multiple of that")
    return k // info.block_k * info.block_bytes


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
