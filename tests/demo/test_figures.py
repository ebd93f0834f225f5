"""The bundled model answers at least as well as the figures published beside it say."""

from __future__ import annotations

import json
from pathlib import Path

import evaluate
import pytest

from hetero.engine import Engine
from hetero.models import demo

PUBLISHED = json.loads((demo.path().parent / "figures.json").read_text(encoding="utf-8"))
DATA = evaluate.held_out()


def test_published_figures_meet_the_aims() -> None:
    assert PUBLISHED["questions_right"] >= 0.85
    assert PUBLISHED["sums_right"] >= 0.70
    assert len(DATA["questions"]) == len(DATA["sums"]) == 200


@pytest.mark.parametrize("kind", ["questions", "sums", "outside"])
def test_answers_are_right_as_often_as_published(engine: Engine, kind: str) -> None:
    assert evaluate.rate(engine, DATA[kind]) >= PUBLISHED[f"{kind}_right"]


def test_perplexity_is_not_above_the_published_one(engine: Engine) -> None:
    on_answers, on_all = evaluate.perplexities(engine, DATA["dialogues"])
    assert on_answers <= PUBLISHED["perplexity"] * 1.01
    assert on_all <= PUBLISHED["perplexity_all"] * 1.01


def test_a_mixture_of_experts_is_explained(engine: Engine) -> None:
    answer = evaluate.answer(engine, "What is a mixture of experts?")
    assert answer.startswith("A mixture of experts is a model whose layers hold many small networks, called experts.")


def test_a_chat_remembers_its_subject(engine: Engine) -> None:
    first = evaluate.answer(engine, "What is a router?")
    messages = [
        {"role": "user", "content": "What is a router?"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "Tell me more."},
    ]
    assert evaluate.reply(engine, messages).startswith("Its scores also become weights")


def test_a_long_chat_is_answered_as_well_as_a_fresh_one(engine: Engine) -> None:
    messages: list[dict[str, str]] = []
    for case in DATA["questions"]:
        messages += [{"role": "user", "content": case["question"]}, {"role": "assistant", "content": case["answer"]}]
        if len(evaluate.prompt_ids(engine, messages)) > 1800:
            break
    cases = DATA["questions"][60:140:4] + DATA["sums"][:20]
    chats = [[*messages, {"role": "user", "content": case["question"]}] for case in cases]
    right = [
        evaluate.is_right(evaluate.reply(engine, chat), case["answer"]) for chat, case in zip(chats, cases, strict=True)
    ]
    assert len(evaluate.prompt_ids(engine, chats[0])) > 1024
    assert sum(right) >= 0.85 * len(cases)


def test_held_out_questions_are_not_in_the_training_texts() -> None:
    import make_data

    asked = {
        message["content"].lower().strip(" ?.!=")
        for messages in make_data.dialogues(seed=1, count=3000)
        for message in messages
        if message["role"] == "user"
    }
    held_out = [
        case["question"].lower().strip(" ?.!=") for kind in ("questions", "sums", "outside") for case in DATA[kind]
    ]
    assert len(asked) > 1000
    assert asked.isdisjoint(held_out)


def test_the_held_out_set_is_the_one_that_the_generator_writes() -> None:
    import make_data

    assert json.loads(json.dumps(make_data.held_out_set(seed=1))) == DATA


def test_the_file_is_small_enough_for_a_repository() -> None:
    assert Path(demo.path()).stat().st_size <= 12_000_000
