"""How each dialect writes a turn with calls: short Jinja templates after the models' own, one per dialect."""

from __future__ import annotations

from typing import Any

from hetero.models.text.answers import DIALECTS, Part
from hetero.models.text.answers.parts import AnswerParser

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "units": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "where": {"type": "object"},
                    "exact": {"type": "boolean"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
]

_DSML = (
    '{{ content }}\n\n<｜DSML｜BLOCK>\n{% for c in calls %}<｜DSML｜invoke name="{{ c.name }}">\n'
    '{% for k, v in c.arguments.items() %}<｜DSML｜parameter name="{{ k }}" string="{{ \'true\' if v is string else '
    "'false' }}\">{{ v if v is string else v | tojson }}</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n"
    "{% endfor %}</｜DSML｜BLOCK>"
)
_XML_VALUE = "{{ v if v is string else v | tojson }}"

TEMPLATES = {
    "hermes": (
        '{{ content }}{% for c in calls %}\n<tool_call>\n{"name": "{{ c.name }}", "arguments": '
        "{{ c.arguments | tojson }}}\n</tool_call>{% endfor %}"
    ),
    "qwen-xml": (
        "{{ content }}\n{% for c in calls %}\n<tool_call>\n<function={{ c.name }}>\n{% for k, v in "
        "c.arguments.items() %}"
        "<parameter={{ k }}>\n{{ v | tojson if v is mapping or (v is sequence and v is not string) else v }}\n"
        "</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}"
    ),
    "glm": (
        "{{ content }}{% for c in calls %}\n<tool_call>{{ c.name }}\n{% for k, v in c.arguments.items() "
        "%}<arg_key>{{ k }}"
        f"</arg_key>\n<arg_value>{_XML_VALUE}</arg_value>\n{{% endfor %}}</tool_call>{{% endfor %}}"
    ),
    "minimax": (
        '{{ content }}\n<minimax:tool_call>\n{% for c in calls %}<invoke name="{{ c.name }}">\n'
        f'{{% for k, v in c.arguments.items() %}}<parameter name="{{{{ k }}}}">{_XML_VALUE}</parameter>\n{{% endfor %}}'
        "</invoke>\n{% endfor %}</minimax:tool_call>"
    ),
    "kimi-k2": (
        "{{ content }}<|tool_calls_section_begin|>{% for c in calls %}<|tool_call_begin|>functions.{{ c.name }}:"
        "{{ loop.index0 }}<|tool_call_argument_begin|>{{ c.arguments | tojson }}<|tool_call_end|>{% endfor %}"
        "<|tool_calls_section_end|>"
    ),
    "deepseek": (
        "{{ content }}<｜tool▁calls▁begin｜>{% for c in calls %}<｜tool▁call▁begin｜>{{ c.name }}<｜tool▁sep｜>"
        "{{ c.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>"
    ),
    "deepseek (V3)": (
        "{{ content }}<｜tool▁calls▁begin｜>{% for c in calls %}<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
        "{{ c.name }}\n```json\n{{ c.arguments | tojson }}\n```<｜tool▁call▁end｜>\n{% endfor %}<｜tool▁calls▁end｜>"
    ),
    "deepseek-v3.2": _DSML.replace("BLOCK", "function_calls"),
    "deepseek-v4": _DSML.replace("BLOCK", "tool_calls"),
    "hunyuan": (
        '<answer>\n{{ content }}<tool_calls>[{% for c in calls %}{"name": "{{ c.name }}", "arguments": '
        "{{ c.arguments | tojson }}}{% if not loop.last %}, {% endif %}{% endfor %}]</tool_calls>\n</answer>"
    ),
    "granite": (
        '{{ content }}<|tool_call|>[{% for c in calls %}{"name": "{{ c.name }}", "arguments": '
        "{{ c.arguments | tojson }}}{% if not loop.last %}, {% endif %}{% endfor %}]"
    ),
    "mistral": (
        '{{ content }}[TOOL_CALLS] [{% for c in calls %}{"name": "{{ c.name }}", "arguments": '
        '{{ c.arguments | tojson }}, "id": "abcdefgh{{ loop.index0 }}"}{% if not loop.last %}, {% endif %}{% endfor %}]'
    ),
    "mistral (2025)": (
        "{{ content }}{% for c in calls %}[TOOL_CALLS]{{ c.name }}[ARGS]{{ c.arguments | tojson }}{% endfor %}"
    ),
    "llama-4": (
        "[{% for c in calls %}{{ c.name }}({% for k, v in c.arguments.items() %}{{ k }}={{ v | tojson }}"
        "{% if not loop.last %}, {% endif %}{% endfor %}){% if not loop.last %}, {% endif %}{% endfor %}]"
    ),
    "harmony": (
        "<|channel|>commentary<|message|>{{ content }}<|end|>{% for c in calls "
        "%}<|start|>assistant<|channel|>commentary "
        "to=functions.{{ c.name }} <|constrain|>json<|message|>{{ c.arguments | tojson }}<|call|>{% endfor %}"
    ),
}
"""By dialect, with the variant in brackets."""

PROMPTS = {"harmony": "<|start|>user<|message|>hi<|end|><|start|>assistant"}


def parser_of(name: str, prompt: str = "", tools: Any = TOOLS) -> AnswerParser:
    dialect = DIALECTS[name.partition(" (")[0]]
    return dialect.parser(prompt or PROMPTS.get(dialect.name, ""), tools)


def parse(name: str, pieces: list[str], prompt: str = "", tools: Any = TOOLS) -> list[Part]:
    """All parts, neighbours of one kind joined."""
    parser = parser_of(name, prompt, tools)
    found = [part for piece in pieces for part in parser.feed(piece)] + parser.finish()
    joined: list[Part] = []
    for part in found:
        assert part.text or part.kind == "call"
        if joined and part.kind == joined[-1].kind and part.kind in ("thinking", "answer"):
            joined[-1] = Part(part.kind, joined[-1].text + part.text)
        else:
            joined.append(part)
    return joined
