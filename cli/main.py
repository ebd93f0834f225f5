"""The entry point `hetero`: it imports nothing before Ctrl-C can be answered."""

from __future__ import annotations

from collections.abc import Sequence


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; no exception leaves this function."""
    try:
        from hetero.cli import app

        return app.main(args)
    except KeyboardInterrupt:
        return 130
