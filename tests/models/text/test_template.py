"""Chat templates: what they are given, and what keeps a hostile one harmless."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hetero.machine.types import ModelError, UsageError
from hetero.models.text.template import MAX_TEMPLATE_BYTES, ChatTemplate

USER = [{"role": "user", "content": "Hi 😀\n<b>"}]

HOSTILE = {
    "one huge string": "{{ 'a' * 10**9 }}",
    "large strings again and again": "{% for i in range(1000) %}{{ 'a' * 100000000 }}{% endfor %}",
    "large text kept": "{% set n = namespace(x='aa') %}{% for i in range(999) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "nested loops that write": "{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxx{% endfor %}{% endfor %}",
    "huge number": "{{ 10 ** (10 ** 10) }}",
    "huge number, not constant": "{% set n = messages|length + 9 %}{{ n ** (n ** n) }}",
    "wide field": "{{ 'a'.center(10**9) }}",
    "wide filter": "{{ 'a'|center(10**9) }}",
    "wide format": "{{ '%0999999999d' % 1 }}",
    "long range": "{{ range(10**9)|list }}",
    "replace": "{{ ('a'*100000).replace('a', 'b'*100000) }}",
    "recursive macro": "{% macro m(n) %}{{ m(n+1) }}{% endmacro %}{{ m(0) }}",
    "exponential macros": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class by filter": "{{ (''|attr('__class__')).__mro__ }}",
    "globals": "{{ raise_exception.__globals__['os'] }}",
    "format attribute": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "syntax": "{% if %}",
    "undefined call": "{{ nothing_like_this(1) }}",
    "wide tabs": "{{ '\t'.expandtabs(10**9) }}",
    "zeros": "{{ 'a'.zfill(10**9) }}",
    "wide format, mapped": "{{ '{a:>1000000000}'.format_map({'a': 1}) }}",
    "width as argument": "{{ '%*d' % (10**9, 5) }}",
    "large text in turns": "{% set c = cycler('a'*10**6) %}{% for i in range(99999) %}{{ c.next() }}{% endfor %}",
    "small text without end": "{% for i in range(99999) %}{% for j in range(999) %}aaaaaaaaa{% endfor %}{% endfor %}",
    "loop that calls itself": "{% for i in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    "many conditions": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "long sum": "{{ " + "a+" * 20000 + "1 }}",
    "class by map": "{{ [1]|map(attribute='__class__.__mro__')|list }}",
    "initialiser": "{{ namespace.__init__.__globals__ }}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


@pytest.fixture(scope="module")
def worker() -> ChatTemplate:
    return ChatTemplate("")


def render(worker: ChatTemplate, source: str, **kwargs: Any) -> str:
    worker.source = source
    return worker.render(kwargs.pop("messages", USER), **kwargs)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_stopped_and_the_next_one_works(worker: ChatTemplate, name: str) -> None:
    cpu = time.process_time()
    with pytest.raises(ModelError) as caught:
        render(worker, HOSTILE[name])
    assert "\n" not in caught.value.message
    assert caught.value.hint
    assert time.process_time() - cpu < 1.0  # all its work is done, and limited, in the other process
    assert render(worker, "{{ messages[0].role }}") == "user"


def test_a_template_of_more_than_256_kb_is_refused() -> None:
    ChatTemplate("x" * MAX_TEMPLATE_BYTES)
    with pytest.raises(ModelError, match="262145 bytes"):
        ChatTemplate("x" * (MAX_TEMPLATE_BYTES + 1))


def test_what_templates_rely_on_is_there(worker: ChatTemplate) -> None:
    assert render(worker, "{{ messages[0] | tojson }}") == '{"role": "user", "content": "Hi 😀\\n<b>"}'
    assert render(worker, "{{ messages | tojson(indent=1) }}").startswith('[\n {\n  "role"')
    assert render(worker, "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render(worker, "a\n  {% if true %}\nb\n  {% endif %}\n") == "a\nb\n"
    assert render(worker, "{% generation %}{{ 1 }}{% endgeneration %}") == "1"
    assert len(render(worker, "{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert render(worker, "{{ tools is none }}{{ add_generation_prompt }}{{ deep }}", deep=3) == "TrueTrue3"
    assert render(worker, "{{ messages[0].content.split('\\n')[0] }}") == "Hi 😀"
    assert (
        render(worker, "{{ messages[0].tool_calls is defined }}", messages=[{**USER[0], "tool_calls": None}]) == "False"
    )


def test_special_tokens_and_named_templates() -> None:
    template = ChatTemplate(
        "{{ bos_token }}plain", named={"tool_use": "tools {{ tools }}"}, special={"bos_token": "<s>"}
    )
    assert template.render(USER) == "<s>plain"
    assert template.render(USER, tools=[{"name": "f"}]) == "tools [{'name': 'f'}]"


def test_a_template_may_refuse_a_conversation(worker: ChatTemplate) -> None:
    with pytest.raises(UsageError, match="roles must alternate"):
        render(worker, "{{ raise_exception('roles must alternate') }}")


def test_a_conversation_that_is_no_plain_data_is_a_usage_error(worker: ChatTemplate) -> None:
    with pytest.raises(UsageError, match="plain data"):
        render(worker, "x", messages=[{**USER[0], "when": object()}])


def test_a_long_conversation_is_rendered(worker: ChatTemplate) -> None:
    long = "word " * 2_000_000
    messages = [{"role": "user", "content": long}]
    assert render(worker, "{% for m in messages %}{{ m.content }}{% endfor %}", messages=messages) == long


def test_a_template_may_change_its_copy_of_the_conversation(worker: ChatTemplate) -> None:
    messages = [dict(USER[0])]
    assert render(worker, "{% set _ = messages.append(1) %}{{ messages | length }}", messages=messages) == "2"
    assert messages == USER


def test_the_worker_ends_with_its_template() -> None:
    template = ChatTemplate("x")
    assert template.render(USER) == "x"
    process = template._worker._process
    assert process is not None
    assert process.poll() is None
    del template
    assert process.returncode is not None
