from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from hetero.cli.conversation import Conversation

if TYPE_CHECKING:
    from hetero.models.text import TextModel

STOP = 0


class Letters:
    """A tokenizer whose tokens are characters; `\\0` is the stop token."""

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        return ([1] if add_special else []) + [ord(char) for char in text]


class Lines:
    """A template of one line per message; an answer's line ends with the stop token."""

    def __init__(self, stop: str = "\0") -> None:
        self.stop = stop

    def render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True) -> str:
        lines = [f"{m['role']}:{m['content']}{self.stop}\n" for m in messages]
        return "".join(lines) + ("assistant:" if add_generation_prompt else "")


class Text:
    def __init__(self, template: Lines | None) -> None:
        self.tokenizer, self.template = Letters(), template
        self.stop_ids = frozenset({STOP})


def conversation(template: Lines | None, **options: Any) -> Conversation:
    return Conversation(cast("TextModel", Text(template)), **options)


def test_a_grown_chat_keeps_the_tokens_as_they_were_generated() -> None:
    chat = conversation(Lines(), system="be kind")
    chat.ask("hi")
    prompt, ids = chat.prompt()
    # The model said "ok" with one token of its own instead of the tokenizer's two.
    chat.answered("ok", "", prompt + "ok", [*ids, 9999])
    chat.ask("more")
    grown, grown_ids = chat.prompt()
    assert grown == prompt + "ok\0\nuser:more\0\nassistant:"
    assert grown_ids == [*ids, 9999, *map(ord, "\0\nuser:more\0\nassistant:")]


def test_a_template_that_rewrites_the_past_is_tokenised_anew() -> None:
    chat = conversation(Lines())
    chat.ask("hi")
    prompt, ids = chat.prompt()
    chat.answered("ok", "long thoughts", prompt + "<think>long thoughts</think>ok", [*ids, 9999])
    chat.ask("more")
    grown, grown_ids = chat.prompt()
    assert grown_ids == list(map(ord, grown))


def test_without_a_stop_token_at_the_seam_the_text_is_tokenised_anew() -> None:
    chat = conversation(Lines(stop=""))
    chat.ask("hi")
    prompt, ids = chat.prompt()
    chat.answered("ok", "", prompt + "ok", [*ids, 9999])
    chat.ask("more")
    grown, grown_ids = chat.prompt()
    assert grown_ids == list(map(ord, grown))


@pytest.mark.parametrize("options", [{}, {"use_template": False}])
def test_without_a_template_the_message_stands_alone(options: dict[str, Any]) -> None:
    chat = conversation(Lines() if options else None, **options)
    chat.ask("one")
    chat.answered("ok", "", "oneok", [2, 3])
    chat.ask("two")
    assert chat.prompt() == ("two", [1, *map(ord, "two")])


def test_clearing_keeps_the_system_message_only() -> None:
    chat = conversation(Lines(), system="be kind")
    chat.ask("hi")
    chat.answered("ok", "", "x", [1])
    chat.clear()
    chat.ask("new")
    assert chat.prompt()[0] == "system:be kind\0\nuser:new\0\nassistant:"


def test_only_a_last_message_of_that_role_is_withdrawn() -> None:
    chat = conversation(Lines())
    chat.ask("hi")
    assert not chat.withdraw("assistant")
    assert chat.withdraw("user")
    assert chat.messages == []
