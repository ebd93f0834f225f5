"""Calls of every dialect come out whole however the text is cut; what is no call stays text; nothing is lost."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hetero.models.text.answers import DIALECTS, ToolCall, dialect_of
from hetero.models.text.answers.readers import MAX_BLOCK
from tests.models.text.answers.written import PROMPTS, TEMPLATES, TOOLS, parse, parser_of

_ENV = ImmutableSandboxedEnvironment(trim_blocks=False, lstrip_blocks=False)
_ENV.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
_SAFE = st.text(st.characters(codec="utf-8", exclude_categories=("Cc",), exclude_characters="<>[]｜"), max_size=12)
_ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": _SAFE,
        "days": st.integers(-(10**9), 10**9),
        "where": st.dictionaries(
            _SAFE, st.one_of(_SAFE, st.booleans(), st.none(), st.lists(st.integers(), max_size=2))
        ),
        "exact": st.booleans(),
    },
)
_CALLS = st.lists(
    st.one_of(
        st.builds(lambda arguments: {"name": "get_weather", "arguments": arguments}, _ARGUMENTS),
        st.just({"name": "stop", "arguments": {}}),
    ),
    min_size=1,
    max_size=3,
)


def written(name: str, content: str, calls: list[dict[str, Any]]) -> str:
    return str(_ENV.from_string(TEMPLATES[name]).render(content=content, calls=calls))


def cut(text: str, cuts: list[int]) -> list[str]:
    ends = [*sorted(min(at, len(text)) for at in cuts), len(text)]
    return [text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=25, deadline=None)
@given(calls=_CALLS, content=st.sampled_from(["", "Let me look.", "É ein\nZeilen"]), cuts=st.lists(st.integers(0, 400)))
def test_what_a_template_renders_is_read_back(
    name: str, calls: list[dict[str, Any]], content: str, cuts: list[int]
) -> None:
    content = "" if name == "llama-4" else content
    parts = parse(name, cut(written(name, content, calls), cuts))
    found = [part.call for part in parts if part.call is not None]
    assert [(call.name, call.arguments) for call in found] == [(c["name"], c["arguments"]) for c in calls]
    assert [(part.kind, part.text) for part in parts if part.kind != "call"] == (
        [("answer", content)] if content else []
    )


_FRAGMENTS = sorted(
    {mark for dialect in DIALECTS.values() for mark in dialect.marks}
    | {
        "<think>",
        "</think>",
        "<tool_calls>",
        "</tool_calls>",
        "<answer>",
        "</answer>",
        "[",
        "{",
        "]",
        "}",
        '"',
        "'",
        "a",
    }
    | {
        " ",
        "\n",
        "get_weather",
        "stop(",
        ")",
        '{"name": "stop", "arguments": {}}',
        '<｜DSML｜invoke name="x">',
        "=",
        ":",
    }
    | {
        "<function=stop>",
        "</function>",
        "final",
        "commentary to=functions.stop",
        "analysis",
        "\\",
        "<",
        "｜DSML｜",
        "json",
    }
    | {
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "<response>",
        "</response>",
        "function",
        "functions.stop:0",
    }
)
_NOISE = st.lists(st.sampled_from(_FRAGMENTS), max_size=14).map("".join)


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=60, deadline=None)
@example(text='<|call|>\n"', cuts=[], thinks=False, offered=False)
@given(text=_NOISE, cuts=st.lists(st.integers(0, 200)), thinks=st.booleans(), offered=st.booleans())
def test_any_text_cut_anywhere_gives_the_same_parts_and_loses_nothing(
    name: str, text: str, cuts: list[int], thinks: bool, offered: bool
) -> None:
    prompt = "x<think>\n" if thinks and name != "harmony" else ""
    tools = TOOLS if offered else None
    whole = parse(name, [text], prompt, tools)
    assert parse(name, cut(text, cuts), prompt, tools) == whole
    assert parse(name, list(text), prompt, tools) == whole
    kept = "".join(part.text for part in whole if part.kind != "note")
    assert bare(kept, name) == bare(text, name)


def bare(text: str, name: str) -> str:
    """Text without white space and without the tags and marks that a parser may leave out."""
    marks = [
        *DIALECTS[name].marks,
        "<answer>",
        "</answer>",
        "<response>",
        "</response>",
        "<tool_calls>",
        "</tool_calls>",
    ]
    marks += ["<think>", "</think>", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"]
    text = re.sub(r"\s", "", text)
    before = ""
    while before != text:  # a mark that is taken out may bring the halves of another together, on either side
        before, text = text, re.sub("|".join(map(re.escape, marks)), "", text)
    if name == "harmony":  # the words of a header are not shown, those of a call's are
        text = re.sub("assistant|analysis|commentary|final|json", "", text)
    return text


MALFORMED = [
    ("hermes", '<tool_call>{"name": "stop", </tool_call>', "it is no JSON"),
    ("hermes", '<tool_call>{"name": 5}</tool_call>', "the call has no name"),
    ("hermes", '<tool_call>{"name": "stop", "arguments": [1]}</tool_call>', "the arguments are no object"),
    ("hermes", '<tool_call>{"name": "stop", "arguments": {"a": NaN}}</tool_call>', "it is no JSON"),
    ("hermes", '<tool_call>{"name": "stop"', "it is no JSON"),
    ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "it is no JSON"),
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', "it is no JSON"),
    ("kimi-k2", "<|tool_calls_section_begin|>nothing<|tool_calls_section_end|>", "there is no call in it"),
    (
        "kimi-k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.x:0<|tool_call_argument_begin|>{<|tool_call_end|>",
        "there is no call in it",
    ),
    ("glm", "<tool_call>stop<arg_key>a</arg_key></tool_call>", "there is no call in it"),
    (
        "qwen-xml",
        "<tool_call><function=stop><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
        "",
    ),
    ("mistral", "[TOOL_CALLS]" + "x" * 512, "it is not complete"),
    ("mistral", "[TOOL_CALLS][1, 2]", "the call is no object"),
    ("granite", "<|tool_call|>[]", "the list of calls is empty"),
    ("llama-4", "[stop(1)]", "it is no list of calls with named arguments"),
    ("llama-4", "[stop(a=open('x'))]", "it is no list of calls"),
    ("llama-4", "<|python_start|>1+1<|python_end|>", "it is no list of calls"),
    ("harmony", "<|channel|>commentary to=functions.stop<|message|>{oops<|call|>", "the arguments' text is no JSON"),
]


@pytest.mark.parametrize(("name", "text", "why"), MALFORMED)
def test_a_malformed_call_is_text_with_a_note(name: str, text: str, why: str) -> None:
    parts = parse(name, [text])
    assert [part.kind for part in parts] == ["answer", "note"]
    assert parts[0].text == text
    assert parts[1].text.startswith("a tool call is left as text: ")
    assert why in parts[1].text


def test_text_around_a_malformed_call_keeps_its_white_space() -> None:
    text = "Look:\n\n<tool_call>oops</tool_call>\n and on\n"
    for pieces in ([text], list(text)):
        assert "".join(part.text for part in parse("hermes", pieces) if part.kind == "answer") == text


def test_one_bad_call_among_good_ones_does_not_take_them_along() -> None:
    text = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.stop:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_call_begin|>functions.stop:1<|tool_call_argument_begin|>{<|tool_call_end|><|tool_calls_section_end|>"
    )
    parts = parse("kimi-k2", [text])
    assert [part.kind for part in parts] == ["call", "answer", "note"]
    assert parts[0].call == ToolCall("stop", {}, "functions.stop:0")


@pytest.mark.parametrize(
    ("name", "text", "thinking"),
    [
        ("kimi-k2", "hm <|tool_calls_section_begin|><|tool_call_begin|>functions.stop:0<|tool_call_argument_begin|>{}"
         "<|tool_call_end|><|tool_calls_section_end|>", "hm "),
        ("glm", "hm<tool_call>stop</tool_call>", "hm"),
        ("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.stop"
         "<|constrain|>json<|message|>{}", "hm"),
    ],
)  # fmt: skip
def test_a_call_ends_thinking_that_was_not_closed(name: str, text: str, thinking: str) -> None:
    parts = parse(name, [text], "" if name == "harmony" else "<think>")
    assert [part.kind for part in parts] == ["thinking", "call"]
    assert parts[0].text == thinking


def test_without_tools_a_call_is_text_as_it_stands() -> None:
    for name in TEMPLATES:
        if name in ("harmony", "hunyuan"):
            continue
        text = written(name, "See:", [{"name": "stop", "arguments": {}}])
        assert [(part.kind, part.text) for part in parse(name, [text], tools=None)] == [("answer", text)]


def test_channels_of_harmony() -> None:
    text = (
        "<|channel|>analysis<|message|>one<|end|><|start|>assistant<|channel|>analysis<|message|>two<|end|>"
        "<|start|>assistant<|channel|>final<|message|>The <|answer|>"
    )
    expected = [("thinking", "one\ntwo"), ("answer", "The <|answer|>")]
    assert [(part.kind, part.text) for part in parse("harmony", [text])] == expected
    prompt = PROMPTS["harmony"] + "<|channel|>final<|message|>"
    assert [(p.kind, p.text) for p in parse("harmony", ["hello<|return|>"], prompt)] == [("answer", "hello")]
    assert [(p.kind, p.text) for p in parse("harmony", ["plain"])] == [("answer", "plain")]
    recipient_first = " to=functions.stop<|channel|>commentary json<|message|>{}<|call|>"
    assert [part.call for part in parse("harmony", [recipient_first])] == [ToolCall("stop", {})]


def test_values_follow_the_schema() -> None:
    def read(key: str, value: str, dialect: str = "glm") -> Any:
        text = f"<tool_call>get_weather<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>"
        (part,) = parse(dialect, [text])
        assert part.call is not None
        return part.call.arguments[key]

    assert read("city", "5") == "5"
    assert read("city", '"quoted"') == '"quoted"'
    assert read("days", "5") == 5
    assert read("exact", "True") is True
    assert read("units", "null") is None
    assert read("units", "3") == "3"
    assert read("where", '{"a": 1}') == {"a": 1}
    assert read("other", "5") == 5
    assert read("other", "five") == "five"


@pytest.mark.parametrize(
    ("template", "added", "name"),
    [
        ("{{ '<tool_call>' }} {{ '<function=' }}", {"<tool_call>"}, "qwen-xml"),
        ("<tool_call>{name}<arg_key>", set(), "glm"),
        ('<tool_call>{"name"', set(), "hermes"),
        ("", {"<|channel|>", "<|message|>"}, "harmony"),
        ("{{ messages }}", {"<｜tool▁calls▁begin｜>"}, "deepseek"),
        ("{{ messages }}", {"<|im_end|>"}, "plain"),
    ],
)
def test_a_dialect_is_known_by_template_or_tokens(template: str, added: set[str], name: str) -> None:
    assert dialect_of(template, added).name == name


def test_every_dialects_own_writing_is_recognised() -> None:
    for name, template in TEMPLATES.items():
        if name != "llama-4":  # known by its header tokens
            assert dialect_of(template, ()).name == name.partition(" (")[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", "[TOOL_CALLS]" + "x" * 600 + "{} more"),
        ("mistral", "[TOOL_CALLS]  " + "x" * 510 + '{"a": 1} more'),
        ("harmony", "<|channel|>" + "y" * 1500 + "<|message|>z<|end|>"),
        ("harmony", "<|channel|>final " + "y" * 1000 + "<|message|>z<|end|>"),
        ("harmony", "y" * 1500 + " <|channel|>final<|message|>z"),
        ("hermes", "<tool_call>" + "x" * (MAX_BLOCK + 70_000) + "</tool_call> tail"),
        ("hermes", "<tool_call>" + "x" * (MAX_BLOCK - 30) + "</tool_call> tail"),
    ],
)
def test_limits_are_the_same_however_the_text_is_cut(name: str, text: str) -> None:
    whole = parse(name, [text])
    for step in (7, 1000) if len(text) < 10_000 else (65_536, 1_000_003):
        assert parse(name, [text[i : i + step] for i in range(0, len(text), step)]) == whole
    assert "".join(part.text for part in whole if part.kind != "note").count(text[20]) == text.count(text[20])


def test_a_call_that_never_ends_is_given_up() -> None:
    parser = parser_of("hermes")
    assert parser.feed("<tool_call>") == []
    parts = [part for _ in range(MAX_BLOCK // 65536 + 1) for part in parser.feed("x" * 65536)]
    assert [part.kind for part in parts[:2]] == ["answer", "note"]
    assert "too long" in parts[1].text


def test_a_long_call_token_by_token_takes_time_in_proportion() -> None:
    """Every character is looked at a bounded number of times: counted, not timed."""
    looked = 0

    class Counted(str):
        def find(self, *args: Any) -> int:  # type: ignore[override]
            nonlocal looked
            looked += len(self) - (args[1] if len(args) > 1 else 0)
            return str.find(self, *args)

    ending = DIALECTS["hermes"].calls
    assert ending is not None
    found = ending.ending("<tool_call>")
    text = "<tool_call>" + "x" * 20_000
    for end in range(11, len(text), 4):
        assert found.find(Counted(text[:end])) is None
    assert looked < 10 * len(text)
