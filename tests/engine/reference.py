"""transformers as the independent reference: logits of a checkpoint directory in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tests.tiny import load_reference

Floats = npt.NDArray[np.float32]


def hf_logits(directory: Path, ids: list[int]) -> Floats:
    """float32 [T, vocab] by transformers, eager attention."""
    model = load_reference(directory)
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float().numpy()


def relative(found: Floats, expected: Floats) -> float:
    """Largest absolute difference, in standard deviations of the expected logits."""
    return float(np.abs(found - expected).max() / expected.std())
