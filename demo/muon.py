"""Muon: momentum whose matrix updates are orthogonalised (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon).

Facts that are seen seldom are learnt much sooner with it than with AdamW, because all directions of a matrix move
alike. Each expert's matrix is orthogonalised by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic Newton-Schulz step: steep at zero, so that five steps bring all singular values near one."""


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrix, roughly: singular values between 0.7 and 1.2. [..., m, n] in bfloat16."""
    a, b, c = COEFFICIENTS
    x = matrix.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """For matrices [m, n] and stacks of them [E, m, n]."""

    def __init__(self, params: Iterable[Tensor], momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """One update; the length of every step is the learning rate times sqrt(max(1, m / n))."""
        for group in self.param_groups:
            for weight in group["params"]:
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 1 - group["momentum"])
                ahead = weight.grad.lerp(mean, group["momentum"])
                update = orthogonalise(ahead).to(weight.dtype)
                scale = max(1.0, weight.shape[-2] / weight.shape[-1]) ** 0.5
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"] * scale)
