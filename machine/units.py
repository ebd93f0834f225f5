"""Byte counts as people read them."""

from __future__ import annotations


def size_text(n_bytes: int) -> str:
    """`n_bytes` in binary units with three significant digits at most: `640 B`, `7.6 GiB`, `139 GiB`."""
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size /= 1024
    else:
        unit = "TiB"
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
