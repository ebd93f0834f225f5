"""Byte counts as people read them."""

from __future__ import annotations


def size_text(n_bytes: int) -> str:
    """`n_bytes` in binary units with three significant digits at most: `640 B`, `7.6 GiB`, `139 GiB`."""
    size = float(n_bytes)
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "B" or size >= 100 else f"{size:.1f} {units[0]}"
