"""Which format a template shows, the grammar of forced calls, and how past calls are put into prompts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.core.sampling_params import Grammar
from engine.grammar.language import check
from engine.server.chat_template import ChatTemplate
from engine.server.template_files import Templates
from engine.server.tools import (
    HARMONY,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_ARGS,
    PHI,
    PHI4_MINI,
    QWEN3_CODER,
    ForcedCalls,
    Format,
    call_rules,
    detect,
    template_messages,
    template_tools,
)
from engine.server.tools_parser import ToolParser

HERMES_TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
Answer with <tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}{% if message.content %}
{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

HARMONY_TEMPLATE = """\
<|start|>system<|message|>Reasoning: {{ reasoning_effort | default("medium") }}<|end|>
{%- if tools %}<|start|>developer<|message|>namespace functions {
{%- for tool in tools %}
{{ "// " + tool.function.description }}
type {{ tool.function.name }} = (_: {{ tool.function.parameters | default({}) | tojson }}) => any;
{%- endfor %} }<|end|>
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.content and message.thinking %}{{ raise_exception("not both") }}{% endif %}
{%- if message.thinking or message.content %}<|start|>assistant<|channel|>analysis<|message|>
{{- message.thinking or message.content }}<|end|>{% endif %}
{%- set call = message.tool_calls[0].function %}{% set last.name = call.name -%}
<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>
{{- call.arguments | tojson }}<|call|>
{%- elif message.role == "tool" %}
{%- if last.name is none %}{{ raise_exception("a result without a call") }}{% endif -%}
<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ message.content | tojson }}<|end|>
{%- elif message.role == "assistant" -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
{%- else -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""
"""As gpt-oss's renders them: one call a message, beside reasoning or text; a result by the name of the last call."""

LLAMA_TEMPLATE = """\
{{- bos_token }}{% for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception("only single tool-calls at once") }}{% endif %}
{%- set call = message.tool_calls[0].function -%}
<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
{%- elif message.role in ("tool", "ipython") -%}
<|start_header_id|>ipython<|end_header_id|>

{{ message.content | tojson }}<|eot_id|>
{%- else -%}
<|start_header_id|>{{ message.role }}<|end_header_id|>

{{ message.content }}<|eot_id|>
{%- endif %}
{%- endfor %}"""

MISTRAL_TEMPLATE = """\
{{- bos_token }}{% for message in messages %}
{%- if message.role == "user" %}[INST]{{ message.content }}[/INST]
{%- elif message.tool_calls %}[TOOL_CALLS][
{%- for call in message.tool_calls %}
{%- if call.id is not defined or call.id | length != 9 %}{{ raise_exception("ids have length 9") }}{% endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- ', "id": "' + call.id + '"}' }}{{ "" if loop.last else ", " }}
{%- endfor %}]{{ eos_token }}
{%- elif message.role == "tool" %}
{%- if message.tool_call_id | length != 9 %}{{ raise_exception("ids have length 9") }}{% endif -%}
[TOOL_RESULTS]{"name": "{{ message.name }}", "content": {{ message.content }}}[/TOOL_RESULTS]
{%- endif %}
{%- endfor %}"""

CALL = {"id": "call_12", "type": "function", "function": {"name": "sum", "arguments": '{"a": [1, "é"]}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Add."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_12", "content": "3"},
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "sum",
            "parameters": {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/few"}},
                "required": ["a"],
                "additionalProperties": False,
                "$defs": {"few": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
            },
        },
    },
    {"type": "function", "function": {"name": 'say "hi"'}},
]

TAGS = "<function=sum>\n<parameter=a>\n[1, 2]\n</parameter>\n</function>"

FORMATS = [HERMES, LLAMA, MISTRAL, MISTRAL_ARGS, PHI, PHI4_MINI, QWEN3_CODER, HARMONY]
every = pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)


@pytest.mark.parametrize(
    ("template", "format"),
    [
        (HERMES_TEMPLATE, HERMES),
        (HARMONY_TEMPLATE, HARMONY),
        (LLAMA_TEMPLATE, LLAMA),
        ("{{ '<|python_tag|>' }}", LLAMA),
        (MISTRAL_TEMPLATE, MISTRAL),
        ("{{ '[TOOL_CALLS]' + call.name + '[ARGS]' }}", MISTRAL_ARGS),
        ("<|tool|>{{ tools }}<|/tool|> <|tool_call|>", PHI),
        ("<|tool|>{{ message['tools'] }}<|/tool|>", PHI4_MINI),
        ("functools[{{ call.name }}]", PHI4_MINI),
        ("<tool_call>\n<function=f>\n<parameter=a>\n", QWEN3_CODER),
        ("{{ messages[0].content }}", HERMES),
        ("", HERMES),
    ],
)
def test_a_template_shows_its_format(template: str, format: Format) -> None:
    assert detect(template) == format


def render(template: str, format: Format) -> str:
    return ChatTemplate(Templates(template), {"bos_token": "<s>", "eos_token": "</s>"}).render(
        template_messages(MESSAGES, format), TOOLS, generation_prompt=True
    )


def test_past_calls_are_rendered_as_each_family_has_them() -> None:
    text = render(HERMES_TEMPLATE, HERMES)
    assert '<tool_call>\n{"name": "sum", "arguments": {"a": [1, "é"]}}\n</tool_call>' in text
    assert "<tool_response>\n3\n</tool_response>" in text
    assert '"parameters": {"a": [1, "é"]}}<|eot_id|>' in render(LLAMA_TEMPLATE, LLAMA)
    text = render(MISTRAL_TEMPLATE, MISTRAL)
    assert '[TOOL_CALLS][{"name": "sum", "arguments": {"a": [1, "é"]}, "id": "' in text
    (number,) = {part.split('"')[0] for part in text.split('id": "')[1:]}
    assert len(number) == 9
    assert '[TOOL_RESULTS]{"name": "sum", "content": 3' in text


def test_the_callers_messages_are_left_alone_and_odd_ones_go_through() -> None:
    before = json.dumps(MESSAGES)
    template_messages(MESSAGES, MISTRAL)
    assert json.dumps(MESSAGES) == before
    odd = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": 3}, {"id": 4}, {}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "abcdefghi", "function": {"name": "f", "arguments": "{"}}],
        },
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]},
        {"role": "tool", "content": "x", "tool_call_id": "gone", "name": "kept"},
    ]
    found = template_messages(odd, HERMES)
    assert found[1] == odd[1]
    for arguments in ("[" * 5000, '{"a":' * 5000, '{"a": "\\ud800"}'):
        calls = [{"id": "abcdefghi", "function": {"name": "f", "arguments": arguments}}]
        (past,) = template_messages([{"role": "assistant", "tool_calls": calls}], HERMES)
        assert past["tool_calls"] == calls
    assert found[2] == odd[2]
    assert found[3]["tool_calls"][0]["function"]["arguments"] == {}
    assert found[4] == odd[4]
    assert template_messages(odd, MISTRAL)[1]["tool_calls"][0]["id"] == "abcdefghi"


