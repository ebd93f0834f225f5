"""Chat templates render what transformers renders: constructs of published templates, and those templates themselves.

`HETERO_TEMPLATES` names a folder of published templates (llama.cpp's `models/templates`); without it those are skipped.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from hetero.machine.types import HeteroError
from hetero.models.text import render_worker
from hetero.models.text.answers import Part, dialect_of
from hetero.models.text.template import ChatTemplate
from tests.models.text.answers.written import TOOLS as BARE

FOLDER = os.environ.get("HETERO_TEMPLATES", "")
SPECIAL = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
TOOLS = [{"type": "function", "function": {**tool["function"], "description": "What it does."}} for tool in BARE]
ARGUMENTS = {"city": "Oslo é", "days": 2}
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Oslo? <b>é"}
ANSWER = {"role": "assistant", "content": "It is cold.", "reasoning_content": "It is winter."}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": "-3 C"}


def call(content: str = "", **more: Any) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": ARGUMENTS}
    calls = [{"id": "call00001", "type": "function", "function": function}]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}


TURNS: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "a question": ([USER], None),
    "a conversation": ([SYSTEM, USER, ANSWER, USER], None),
    "tools": ([SYSTEM, USER], TOOLS),
    "a call": ([SYSTEM, USER, call("Let me see."), RESULT], TOOLS),
    "a call and more": ([USER, call("One moment."), RESULT, ANSWER, USER], TOOLS),
    "a call with reasoning": ([SYSTEM, USER, call(reasoning_content="hm"), RESULT], TOOLS),
}
SWITCHES: list[dict[str, Any]] = [{}, {"enable_thinking": False, "thinking": False}, {"enable_thinking": True}]


def by_transformers(source: str, messages: list[dict[str, Any]], tools: Any, **more: Any) -> str | Exception:
    try:
        rendered, _ = render_jinja_template(
            [copy.deepcopy(messages)], tools=tools, chat_template=source, add_generation_prompt=True, **SPECIAL, **more
        )
        return str(rendered[0])
    except Exception as error:  # noqa: BLE001  whatever a template raises
        return error


def by_hetero(template: ChatTemplate, messages: list[dict[str, Any]], tools: Any, **more: Any) -> str | Exception:
    try:
        return template.render(messages, tools=tools, **more)
    except HeteroError as error:
        return error


# What published templates are made of, in a few words each.
CONSTRUCTS = {
    "namespace and loops": (
        "{%- set ns = namespace(last=-1, seen='') -%}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}{% for m in messages[::-1] %}"
        "{% if loop.first or loop.previtem.role != m.role %}|{{ m['role'] }}{% endif %}"
        "{% if loop.index > 3 %}{% break %}{% endif %}{% if m.role == 'system' %}{% continue %}{% endif %}."
        "{% endfor %}"
    ),
    "macros": (
        "{%- macro text(c) -%}{%- if c is string -%}{{ c }}{%- elif c is iterable and c is not mapping -%}"
        "{%- for p in c -%}{{ p.text }}{%- endfor -%}{%- endif -%}{%- endmacro -%}"
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}{{ text(m.content) }}\n{% endfor %}"
    ),
    "reasoning cut out": (
        "{% for m in messages %}{% set c = m.content or '' %}{% if m.role == 'assistant' and m.reasoning_content is "
        "defined %}<think>{{ m.reasoning_content.strip('\\n') }}</think>{% elif '</think>' in c %}"
        "{{ c.split('</think>')[-1].lstrip('\\n') }}{% endif %}{{ c | trim }}{% endfor %}"
    ),
    "thinking by gpt-oss's name": "{% for m in messages %}{{ m.thinking }}{{ m.content }}{% endfor %}",
    "json": (
        "{{ tools | tojson }}{{ tools | tojson(indent=4) }}{{ tools | tojson(separators=(',', ':'), sort_keys=true) }}"
        "{{ messages[-1] | tojson(ensure_ascii=false) }}{{ messages[-1] | tojson(ensure_ascii=true) }}"
    ),
    "arguments": (
        "{% for m in messages %}{% for t in m.tool_calls or [] %}{% set t = t.function if t.function else t %}"
        "{{ t.name }}({% for k, v in t.arguments | items %}{{ k }}={{ v if v is string else v | tojson }}"
        "{{ ', ' if not loop.last }}{% endfor %}){% for k in t.arguments.keys() | list | sort %}{{ k }}{% endfor %}"
        "{% endfor %}{% endfor %}"
    ),
    "filters": (
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | map(attribute='role') | "
        "join(',') }}{{ tools | default([], true) | length }}{{ 'aXb'.replace('X', '-') | upper | title }}"
        "{{ messages | length % 2 == 0 }}{{ [1, 2] + [3] }}{{ 'x' * 3 }}{{ '%s-%d' % ('a', 5) }}{{ 7 // 2 }}"
        "{{ messages[0].content[:5] | string | indent(2) }}{{ (messages | last).role }}{{ none is none }}"
        "{{ range(3) | list }}{{ {'a': 1}.items() | list }}{{ {'a': 1} | dictsort }}{{ 'a b'.split() }}"
    ),
    "white space": "  {% if true %}\n    a\n  {% endif %}\n\n{# note #}\n  {%- if true -%}\n b \n{%- endif -%}\n c\n",
    "switches": (
        "{{ enable_thinking is defined and enable_thinking is false }}{{ thinking is defined }}"
        "{% if add_generation_prompt %}<a>{% endif %}{{ bos_token + eos_token }}{{ pad_token is defined }}"
        "{{ documents is defined and documents }}"
    ),
    "generation": (
        "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}{{ m.content }}{{ loop.index }}"
        "{% endgeneration %}{{ x }}{% endfor %}{{ x }}"
    ),
    "refusals": "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}ok",
    "call blocks and filters of blocks": (
        "{% macro box(t) %}[{{ t }}:{{ caller() }}]{% endmacro %}{% call box('x') %}{{ messages[0].role }}{% endcall %}"
        "{% filter upper %}abc{% endfilter %}{% set block %}text {{ messages | length }}{% endset %}{{ block }}"
    ),
}


@pytest.mark.parametrize("name", CONSTRUCTS)
def test_constructs_of_published_templates_render_as_in_transformers(name: str) -> None:
    template = ChatTemplate(CONSTRUCTS[name], special=SPECIAL)
    for messages, tools in TURNS.values():
        for more in SWITCHES:
            truth = by_transformers(CONSTRUCTS[name], messages, tools, **more)
            found = by_hetero(template, messages, tools, **more)
            if isinstance(truth, Exception):
                assert isinstance(found, HeteroError)
                assert str(truth) in str(found)
            else:
                assert found == truth


def published() -> list[Path]:
    found = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
    return found or [Path("none")]


def source_of(path: Path) -> str:
    if not path.exists():
        pytest.skip("HETERO_TEMPLATES names no folder of published templates")
    return path.read_text(encoding="utf-8")


def truth_of(source: str, messages: list[dict[str, Any]], tools: Any, **more: Any) -> str | Exception:
    """What transformers renders, or Jinja itself where only transformers' ban on changing lists is in the way.

    No content beside calls is left out, as nulls are.
    """
    messages = [{k: v for k, v in m.items() if v != "" or "tool_calls" not in m} for m in messages]
    truth = by_transformers(source, messages, tools, **more)
    if isinstance(truth, jinja2.sandbox.SecurityError):
        variables = copy.deepcopy({"messages": messages, "tools": tools, "add_generation_prompt": True})
        return render_worker.environment().from_string(source).render(**SPECIAL, **variables, **more)
    return truth


@pytest.mark.parametrize("path", published(), ids=lambda path: path.stem)
def test_published_templates_render_as_in_transformers(path: Path) -> None:
    source = source_of(path)
    template = ChatTemplate(source, special=SPECIAL)
    for name, (messages, tools) in TURNS.items():
        for more in SWITCHES:
            truth = truth_of(source, messages, tools, **more)
            found = by_hetero(template, messages, tools, **more)
            if isinstance(truth, str) and ("get_weather" in truth or "call" not in name):
                assert found == truth, name


@pytest.mark.parametrize("path", published(), ids=lambda path: path.stem)
def test_published_templates_take_every_form_of_the_same_messages(path: Path) -> None:
    """Arguments as text, content in parts or null: the prompt is that of the usual form."""
    source = source_of(path)
    template = ChatTemplate(source, special=SPECIAL)
    usual = by_hetero(template, [SYSTEM, USER, call(), RESULT], TOOLS)
    plain = by_hetero(template, [SYSTEM, USER], None)
    if isinstance(plain, HeteroError) or isinstance(usual, HeteroError):
        pytest.skip(f"refuses system messages, or conversations without or with tools: {plain}{usual}"[:200])
    part = {"type": "text", "text": USER["content"]}
    assert by_hetero(template, [SYSTEM, USER | {"content": [part]}], None) == plain
    turn = call()
    turn["tool_calls"][0]["function"] = {"name": "get_weather", "arguments": json.dumps(ARGUMENTS, ensure_ascii=False)}
    assert by_hetero(template, [SYSTEM, USER, turn, RESULT], TOOLS) == usual
    assert by_hetero(template, [SYSTEM, USER, call() | {"content": None}, RESULT], TOOLS) == usual


ENDS = ("<EOS>", "<｜end▁of▁sentence｜>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "[e~[", "<|end|>")
FAMILIES = ("DeepSeek-V3", "DeepSeek-V4", "GLM-4", "Kimi-K2", "MiniMax-M2", "Qwen3", "gpt-oss", "granite-4", "Mistral")


@pytest.mark.parametrize("path", published(), ids=lambda path: path.stem)
def test_what_a_published_template_writes_for_a_call_is_read_back(path: Path) -> None:
    source = source_of(path)
    if not any(name in path.stem for name in FAMILIES):
        pytest.skip("of no family that runs here")
    template, dialect = ChatTemplate(source, special=SPECIAL), dialect_of(source, set())
    for reasoning in ("", "hm"):
        turn = call(**({"reasoning_content": reasoning} if reasoning else {}))
        prompt = template.render([USER], tools=TOOLS, thinking=bool(reasoning))
        whole = template.render([USER, turn], tools=TOOLS, add_generation_prompt=False, thinking=bool(reasoning))
        if not whole.startswith(prompt):  # the prompt has opened or closed the thinking, and the turn begins otherwise
            continue
        tail = whole.removeprefix(prompt)
        for end in ENDS:
            tail = tail.rstrip("\n").removesuffix(end)
        parser = dialect.parser(prompt, TOOLS)
        parts: list[Part] = parser.feed(tail) + parser.finish()
        assert [(p.call.name, p.call.arguments) for p in parts if p.call] == [("get_weather", ARGUMENTS)], tail
        assert not "".join(p.text for p in parts if p.kind == "answer").strip()
