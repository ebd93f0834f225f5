"""Finds out where a model's text files are and reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hetero.machine.types import ModelError
from hetero.models.text import from_gguf, from_hf
from hetero.models.text.model import TextModel


def load_text(*, directory: Path | None, metadata: Mapping[str, Any], vocab_size: int) -> TextModel:
    """The text side of a model, from a directory or from a GGUF file's metadata (`directory` None).

    `directory` is a Hugging Face model's or one that `TextModel.save` wrote; `vocab_size` is the number of rows of
    the model's embedding. Raises ModelError for absent, damaged or unsupported files.
    """
    if directory is None:
        return from_gguf.load(metadata, vocab_size)
    saved = directory / from_gguf.SAVED_NAME
    if saved.is_file():
        return from_gguf.load(from_gguf.read_saved(saved), vocab_size)
    if not directory.is_dir():
        raise ModelError(f"{directory}: no such directory for the tokenizer's files", "check the path")
    return from_hf.load(directory, vocab_size)