@every
@pytest.mark.parametrize("several", [False, True])
def test_forced_calls_are_a_grammar_whose_texts_are_read_back(format: Format, several: bool) -> None:
    rules = "start: calls\n" + call_rules(format, ForcedCalls(TOOLS, several))
    assert check(Grammar("lark", rules)) is None
    calls = [("sum", '{"a": [1, 2]}'), ('say "hi"', "{}")]
    heads = [f'{{"name": {json.dumps(name)}, "{format.arguments}": {given}}}' for name, given in calls]

    def fits(text: str) -> bool:
        return check(Grammar("lark", rules, prefix=text)) is None

    one = {
        "hermes": f"<tool_call>\n{heads[0]}\n</tool_call>",
        "llama": heads[0],
        "mistral": f"[TOOL_CALLS][{heads[0]}]",
        "mistral_args": f"[TOOL_CALLS]sum[ARGS]{calls[0][1]}",
        "phi": f"<|tool_call|>[{heads[0]}]<|/tool_call|>",
        "phi4_mini": f"<|tool_call|>[{heads[0]}]<|/tool_call|>",
        "qwen3_coder": f"<tool_call>\n{TAGS}\n</tool_call>",
        "harmony": f"<|channel|>commentary to=functions.sum <|constrain|>json<|message|>{calls[0][1]}",
    }[format.name]
    two = {
        "hermes": f"{one}\n<tool_call>\n{heads[1]}\n</tool_call>",
        "llama": f"{one}; {heads[1]}",
        "mistral": f"[TOOL_CALLS] [{heads[0]}, {heads[1]}]",
        "mistral_args": f'{one}[TOOL_CALLS]say "hi"[ARGS]{{}}',
        "phi": f"<|tool_call|>[{heads[0]}, {heads[1]}]<|/tool_call|>",
        "phi4_mini": f"<|tool_call|>[{heads[0]}, {heads[1]}]<|/tool_call|>",
        "qwen3_coder": f'{one}\n<tool_call>\n<function=say "hi">\n</function>\n</tool_call>',
        "harmony": f"{one}{one}",
    }[format.name]
    assert fits(one)
    assert fits(two) == (several and format not in (LLAMA, HARMONY))
    assert not fits("Sure")
    assert not fits(one.replace("[1, 2]", "[1, 2, 3]"))
    assert not fits(one.replace("sum", "product"))
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in TOOLS}
    parser = ToolParser(format, schemas, schemas=schemas)
    found = parser.push(two if fits(two) else one)
    assert [(call.name, call.arguments) for call in found.calls] == calls[: 2 if fits(two) else 1]
    assert found.text == ""
    # Real models write a line's end before they decide whether to go on.
    assert fits(f"{one}\n") == bool(several and format.gap)
    found = parser.push("\n")
    rest = parser.finish(cut=False)
    assert found.text + rest.text == ""


