"""Small tensors in the form that forward passes use, made once from what a checkpoint or a store holds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hetero.models.config import ModelConfig

Floats = npt.NDArray[np.float32]


def derive(config: ModelConfig, small: Mapping[str, Floats]) -> dict[str, Floats]:
    """`small` by canonical name: zero-centred norms with their one; of gated delta nets A = -exp(A_log) and the
    convolution's weights [C, 1, K] as taps [K, C]; of hyper-connections a scale for each value, not each kind."""
    n = config.hyper.streams if config.hyper else 0
    out = {}
    for name, values in small.items():
        if name.endswith(".linear_attn.A_log"):
            out[name.removesuffix("_log")] = -np.exp(values)
        elif name.endswith(".linear_attn.conv1d.weight"):
            out[name] = np.ascontiguousarray(values[:, 0].T)
        elif name.endswith("_hc.scale"):
            out[name] = np.repeat(values, [n, n, n * n])
        elif config.zero_centred and name.endswith("norm.weight") and ".linear_attn." not in name:
            out[name] = 1 + values
        else:
            out[name] = values
    return out
