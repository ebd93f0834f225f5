"""The bundled demo model: a small trained mixture of experts, one GGUF file. See README.md beside this file."""

from __future__ import annotations

from pathlib import Path


def path() -> Path:
    """Where the bundled model's file is."""
    return Path(__file__).resolve().parent / "hetero-demo.gguf"
