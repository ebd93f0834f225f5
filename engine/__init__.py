"""The engine: requests in, tokens out. Public: Engine, Sampling and the events."""

import os

# torch's OpenMP workers must sleep at once when they have nothing to do: by default they spin for milliseconds,
# on the very cores that the expert kernels need next. Read once, when torch is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from hetero.engine.engine import Engine
from hetero.engine.events import Done, Event, Prefill, Token
from hetero.engine.sampling import Sampling

__all__ = ["Done", "Engine", "Event", "Prefill", "Sampling", "Token"]