def test_forced_calls_in_tags_keep_to_their_schema() -> None:
    properties = {
        "path": {"type": "string", "minLength": 1, "maxLength": 30},
        "mode": {"type": "string", "enum": ["r", "w"]},
        "lines": {"type": ["integer", "null"]},
        "text": {},
    }
    parameters = {"type": "object", "properties": properties, "required": ["path", "mode"]}
    tool = {"type": "function", "function": {"name": "edit", "parameters": parameters}}
    rules = "start: calls\n" + call_rules(QWEN3_CODER, ForcedCalls([tool], False))

    def fits(**given: str) -> bool:
        inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items())
        text = f"<tool_call>\n<function=edit>\n{inner}</function>\n</tool_call>"
        return check(Grammar("own", rules, prefix=text)) is None

    assert fits(path="a/<b>.py", mode="r")
    assert fits(path="a", mode="w", lines="3", text='if a < b:\n\n    return "</param>"')
    assert fits(path="a", mode="w", lines="null")
    assert not fits(path="a", mode="x")
    assert not fits(path="a")
    assert not fits(path="", mode="r")
    assert not fits(path="x" * 31, mode="r")
    assert not fits(path="a", mode="r", lines="three")
    assert not fits(path="a", mode="r", other="1")
    parameters["additionalProperties"] = True
    rules = "start: calls\n" + call_rules(QWEN3_CODER, ForcedCalls([tool], False))
    assert fits(path="a", mode="r", other="1", another="2")


def test_gpt_oss_gets_its_past_calls_one_by_one_with_their_results() -> None:
    def shown(messages: list[dict[str, Any]]) -> str:
        return ChatTemplate(Templates(HARMONY_TEMPLATE)).render(
            template_messages(messages, HARMONY), template_tools(TOOLS, HARMONY), generation_prompt=True
        )

    head, back = "<|start|>assistant to=functions.", " to=assistant<|channel|>commentary<|message|>"
    one = f'{head}sum<|channel|>commentary json<|message|>{{"a": [1, "é"]}}<|call|>'
    assert f'{one}<|start|>functions.sum{back}"3"<|end|><|start|>assistant' in shown(MESSAGES)
    other = {"id": "call_13", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    called = {"role": "assistant", "content": "Now:", "reasoning_content": "Hm.", "tool_calls": [CALL, other]}
    late = {"role": "tool", "tool_call_id": "call_13", "content": "noon"}
    text = shown([MESSAGES[0], called, late, MESSAGES[2], {"role": "user", "content": "So?"}])
    assert text.split("<|end|>", 3)[3] == (
        f'<|start|>assistant<|channel|>analysis<|message|>Hm.\n\nNow:<|end|>{one}<|start|>functions.sum{back}"3"<|end|>'
        f'{head}now<|channel|>commentary json<|message|>{{}}<|call|><|start|>functions.now{back}"noon"<|end|>'
        "<|start|>user<|message|>So?<|end|><|start|>assistant"
    )
    assert template_messages([{"role": "tool", "content": "x"}], HARMONY) == [
        {"role": "tool", "content": "x"}
    ]
    assert template_tools(None, HARMONY) is None


def test_what_is_for_the_server_is_not_for_the_model() -> None:
    tool = {"type": "function", "function": {"name": "now", "strict": True, "parameters": {"strict": {}}}}
    assert template_tools([tool], HERMES) == [
        {"type": "function", "function": {"name": "now", "parameters": {"strict": {}}}}
    ]


def test_phi_4_minis_template_sees_tools_and_past_calls() -> None:
    template = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
        "{% if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}<|tool|>{{ m['tools'] }}<|/tool|>"
        "{% endif %}<|end|>{% endfor %}"
    )
    functions = [tool["function"] for tool in TOOLS]

    def shown(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        return ChatTemplate(Templates(template)).render(
            template_messages(messages, PHI4_MINI, tools), tools or None
        )

    with_tools = f"<|system|><|tool|>{json.dumps(functions)}<|/tool|><|end|>"
    assert shown(MESSAGES, TOOLS).startswith(with_tools)
    system = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    assert shown(system, TOOLS).startswith(with_tools.replace("<|tool|>", "Be brief.<|tool|>", 1))
    call = '<|tool_call|>[{"name": "sum", "arguments": {"a": [1, "é"]}}]<|/tool_call|>'
    assert f"<|assistant|>{call}<|end|>" in shown(MESSAGES, [])
    assert "<|system|>" not in shown(MESSAGES, [])
