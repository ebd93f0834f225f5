"""Built-in model cards: the architecture of well-known models, so that they can be planned before a download."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hetero.machine.types import ModelIndex
from hetero.models.outline import index_of_config

_FOLDER = Path(__file__).parent / "cards"


@dataclass(frozen=True, slots=True)
class Card:
    """One card. `total` and `active` parameters are the published figures; `config` is a config.json's content."""

    name: str
    title: str
    aliases: tuple[str, ...]
    source: str
    total: float
    active: float
    config: dict[str, Any]

    @property
    def index(self) -> ModelIndex:
        return index_of_config(self.config, self.title, f"card {self.name}", joint=False)


@cache
def cards() -> dict[str, Card]:
    """All cards by name."""
    found = {}
    for path in sorted(_FOLDER.glob("*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        sizes = data["parameters"]
        head = (path.stem, data["title"], tuple(data["aliases"]), data["source"])
        found[path.stem] = Card(*head, sizes["total"], sizes["active"], data["config"])
    return found


def find_card(text: str) -> Card | None:
    """The card that `text` names, by its name or another one of the model, in any case."""
    wanted = text.lower()
    known = cards()
    return known.get(wanted) or next((card for card in known.values() if wanted in card.aliases), None)
