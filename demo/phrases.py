"""The phrases of phrases.txt by section."""

from __future__ import annotations

from pathlib import Path


def read_phrases() -> dict[str, tuple[str, ...]]:
    """Section name to its lines, in the file's order."""
    sections: dict[str, list[str]] = {}
    name = ""
    for line in (Path(__file__).resolve().parent / "phrases.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            name = line[1:-1]
            sections[name] = []
        elif line and not line.startswith("#"):
            sections[name].append(line)
    return {name: tuple(lines) for name, lines in sections.items()}
