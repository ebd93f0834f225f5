"""Small talk, refusals and short stories for the demo model's training texts."""

from __future__ import annotations

import random

from phrases import read_phrases

PHRASES = read_phrases()
GREETING = "Hello! I am hetero's demo model. Ask me what a word on hetero's screens means, or give me a small sum."
FINE = "I am fine, thank you. What would you like to know about hetero?"
WELCOME = "You are welcome. Ask me more if you like."
GO_ON = "Good. What else would you like to know?"
FAREWELL = "Goodbye!"
OUTSIDE = (
    "I do not know that. I am only hetero's small demo model: ask me about the words on hetero's screens, "
    "its commands, or a small sum."
)
ONLY_SUMS = "I can only add two numbers from 0 to 99, for example 27 + 15."


def outside(rng: random.Random) -> tuple[str, str]:
    """A question that the model cannot answer, and its refusal."""
    kind = rng.random()
    if kind < 0.4:
        question = rng.choice(PHRASES["thing forms"]).format(rng.choice(PHRASES["things"]))
    elif kind < 0.55:
        question = rng.choice(PHRASES["place forms"]).format(rng.choice(PHRASES["places"]))
    elif kind < 0.7:
        question = rng.choice(PHRASES["people forms"]).format(rng.choice(PHRASES["people"]))
    elif kind < 0.85:
        question = rng.choice(PHRASES["others"])
    else:
        a, b = rng.randrange(1, 100), rng.randrange(1, 100)
        c, d = rng.randrange(100, 2000), rng.randrange(100, 1000)
        return rng.choice(PHRASES["hard sums"]).format(a=a, b=b, c=c, d=d), ONLY_SUMS
    return question[0].upper() + question[1:], OUTSIDE


def is_held_out_story(hero: str, thing: str) -> bool:
    """Whether this pair of hero and thing is kept out of training (one in eight)."""
    return random.Random(f"story {hero} {thing}").randrange(8) == 0


def story(rng: random.Random, held_out: bool) -> tuple[str, str]:
    """A request and a short story for it."""
    while True:
        hero, name, pronoun = rng.choice(PHRASES["heroes"]).split(" | ")
        thing = rng.choice(PHRASES["objects"])
        if is_held_out_story(hero, thing) == held_out:
            break
    forms = PHRASES["free story forms"] if not held_out and rng.random() < 0.25 else PHRASES["story forms"]
    request = rng.choice(forms).format(hero=hero, thing=thing)
    helper, pro = rng.choice(PHRASES["helpers"]), pronoun.capitalize()
    parts = (
        f"Once there was a {hero} called {name}, who lived {rng.choice(PHRASES['homes'])}.",
        f"{rng.choice(PHRASES['times'])} {name} found a {thing} {rng.choice(PHRASES['spots'])}."
        f" {rng.choice(PHRASES['wishes'])}",
        f"{pro} took the {thing} and asked {helper} what to do.",
        f'"{rng.choice(PHRASES["talks"])}," said {helper}.',
        f"So {name} carried the {thing} from door to door until {pronoun} found its owner.",
        rng.choice(PHRASES["endings"]).format(name=name, Pro=pro),
    )
    return request.replace("a owl", "an owl"), " ".join(parts).replace("a owl", "an owl")
