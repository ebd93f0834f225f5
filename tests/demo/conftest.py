"""The scripts in demo/ are no package: they are imported as they run, from their own folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetero.engine import Engine
from hetero.models import demo

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "demo"))


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The bundled model, loaded once."""
    loaded = Engine.load(demo.path(), threads=2)
    yield loaded
    loaded.close()
