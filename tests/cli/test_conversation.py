from __future__ import annotations

from typing import Any, cast

import pytest

from hetero.cli.conversation import Conversation
from hetero.models.text import Prompt, TextModel

STOP, BOS = 0, 1


class Letters:
    """A tokenizer whose tokens are characters; `\\0` is the stop token."""

    def encode(self, text: str) -> list[int]:
        return [ord(char) for char in text]


class Text:
    """A model's text side whose template has one line per message; an answer's line ends with `stop`."""

    def __init__(self, template: bool, stop: str) -> None:
        self.tokenizer, self.template, self.stop = Letters(), template or None, stop
        self.stop_ids = frozenset({STOP})

    def encode_chat(self, messages: list[dict[str, Any]]) -> Prompt:
        text = "".join(f"{m['role']}:{m['content']}{self.stop}\n" for m in messages) + "assistant:"
        return Prompt(self.tokenizer.encode(text), text)

    def encode_text(self, text: str) -> Prompt:
        return Prompt([BOS, *self.tokenizer.encode(text)], text)


def conversation(*, template: bool = True, stop: str = "\0", **options: Any) -> Conversation:
    return Conversation(cast(TextModel, Text(template, stop)), **options)


def test_a_grown_chat_keeps_the_tokens_as_they_were_generated() -> None:
    chat = conversation(system="be kind")
    chat.ask("hi")
    prompt = chat.prompt()
    # The model said "ok" with one token of its own instead of the tokenizer's two.
    chat.answered("ok", "", prompt.text + "ok", [*prompt.ids, 9999])
    chat.ask("more")
    grown = chat.prompt()
    assert grown.text == prompt.text + "ok\0\nuser:more\0\nassistant:"
    assert grown.ids == [*prompt.ids, 9999, *map(ord, "\0\nuser:more\0\nassistant:")]


def test_a_template_that_rewrites_the_past_is_tokenised_anew() -> None:
    chat = conversation()
    chat.ask("hi")
    prompt = chat.prompt()
    chat.answered("ok", "long thoughts", prompt.text + "<think>long thoughts</think>ok", [*prompt.ids, 9999])
    chat.ask("more")
    grown = chat.prompt()
    assert grown.ids == list(map(ord, grown.text))


def test_without_a_stop_token_at_the_seam_the_text_is_tokenised_anew() -> None:
    chat = conversation(stop="")
    chat.ask("hi")
    prompt = chat.prompt()
    chat.answered("ok", "", prompt.text + "ok", [*prompt.ids, 9999])
    chat.ask("more")
    grown = chat.prompt()
    assert grown.ids == list(map(ord, grown.text))


@pytest.mark.parametrize("options", [{"template": False}, {"use_template": False}])
def test_without_a_template_the_message_stands_alone(options: dict[str, Any]) -> None:
    chat = conversation(**options)
    chat.ask("one")
    chat.answered("ok", "", "oneok", [2, 3])
    chat.ask("two")
    assert chat.prompt() == Prompt([BOS, *map(ord, "two")], "two")


def test_clearing_keeps_the_system_message_only() -> None:
    chat = conversation(system="be kind")
    chat.ask("hi")
    chat.answered("ok", "", "x", [1])
    chat.clear()
    chat.ask("new")
    assert chat.prompt().text == "system:be kind\0\nuser:new\0\nassistant:"


def test_only_a_last_message_of_that_role_is_withdrawn() -> None:
    chat = conversation()
    chat.ask("hi")
    assert not chat.withdraw("assistant")
    assert chat.withdraw("user")
    assert chat.messages == []
