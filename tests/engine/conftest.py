"""Fixtures for the modules that have a fixture `files`; others have an `engine` of their own."""

from tests.engine.gguf_parity import engine, peer

__all__ = ["engine", "peer"]
