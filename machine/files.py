"""Small reads below a root folder, so that a fixture tree can stand for a whole machine."""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str | None:
    """The stripped content of a file of /proc or /sys, or None if it is absent or unreadable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The file's single integer, or None if it is absent or holds something else (such as `max`)."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def parse_cpu_list(text: str) -> frozenset[int]:
    """The CPUs of a kernel list such as `0-3,8,10-11`; parts that are not numbers are left out."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def read_cpu_list(path: Path) -> frozenset[int]:
    """The CPUs listed in a file, empty if it is absent."""
    return parse_cpu_list(read_text(path) or "")


def cpu_list_text(cpus: frozenset[int]) -> str:
    """The kernel's list form of `cpus`: `0-3,8`."""
    parts: list[str] = []
    ordered = sorted(cpus)
    start = 0
    for i, cpu in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != cpu + 1:
            first = ordered[start]
            parts.append(str(cpu) if first == cpu else f"{first}-{cpu}")
            start = i + 1
    return ",".join(parts)
