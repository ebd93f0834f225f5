"""Rotary positions for every family: frequencies of one RopeConfig, and the rotation itself.

YaRN has two corrections that are easily confused, so each has a function of its own: `rotation_scale` multiplies
cos and sin, `softmax_mscale` multiplies the attention's scale.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hetero.models.config import RopeConfig

if TYPE_CHECKING:
    import torch


def _mscale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's temperature 0.1 * m * ln(s) + 1 (arXiv 2309.00071, eq. 22 and DeepSeek-V2's generalisation)."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def rotation_scale(rope: RopeConfig) -> float:
    """The factor on cos and sin: given, or mscale(factor, m) / mscale(factor, m_all), or mscale(factor)."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor)


def softmax_mscale(rope: RopeConfig) -> float:
    """The factor on the softmax scale of MLA: mscale(factor, mscale_all_dim) squared, else 1."""
    if rope.kind != "yarn" or not rope.mscale_all_dim:
        return 1.0
    return _mscale(rope.factor, rope.mscale_all_dim) ** 2


def _yarn_range(rope: RopeConfig) -> tuple[float, float]:
    """The pair indices between which YaRN blends: those that turn beta_fast and beta_slow times in the old context."""

    def pair(turns: float) -> float:
        return rope.dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair(rope.beta_fast), pair(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, rope.dim - 1)


def _yarn(rope: RopeConfig, base: torch.Tensor) -> torch.Tensor:
    import torch

    low, high = _yarn_range(rope)
    if low == high:
        high += 0.001  # as the reference does: a step instead of a ramp, without dividing by zero
    ramp = ((torch.arange(rope.dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    extrapolate = 1 - ramp
    return 1.0 / (rope.factor * base) * (1 - extrapolate) + 1.0 / base * extrapolate


def _llama3(rope: RopeConfig, inverse: torch.Tensor) -> torch.Tensor:
    import torch

    wavelength = 2 * math.pi / inverse
    low = rope.original_context / rope.low_freq_factor
    high = rope.original_context / rope.high_freq_factor
    scaled = torch.where(wavelength > low, inverse / rope.factor, inverse)
    if low == high:  # Llama 4 Scout: a step, without a range to blend in
        return scaled
    smooth = (rope.original_context / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * inverse / rope.factor + smooth * inverse
    return torch.where((wavelength >= high) & (wavelength <= low), blended, scaled)


def inverse_frequencies(rope: RopeConfig) -> torch.Tensor:
    """Angle per position of each rotated pair, float32 [dim / 2], in the operation order of the reference code.

    float32 on purpose: the models were trained with float32 angles, so a more exact angle is a different model.
    """
    import torch

    base = rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim)
    if rope.freq_factors:
        base = base * torch.tensor(rope.freq_factors, dtype=torch.float32)
    if rope.kind == "yarn":
        return _yarn(rope, base)
    inverse = 1.0 / base
    if rope.kind == "llama3":
        return _llama3(rope, inverse)
    if rope.kind == "linear":
        return inverse / rope.factor
    return inverse


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Rotate the first `2 * cos.shape[-1]` values of each head of x [T, heads, d]; the rest passes through.

    Interleaved pairs come out as two halves: attention is a dot product, so q and k may share any order.
    """
    import torch

    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
    else:
        a, b = turned[..., : width // 2], turned[..., width // 2 :]
    parts = [a * cos - b * sin, b * cos + a * sin]
    if rest.shape[-1]:
        parts.append(rest)
    return torch.cat(parts, dim=-1)
