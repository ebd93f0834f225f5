"""Conversations that no template can show are refused in one line; those that some cannot are put into other words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hetero.machine.types import UsageError
from hetero.models.text.deepseek import DeepSeekTemplate
from hetero.models.text.messages import checked, forms
from hetero.models.text.template import ChatTemplate, Template

DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]

ODD: dict[str, tuple[Any, str]] = {
    "a text": ("hi", "the conversation is a text; expected a list of messages"),
    "an object": ({"role": "user", "content": "hi"}, "the conversation is an object; expected a list"),
    "null": (None, "the conversation is null; expected a list"),
    "a list of texts": (["hi"], "message 1 of the conversation is a text; expected an object"),
    "a null message": ([{"role": "user", "content": "a"}, None], "message 2 of the conversation is null"),
    "no role": ([{"content": "hi"}], "message 1 of the conversation has no role"),
    "null role": ([{"role": None, "content": "hi"}], "message 1 of the conversation has no role"),
    "role a number": ([{"role": 7, "content": "hi"}], "has the role 7; expected a role such as 'user'"),
    "empty role": ([{"role": "", "content": "hi"}], "has the role ''"),
    "content a number": ([{"role": "user", "content": 3}], "content of another kind (a number)"),
    "content an object": ([{"role": "user", "content": {"a": 1}}], "content of another kind (an object)"),
    "content a list of numbers": ([{"role": "user", "content": [1]}], "content of another kind (a list)"),
    "calls a text": ([{"role": "assistant", "tool_calls": "f"}], "tool calls that are no calls"),
    "calls an object": ([{"role": "assistant", "tool_calls": {"name": "f"}}], "tool calls that are no calls"),
    "a null call": ([{"role": "assistant", "tool_calls": [None]}], "tool calls that are no calls"),
    "a call whose function is a text": ([{"role": "assistant", "tool_calls": [{"function": "f"}]}], "are no calls"),
    "a call without a name": ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "tool calls that are no"),
    "reasoning a list": ([{"role": "assistant", "reasoning_content": ["a"]}], "reasoning that is a list"),
    "a value that is no data": ([{"role": "user", "content": "a", "x": {1, 2}}], "not plain data"),
    "a value nested too deep": ([{"role": "user", "content": "a", "x": DEEP}], "not plain data"),
}
BUILT_IN = [DeepSeekTemplate("3.2"), DeepSeekTemplate("4")]


@pytest.fixture(scope="module")
def own() -> ChatTemplate:
    return ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}")


def refuse(template: Template, messages: Any, words: str, **kwargs: Any) -> None:
    with pytest.raises(UsageError) as caught:
        template.render(messages, **kwargs)
    assert words in caught.value.message
    assert caught.value.message.isprintable()
    assert caught.value.hint
    assert caught.value.code == 2


@pytest.mark.parametrize("case", ODD)
def test_an_odd_conversation_is_refused_in_one_line_by_every_kind_of_template(own: ChatTemplate, case: str) -> None:
    messages, words = ODD[case]
    refuse(own, messages, words)
    for template in BUILT_IN if not words.startswith("not plain") else []:  # they write only what they know
        refuse(template, messages, words)


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ("f", "the tools are a text"),
        ({"name": "f"}, "the tools are an object"),
        ([None], "tool 1 is null"),
        ([{"name": "f"}, {"function": "f"}], "tool 2 is an object; expected an object with a function"),
    ],
)
def test_odd_tools_are_refused_in_one_line(own: ChatTemplate, tools: Any, words: str) -> None:
    for template in (own, *BUILT_IN):
        refuse(template, [{"role": "user", "content": "a"}], words, tools=tools)


def test_nulls_are_left_out_and_reasoning_has_both_names() -> None:
    (message,) = checked([{"role": "assistant", "content": None, "tool_calls": None, "reasoning": "hm"}])
    assert message == {"role": "assistant", "reasoning": "hm", "thinking": "hm", "reasoning_content": "hm"}


def test_null_content_and_nothing_at_all_are_the_same_to_the_built_in_formats() -> None:
    for template in BUILT_IN:
        texts = [template.render([{"role": "user"} | more]) for more in ({}, {"content": None}, {"content": []})]
        assert len(set(texts)) == 1


def call(arguments: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}], **more}]


NEEDS = {
    "an object": "{% for k, v in C.items() %}f {{ k }}={{ v }}{% endfor %}",
    "a text": "f {{ 'args ' + C }}",
    "json": "f {{ C | tojson }}",
}


@pytest.mark.parametrize("arguments", [{"a": "é"}, '{"a": "é"}'])
@pytest.mark.parametrize("need", NEEDS)
def test_arguments_come_as_the_template_needs_them(arguments: Any, need: str) -> None:
    source = NEEDS[need].replace("C", "messages[0].tool_calls[0].function.arguments")
    expected = {"an object": "f a=é", "a text": 'f args {"a": "é"}', "json": 'f {"a": "é"}'}
    assert ChatTemplate(source).render(call(arguments)) == expected[need]


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
@pytest.mark.parametrize(
    "source",
    [
        "{% if messages[0].content is none %}f{% endif %}",  # R1's own templates
        "f{{ messages[0].content.strip() }}",  # Qwen3's
        "{% if messages[0].content is not defined %}f{% endif %}",
    ],
)
def test_beside_calls_no_content_is_said_in_the_templates_own_way(source: str, content: dict[str, Any]) -> None:
    assert ChatTemplate(source).render(call({}, **content)) == "f"


@pytest.mark.parametrize(
    "source", ["{{ messages[0].content + '!' }}", "{{ messages[0].content }}!", "{{ messages[0].content[0].text }}b!"]
)
def test_a_content_of_text_parts_is_shown_whether_or_not_the_template_knows_parts(source: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ChatTemplate(source).render([{"role": "user", "content": parts}]) == "ab!"


def test_a_plain_conversation_has_one_form_and_a_refusal_of_all_forms_is_the_first_ones() -> None:
    assert len(list(forms([{"role": "user", "content": "a"}]))) == 1
    assert len(list(forms(call({})))) == 6
    with pytest.raises(UsageError, match="first"):
        ChatTemplate("{{ raise_exception('first' if messages[0].content is not defined else 'second') }}").render(
            call(json.dumps({"a": 1}))
        )
