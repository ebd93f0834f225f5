"""The built-in prompt formats of DeepSeek-V3.2 and V4, against what DeepSeek's own encoders write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hetero.machine.types import UsageError
from hetero.models.text import load_text
from hetero.models.text.deepseek import DeepSeekTemplate
from tests.models.text.answers.written import TOOLS, parse
from tests.models.text.test_load_gguf import metadata as gguf_metadata
from tests.models.text.test_load_hf import byte_level, write

V32, V4 = DeepSeekTemplate("3.2"), DeepSeekTemplate("4")
ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def call(number: int, **arguments: Any) -> dict[str, Any]:
    return {"id": f"c{number}", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


LONG = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "reasoning_content": "look",
        "tool_calls": [call(0, city="Oslo", days=2), call(1, city="Rome")],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "warm"},
    {"role": "tool", "tool_call_id": "c0", "content": "cold"},
    {"role": "assistant", "reasoning_content": "sum up", "content": "Oslo cold."},
    {"role": "user", "content": "And?"},
]
_CALLS = (
    '\n\n<｜DSML｜BLOCK>\n<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜BLOCK><｜end▁of▁sentence｜>"
)
CALLS_V32, CALLS_V4 = _CALLS.replace("BLOCK", "function_calls"), _CALLS.replace("BLOCK", "tool_calls")


@pytest.mark.parametrize("template", [V32, V4])
def test_a_question_opens_the_assistants_turn(template: DeepSeekTemplate) -> None:
    begun = "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hi"
    assert template.render(ASK) == begun + "<｜Assistant｜></think>"
    assert template.render(ASK, thinking=True) == begun + "<｜Assistant｜><think>"
    assert template.render(ASK, add_generation_prompt=False) == begun


def test_v32_puts_results_into_the_assistants_turn_and_drops_old_reasoning() -> None:
    results = "\n\n<function_results>\n<result>warm</result>\n<result>cold</result>\n</function_results>\n\n"
    head = "<｜begin▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜>"
    tail = "Oslo cold.<｜end▁of▁sentence｜><｜User｜>And?<｜Assistant｜><think>"
    assert V32.render(LONG, thinking=True) == head + "</think>" + CALLS_V32 + results + "</think>" + tail
    running = LONG[:4]
    assert V32.render(running, thinking=True) == head + "<think>look</think>" + CALLS_V32 + results + "<think>"


def test_v4_makes_results_a_users_turn_in_the_order_of_the_calls() -> None:
    head = "<｜begin▁of▁sentence｜><｜User｜>Weather?<｜Assistant｜>"
    results = "<｜User｜><tool_result>cold</tool_result>\n\n<tool_result>warm</tool_result><｜Assistant｜>"
    tail = "<｜end▁of▁sentence｜><｜User｜>And?<｜Assistant｜><think>"
    shown = V4.render(LONG, thinking=True)
    assert shown == head + "</think>" + CALLS_V4 + results + "</think>" + "Oslo cold." + tail
    kept = V4.render(LONG, thinking=True, tools=TOOLS)
    assert "<｜Assistant｜><think>look</think>" + CALLS_V4 in kept
    assert "<｜Assistant｜><think>sum up</think>Oslo cold." in kept


@pytest.mark.parametrize("template", [V32, V4])
def test_tools_stand_in_the_system_message_also_where_there_is_none(template: DeepSeekTemplate) -> None:
    line = json.dumps(TOOLS[0]["function"], ensure_ascii=False) + "\n" + json.dumps(TOOLS[1]["function"])
    for messages, head in ((ASK, "Be brief."), (ASK[1:], "")):
        shown = template.render(messages, tools=TOOLS)
        assert shown.startswith(f"<｜begin▁of▁sentence｜>{head}\n\n## Tools\n\nYou have access to a set of tools")
        assert line in shown
        assert shown.count("<｜User｜>") == 1


@pytest.mark.parametrize(
    ("template", "dialect", "calls"), [(V32, "deepseek-v3.2", CALLS_V32), (V4, "deepseek-v4", CALLS_V4)]
)
def test_what_it_writes_for_calls_is_what_the_parser_reads(template: Any, dialect: str, calls: str) -> None:
    parts = parse(
        dialect, ["hm</think>" + calls.removesuffix("<｜end▁of▁sentence｜>")], template.render(ASK, thinking=True)
    )
    assert [part.kind for part in parts] == ["thinking", "call", "call"]
    assert [part.call.arguments for part in parts if part.call] == [{"city": "Oslo", "days": 2}, {"city": "Rome"}]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([{"role": "tool", "content": "x"}], "a tool result without a call"),
        ([{"role": "robot", "content": "x"}], "role 'robot'"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}], "no JSON object"),
    ],
)
def test_what_it_cannot_say_is_a_usage_error(messages: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        V32.render(messages)


def test_a_call_without_arguments_has_an_empty_line_in_their_place() -> None:
    messages = [*ASK, {"role": "assistant", "tool_calls": [call(0)]}]
    assert '<｜DSML｜invoke name="get_weather">\n\n</｜DSML｜invoke>' in V32.render(messages)


def test_content_may_be_a_list_of_texts() -> None:
    assert "<｜User｜>ab<" in V32.render([{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}])


def test_a_directory_or_file_without_a_template_gets_the_built_in_one(tmp_path: Path) -> None:
    config = {"architectures": ["DeepseekV32ForCausalLM"]}
    model = load_text(directory=write(tmp_path, byte_level(), config=config), metadata={}, vocab_size=300)
    assert model.template == V32
    assert model.dialect.name == "deepseek-v3.2"
    gguf = load_text(directory=None, metadata=gguf_metadata() | {"general.architecture": "deepseek4"}, vocab_size=300)
    assert gguf.template == V4
    gguf.save(tmp_path / "saved")
    assert load_text(directory=tmp_path / "saved", metadata={}, vocab_size=300).template == V4
    (tmp_path / "chat_template.jinja").write_text("own")
    own = load_text(directory=tmp_path, metadata={}, vocab_size=300).template
    assert own is not None
    assert own.source == "own"
