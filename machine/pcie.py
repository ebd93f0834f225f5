"""How fast the first GPU takes what the host's memory holds."""

from __future__ import annotations

import time

from hetero.machine.disk import summary
from hetero.machine.types import Measured

_BYTES = 256 << 20
_SAMPLES = 5


def measure_pcie() -> Measured | None:
    """The rate of copies from pinned memory, by torch; None where torch or its driver fails."""
    try:
        import torch

        host = torch.empty(_BYTES, dtype=torch.uint8).pin_memory()
        device = torch.empty(_BYTES, dtype=torch.uint8, device="cuda")
        rates = []
        for _ in range(_SAMPLES + 1):
            torch.cuda.synchronize()
            began = time.perf_counter()
            device.copy_(host, non_blocking=True)
            torch.cuda.synchronize()
            rates.append(_BYTES / (time.perf_counter() - began))
    except (ImportError, RuntimeError, AssertionError):
        return None
    return summary(rates[1:], "B/s")  # the first copy pays for setting things up
