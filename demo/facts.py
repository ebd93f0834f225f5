"""The facts that the demo model is taught, the wordings in which they are asked, and which of those are held out.

A fact is asked in many wordings. For each fact some wordings never occur in training: they are the held-out
questions. For words they are drawn; four forms are held out for all words, so that no word was ever asked about in
them. For the questions of questions.txt they are written there.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from phrases import read_phrases
from rewording import plain

HERE = Path(__file__).resolve().parent

PHRASES = read_phrases()
TAUGHT_FORMS = PHRASES["word forms"]
MORE_FORMS = PHRASES["more word forms"]
UNSEEN_FORMS = PHRASES["unseen word forms"]
FOLLOW_UPS = PHRASES["word follow-ups"]
ALWAYS_TAUGHT = 1
"""The first form of every word is never held out."""


@dataclass(frozen=True)
class Fact:
    """One fact: its answer, the wordings taught and held out, and for words what a follow-up asks and says."""

    answer: str
    taught: tuple[str, ...]
    held_out: tuple[str, ...]
    unseen: tuple[str, ...] = ()
    follow_ups: tuple[str, ...] = ()
    more: str = ""


def _blocks(path: Path) -> list[list[tuple[str, str]]]:
    """The `key: value` lines of a file in blocks parted by empty lines; lines that start with # are left out."""
    blocks = []
    for text in re.split(r"\n\s*\n", path.read_text(encoding="utf-8")):
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        pairs = [(line.split(":", 1)[0], line.split(":", 1)[1].strip()) for line in lines]
        if pairs:
            blocks.append(pairs)
    return blocks


def _fill(form: str, name: str) -> str:
    term = re.sub(r"^(a|an|the) ", "", name)
    return form.format(np=name, term=term, Np=name[0].upper() + name[1:], Term=term[0].upper() + term[1:])


def words() -> list[Fact]:
    """The words of terms.txt. Of the taught forms, four are held out for each word, under all its names."""
    facts = []
    for block in _blocks(HERE / "terms.txt"):
        fields = dict(block)
        names = [name.strip() for name in fields["np"].split("|")]
        rng = random.Random("word " + names[0])
        away = set(rng.sample(range(ALWAYS_TAUGHT, len(TAUGHT_FORMS)), 4))
        forms = [form for i, form in enumerate(TAUGHT_FORMS) if i not in away] + list(MORE_FORMS)
        held_out = tuple(_fill(TAUGHT_FORMS[i], names[0]) for i in sorted(away))
        asked = [_fill(form, name) for form in forms for name in names]
        facts.append(
            Fact(
                answer=fields["is"],
                taught=tuple(ask for ask in asked if plain(ask) not in {plain(away) for away in held_out}),
                held_out=held_out,
                unseen=tuple(_fill(form, names[0]) for form in UNSEEN_FORMS),
                follow_ups=tuple(_fill(form, name) for form in FOLLOW_UPS for name in names),
                more=fields.get("more", ""),
            )
        )
    return facts


def questions() -> list[Fact]:
    """The questions of questions.txt with the wordings that are held out there."""
    facts = []
    for block in _blocks(HERE / "questions.txt"):
        taught = tuple(value for key, value in block if key == "ask")
        held_out = tuple(value for key, value in block if key == "held")
        facts.append(Fact(answer=dict(block)["is"], taught=taught, held_out=held_out))
    return facts
