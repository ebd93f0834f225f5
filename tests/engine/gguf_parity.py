"""What the comparisons of a family's GGUF file with the reference and with llama.cpp share.

A module has a fixture `files` (module scope) that gives a checkpoint's directory and the GGUF file of the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hetero.engine import Engine, Sampling, Token
from tests.engine.llamacpp import LlamaCpp

BOUND = 1e-3
Files = tuple[Path, Path]


def prompt(n: int, seed: int = 0) -> list[int]:
    """Random tokens."""
    return np.random.default_rng(seed).integers(0, 400, n).tolist()


def load(path: Path) -> Engine:
    """An engine that computes in float32 throughout."""
    return Engine.load(path, device="cpu", threads=2, kv_dtype="f32")


def greedy(engine: Engine, ids: list[int], n: int) -> list[int]:
    """`n` tokens that continue `ids`."""
    events = engine.generate(ids, Sampling(max_tokens=n, ignore_eos=True), reuse=False)
    return [event.id for event in events if isinstance(event, Token)]


@pytest.fixture(scope="module")
def engine(files: Files) -> Iterator[Engine]:
    """The GGUF file in hetero."""
    loaded = load(files[1])
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def peer(files: Files) -> Iterator[LlamaCpp]:
    """The same file in llama.cpp."""
    loaded = LlamaCpp(files[1])
    yield loaded
    loaded.close()
