"""Other ways to say the same question: noise, frames ("How do I ...?", "How can I ...?"), synonyms, additions.

A question that is held out must never come out of here: the caller gives the set of them.
"""

from __future__ import annotations

import random
import re

from phrases import read_phrases

PHRASES = read_phrases()
FRAMES = tuple((name.removeprefix("frame "), forms) for name, forms in PHRASES.items() if name.startswith("frame "))
"""A pattern, and the forms that its groups may be put into."""
NOISE = sorted({word.strip("?.,!") for word in " ".join(PHRASES["noise"]).split()})
SYNONYMS = tuple(tuple(line.split(" | ")) for line in PHRASES["synonyms"])


def plain(text: str) -> str:
    """The question without capitals and the signs at its end: what two wordings are compared by."""
    return text.lower().strip(" ?.!=")


def reframe(rng: random.Random, text: str) -> str:
    """The question in another frame, if one fits."""
    for pattern, forms in FRAMES:
        found = re.match(pattern, text)
        if found:
            new: str = rng.choice(forms).format(*found.groups())
            return new[0].upper() + new[1:]
    return text


def replace_words(rng: random.Random, text: str) -> str:
    """The question with one or two words replaced by synonyms."""
    for group in rng.sample(SYNONYMS, len(SYNONYMS)):
        for word in group:
            if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text):
                text = re.sub(rf"(?<![\w-]){re.escape(word)}(?![\w-])", rng.choice(group), text, count=1)
                if rng.random() < 0.5:
                    return text
                break
    return text


def disturb(rng: random.Random, text: str) -> str:
    """The question with a small word left out, or with words put in that have nothing to do with it."""
    words = text.split(" ")
    if rng.random() < 0.5:
        small = [i for i, word in enumerate(words) if word.lower() in PHRASES["small words"]]
        if small and len(words) > 2:
            del words[rng.choice(small)]
    else:
        for _ in range(rng.randrange(1, 4)):
            words.insert(rng.randrange(len(words) + 1), rng.choice(NOISE))
    return " ".join(words)


def loosen(rng: random.Random, text: str) -> str:
    """The same question as people type it: other capitals, no question mark, words before, after and in between."""
    if rng.random() < 0.20:
        text = disturb(rng, text)
    if rng.random() < 0.25:
        text = text[0].lower() + text[1:] if rng.random() < 0.6 else text.lower()
    if rng.random() < 0.2:
        text = text.rstrip("?.!") or text
    if rng.random() < 0.15:
        before = rng.choice(PHRASES["before"]) + " "
        text = before + (text[0].lower() + text[1:] if rng.random() < 0.4 else text)
    if rng.random() < 0.10:
        end = text[-1] if text[-1] in "?.!" else ""
        after = rng.choice(PHRASES["after"])
        after = after if after.startswith(",") else f" {after}"
        text = text + after if after.endswith(".") else text.rstrip("?.!") + after + end
    return text


def reword(rng: random.Random, text: str, forbidden: frozenset[str]) -> str:
    """Another wording of a question of questions.txt that is not one of the `forbidden` plain wordings."""
    while True:
        new = reframe(rng, text) if rng.random() < 0.5 else text
        if rng.random() < 0.4:
            new = replace_words(rng, new)
        new = loosen(rng, new)
        if plain(new) not in forbidden:
            return new
