"""A model that never stops by itself, small enough to load in a second."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.harness import Run, environment
from tests.tiny import random_weights, tiny_config, write_gguf


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random mixture of experts; its head is blind to the special tokens, so no answer ends before the context."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    config = tiny_config("qwen3moe", max_position_embeddings=32768)
    weights = random_weights("qwen3moe", config)
    weights["lm_head.weight"][-3:] = 0
    return write_gguf(path, "qwen3moe", config, weights)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A user's environment whose state lies in the test's own folder."""
    return environment(tmp_path / "state")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    return Run(monkeypatch, capsys, tmp_path / "state")
