"""Measure the demo model with hetero's own engine: exact-answer rates and held-out perplexity.

    python demo/evaluate.py              # prints the figures of the bundled model as JSON
    python demo/evaluate.py --publish    # and writes them beside the model, where the tests hold it to them

An answer is right if it is, word for word, the answer that the fact was taught with (white space aside); for a sum
that includes the working. Answers are greedy. The perplexity is that of the assistant's tokens in the held-out
dialogues, each given all that stands before it; `perplexity_all` is that of every token.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetero.engine import Engine, Sampling, Token
from hetero.models import demo

HELD_OUT = Path(demo.__file__).resolve().parent / "heldout.json"
LONGEST_ANSWER = 120

Messages = list[dict[str, str]]


def held_out() -> dict[str, Any]:
    """The held-out questions, sums and dialogues."""
    loaded: dict[str, Any] = json.loads(HELD_OUT.read_text(encoding="utf-8"))
    return loaded


def prompt_ids(engine: Engine, messages: Messages, *, ask: bool = True) -> list[int]:
    """Token ids of the messages as the chat template writes them; with `ask` an answer may follow."""
    ids: list[int] = engine.text.encode_chat(messages, add_generation_prompt=ask).ids
    return ids


def answer(engine: Engine, question: str) -> str:
    """The model's greedy answer to a question."""
    return reply(engine, [{"role": "user", "content": question}])


def reply(engine: Engine, messages: Messages) -> str:
    """The model's greedy answer to the last message of a chat."""
    ids = prompt_ids(engine, messages)
    events = engine.generate(ids, Sampling(temperature=0.0, max_tokens=LONGEST_ANSWER))
    return "".join(event.text for event in events if isinstance(event, Token))


def is_right(given: str, expected: str) -> bool:
    """Word for word, white space aside."""
    return given.split() == expected.split()


def rate(engine: Engine, cases: Sequence[dict[str, str]]) -> float:
    """The share of cases that are answered right."""
    return sum(is_right(answer(engine, case["question"]), case["answer"]) for case in cases) / len(cases)


def token_losses(engine: Engine, messages: Messages) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Loss of every token but the first, and whether it belongs to an answer; float64 and bool, each [T - 1]."""
    ids = np.array(prompt_ids(engine, messages, ask=False))
    logits = engine.logits(ids[:-1].tolist()).astype(np.float64)
    top = logits.max(axis=1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    is_answer = np.zeros(len(ids), dtype=bool)
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            start = len(prompt_ids(engine, messages[:i]))
            stop = len(prompt_ids(engine, messages[: i + 1], ask=False)) - 1  # the newline after the end token
            is_answer[start:stop] = True
    return log_sum - logits[np.arange(len(ids) - 1), ids[1:]], is_answer[1:]


def perplexities(engine: Engine, dialogues: Sequence[Messages]) -> tuple[float, float]:
    """Perplexity of the assistant's tokens, and of all tokens."""
    pairs = [token_losses(engine, messages) for messages in dialogues]
    losses = np.concatenate([loss for loss, _ in pairs])
    is_answer = np.concatenate([mask for _, mask in pairs])
    return float(np.exp(losses[is_answer].mean())), float(np.exp(losses.mean()))


def figures(engine: Engine) -> dict[str, float]:
    """All published figures."""
    data = held_out()
    questions, sums = data["questions"], data["sums"]
    on_answers, on_all = perplexities(engine, data["dialogues"])
    return {
        "questions_right": rate(engine, questions),
        "sums_right": rate(engine, sums),
        "outside_right": rate(engine, data["outside"]),
        "perplexity": on_answers,
        "perplexity_all": on_all,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=demo.path())
    parser.add_argument("--publish", action="store_true", help="write figures.json beside the model")
    args = parser.parse_args()
    engine = Engine.load(args.model)
    try:
        text = json.dumps({name: round(value, 4) for name, value in figures(engine).items()}, indent=1) + "\n"
    finally:
        engine.close()
    print(text, end="")
    if args.publish:
        (args.model.parent / "figures.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
