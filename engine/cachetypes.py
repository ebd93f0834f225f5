"""The types in which the KV cache holds values, and torch's way between them and float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

BLOCK, _BLOCK_BYTES = 32, 34
_NAN = 0x7E00
_BEYOND = 65504.0
"""The largest fp16."""


@dataclass(frozen=True, slots=True)
class CacheType:
    """`name` is ggml's; a row, which is a state's last axis, lies in elements of `dtype`: of Q8_0 the blocks' bytes."""

    name: str
    dtype: torch.dtype

    def row(self, width: int) -> int:
        """Elements of a row of `width` values."""
        return -(-width // BLOCK) * _BLOCK_BYTES if self.name == "Q8_0" else width

    def narrow(self, values: torch.Tensor) -> torch.Tensor:
        """float32 [..., width] as rows [..., row]."""
        return _to_blocks(values) if self.name == "Q8_0" else values.to(self.dtype)

    def widen(self, rows: torch.Tensor, width: int) -> torch.Tensor:
        """Rows [..., row] as float32 [..., width] (a view where that needs no copy)."""
        return _from_blocks(rows, width) if self.name == "Q8_0" else rows.float()


CACHE_TYPES = {
    "f32": CacheType("F32", torch.float32),
    "bf16": CacheType("BF16", torch.bfloat16),
    "f16": CacheType("F16", torch.float16),
    "q8": CacheType("Q8_0", torch.uint8),
}
"""By their names in a plan."""


def _to_blocks(values: torch.Tensor) -> torch.Tensor:
    """The bytes that the native kernels store (`native/src/kv_rows.h`): per 32 values the least fp16 scale that reaches
    them all, NaN where there is none, and a code each."""
    blocks = F.pad(values.float(), (0, -values.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    wanted = blocks.abs().amax(dim=-1) / 127.0
    finite = wanted <= _BEYOND  # neither is a NaN
    wanted = torch.where(finite, wanted, 0.0)
    half = wanted.to(torch.float16)
    bits = half.view(torch.int16) + (half.float() < wanted)
    scale = bits.view(torch.float16).float()[..., None]
    inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
    codes = torch.where(finite[..., None], blocks * inverse, 0.0).round().to(torch.int8)
    bits = torch.where(finite, bits, _NAN).to(torch.int16)
    return torch.cat([bits[..., None].view(torch.uint8), codes.view(torch.uint8)], dim=-1).flatten(-2)


def _from_blocks(rows: torch.Tensor, width: int) -> torch.Tensor:
    blocks = rows.unflatten(-1, (-1, _BLOCK_BYTES))
    scale = blocks[..., :2].contiguous().view(torch.float16).float()
    return (blocks[..., 2:].view(torch.int8).float() * scale).flatten(-2)[..., :width]
