"""Write the demo model's texts: training dialogues, and the held-out set that the published figures are measured on.

    python demo/make_data.py --dialogues 90000 --out build/demo --heldout models/demo/heldout.json

Everything is generated from terms.txt, questions.txt, small_talk.py and rules for sums; one seed, one result.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

import facts
import small_talk as talk
from facts import Fact
from rewording import loosen, plain, reword

Turn = tuple[str, str]
"""A question and its answer."""

SUM_FORMS = talk.PHRASES["sum forms"]
SUM_FOLLOW_UPS = talk.PHRASES["sum follow-ups"]
SYSTEMS = talk.PHRASES["system messages"]
HELD_OUT_SEED = 1
LIMIT = 100
"""Sums are of two numbers below this."""


def is_held_out_sum(a: int, b: int) -> bool:
    """Whether the pair, in either order, is kept out of training: one in ten; sums of two digits are all taught."""
    low, high = min(a, b), max(a, b)
    return high > 9 and random.Random(f"sum {low} {high}").randrange(10) == 0


def sum_answer(a: int, b: int) -> str:
    """The sum worked out column by column, as the model is taught to do it."""
    if a < 10 and b < 10:
        return f"{a} + {b} = {a + b}."
    ones = a % 10 + b % 10
    carry = " + 1" if ones > 9 else ""
    tens = a // 10 + b // 10 + ones // 10
    return f"Ones: {a % 10} + {b % 10} = {ones}. Tens: {a // 10} + {b // 10}{carry} = {tens}. So {a} + {b} = {a + b}."


def sum_turn(rng: random.Random, held_out: bool, forms: tuple[str, ...] = SUM_FORMS) -> Turn:
    """A sum and its answer, taught or held out."""
    while True:
        small = rng.random() < 0.2
        a = rng.randrange(10) if small else rng.randrange(LIMIT)
        b = rng.randrange(10) if rng.random() < 0.2 else rng.randrange(LIMIT)
        if is_held_out_sum(a, b) == held_out:
            return rng.choice(forms).format(a=a, b=b), sum_answer(a, b)


class Teacher:
    """Draws dialogues. With `held_out` it asks only in held-out wordings, held-out sums and stories."""

    def __init__(self, seed: int, held_out: bool = False) -> None:
        self.rng = random.Random(seed)
        self.held_out = held_out
        self.words = facts.words()
        self.questions = facts.questions()
        self.forbidden = frozenset(
            plain(ask) for fact in self.words + self.questions for ask in fact.held_out + fact.unseen
        )

    def fact_turn(self, follow_up: bool) -> tuple[Turn, Fact]:
        """A question about a word or about use, and the fact behind it."""
        rng = self.rng
        fact = rng.choice(self.words if rng.random() < 0.5 else self.questions)
        if self.held_out:
            return (rng.choice(fact.held_out + fact.unseen[:1]), fact.answer), fact
        if follow_up and fact.follow_ups and rng.random() < 0.5:
            return (loosen(rng, rng.choice(fact.follow_ups)), fact.answer), fact
        if not fact.unseen:
            return (reword(rng, rng.choice(fact.taught), self.forbidden), fact.answer), fact
        return (loosen(rng, rng.choice(fact.taught)), fact.answer), fact

    def turns(self, follow_up: bool) -> list[Turn]:
        """One subject of a dialogue: a fact (perhaps with more about it), a sum, a story, small talk or a refusal."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.58:
            turn, fact = self.fact_turn(follow_up)
            more = bool(fact.more) and rng.random() < 0.35
            return [turn, (loosen(rng, rng.choice(talk.PHRASES["more"])), fact.more)] if more else [turn]
        if kind < 0.80:
            forms = SUM_FOLLOW_UPS if follow_up and rng.random() < 0.4 else SUM_FORMS
            return [sum_turn(rng, self.held_out, forms)]
        if kind < 0.85:
            return [talk.story(rng, self.held_out)]
        if kind < 0.93:
            question, answer = talk.outside(rng)
            return [(loosen(rng, question), answer)]
        return [self.small_talk(follow_up)]

    def small_talk(self, follow_up: bool) -> Turn:
        """A greeting, a how-are-you, thanks, an approval or a farewell."""
        kinds = [
            ("greetings", talk.GREETING),
            ("how are you", talk.FINE),
            ("thanks", talk.WELCOME),
            ("approvals", talk.GO_ON),
            ("farewells", talk.FAREWELL),
        ]
        weights = (1, 1, 3, 2, 1) if follow_up else (6, 2, 1, 1, 1)
        asks, answer = self.rng.choices(kinds, weights)[0]
        text = self.rng.choice(talk.PHRASES[asks])
        return text.lower() if self.rng.random() < 0.2 else text, answer

    def dialogue(self, subjects: int) -> list[dict[str, str]]:
        """Messages of a dialogue over so many subjects."""
        rng = self.rng
        turns = [self.small_talk(False)] if subjects > 1 and rng.random() < 0.2 else []
        for _ in range(subjects):
            turns += self.turns(follow_up=bool(turns))
        messages = [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.1 else []
        for question, answer in turns:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return messages


def dialogues(seed: int, count: int) -> Iterator[list[dict[str, str]]]:
    """Training dialogues: most have one to three subjects, a few are long enough to fill the context."""
    teacher = Teacher(seed)
    for _ in range(count):
        long = teacher.rng.random() < 0.02
        subjects = teacher.rng.randrange(8, 40) if long else teacher.rng.choice((1, 1, 1, 1, 1, 2, 2, 3))
        yield teacher.dialogue(subjects)


def held_out_set(seed: int) -> dict[str, object]:
    """What training never saw: 200 questions, 200 sums, 40 questions about other things, and 60 dialogues."""
    rng = random.Random(seed)
    words, questions = facts.words(), facts.questions()
    asked = [(fact.held_out[0], fact.answer) for fact in questions]
    forms = [(question, fact.answer) for fact in words for question in fact.held_out]
    unseen = [(question, fact.answer) for fact in words for question in fact.unseen]
    asked += rng.sample(forms, 200 - 50 - len(asked)) + rng.sample(unseen, 50)
    sums: dict[str, str] = {}
    while len(sums) < 200:
        question, answer = sum_turn(rng, held_out=True)
        sums.setdefault(question, answer)
    outside = [rng.choice(talk.PHRASES["thing forms"]).format(thing) for thing in talk.PHRASES["unseen things"]]
    teacher = Teacher(seed, held_out=True)
    return {
        "questions": [{"question": question, "answer": answer} for question, answer in asked],
        "sums": [{"question": question, "answer": answer} for question, answer in sums.items()],
        "outside": [{"question": q[0].upper() + q[1:], "answer": talk.OUTSIDE} for q in outside],
        "dialogues": [teacher.dialogue(rng.choice((1, 1, 2, 3))) for _ in range(60)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dialogues", type=int, default=90000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--heldout", type=Path, default=Path("models/demo/heldout.json"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "train.jsonl").open("w", encoding="utf-8") as file:
        for messages in dialogues(args.seed, args.dialogues):
            file.write(json.dumps(messages, ensure_ascii=False) + "\n")
    held_out = held_out_set(HELD_OUT_SEED)
    args.heldout.write_text(json.dumps(held_out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
