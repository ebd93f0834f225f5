"""Hyper-connections (arXiv 2512.24880) as DeepSeek-V4 has them: several residual streams that each block mixes anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hetero.models.blocks import Ops
from hetero.models.config import HyperConfig, ModelConfig

if TYPE_CHECKING:
    import torch


def unit(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., d] over the root of its mean square: an RMS norm without weights."""
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def narrow(
    config: ModelConfig, prefix: str, streams: torch.Tensor, ops: Ops
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a block reads of `streams` [T, n, hidden], [T, hidden]; and how its output is spread [T, n] and the streams
    are mixed [T, n, n] afterwards. `prefix` names the block's connections and ends with a dot."""
    import torch

    hyper = config.hyper
    assert hyper is not None
    n = hyper.streams
    before, after, mix = _affine(config, prefix, streams, ops).split([n, n, n * n], dim=1)
    x = torch.bmm((before.sigmoid() + hyper.eps)[:, None], streams)[:, 0]
    return x, 2 * after.sigmoid(), ops.balanced(mix.reshape(-1, n, n), hyper)


def widen(streams: torch.Tensor, out: torch.Tensor, spread: torch.Tensor, mix: torch.Tensor) -> torch.Tensor:
    """The streams after a block that gave `out` [T, hidden]: stream k is spread_k out + sum_j mix_jk stream_j."""
    import torch

    return torch.baddbmm(spread[..., None] * out[:, None], mix.mT, streams)


def last(config: ModelConfig, streams: torch.Tensor, ops: Ops) -> torch.Tensor:
    """The one residual [T, hidden] that the last norm reads."""
    import torch

    assert config.hyper is not None
    weights = _affine(config, "model.hc_head.", streams, ops).sigmoid() + config.hyper.eps
    return torch.bmm(weights[:, None], streams)[:, 0]


def _affine(config: ModelConfig, prefix: str, streams: torch.Tensor, ops: Ops) -> torch.Tensor:
    """The streams side by side, normed, through the matrix `fn`, times `scale` plus `base`."""
    mixes = ops.linear(prefix + "fn", unit(streams.flatten(1), config.rms_norm_eps))
    scale, base = ops.small(prefix + "scale"), ops.small(prefix + "base")
    assert scale is not None
    assert base is not None
    return mixes * scale + base


def doubly_stochastic(x: torch.Tensor, hyper: HyperConfig) -> torch.Tensor:
    """x [T, n, n] as positive matrices whose rows and columns sum to about 1 (Sinkhorn and Knopp)."""
    x = x.softmax(-1) + hyper.eps
    x /= x.sum(-2, keepdim=True) + hyper.eps
    for _ in range(hyper.iterations - 1):
        x /= x.sum(-1, keepdim=True) + hyper.eps
        x /= x.sum(-2, keepdim=True) + hyper.eps
    return x
