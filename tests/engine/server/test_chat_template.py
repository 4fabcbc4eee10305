from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from engine.errors import InvalidRequest, ModelUnavailable
from engine.server.chat_template import ChatTemplate
from engine.server.template_files import Templates, read_templates
from tests.engine.tiny import CHAT_TEMPLATE

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def make(source: str = CHAT_TEMPLATE, tool_use: str | None = None) -> ChatTemplate:
    return ChatTemplate(Templates(source, tool_use), TOKENS)


def test_renders_messages_and_asks_for_an_answer() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<b> & 'hi'"}]
    assert make().render(messages) == "<|system|>Be brief.\n<|user|><b> & 'hi'\n<|assistant|>"


def test_knows_the_helpers_that_checkpoints_use() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}"
    )
    source += "{% endfor %}{{ tools | tojson }}{{ strftime_now('%Y') | length }}{{ eos_token }}"
    tools = [{"type": "function", "function": {"name": "<é>"}}]
    text = make(source).render([{"content": "a"}, {"content": "b"}], tools)
    assert text == '<s>a[{"type": "function", "function": {"name": "<é>"}}]4</s>'


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[5].content.name }}",
        "{{ messages + 1 }}",
        "{{ 1 // 0 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_what_the_template_refuses_is_the_callers_error(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template refused") as found:
        make(source).render([])
    assert found.value.param == "messages"


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    with pytest.raises(InvalidRequest):
        make("{{ ''.__class__.__mro__[1].__subclasses__() }}").render([])
    with pytest.raises(InvalidRequest):
        make("{{ messages.append(1) }}").render([])


def test_a_template_that_does_not_parse_fails_at_start() -> None:
    with pytest.raises(ModelUnavailable, match="does not parse"):
        make("{% for %}")


def test_is_found_where_checkpoints_keep_it(tmp_path: Path) -> None:
    assert read_templates(tmp_path, {}) is None
    assert read_templates(tmp_path, {"chat_template": "a"}) == Templates("a")
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert read_templates(tmp_path, {"chat_template": named}) == Templates("d", "t")
    assert read_templates(tmp_path, {"chat_template": named[:1]}) == Templates("t", "t")
    (tmp_path / "chat_template.jinja").write_text("f")
    assert read_templates(tmp_path, {"chat_template": named}) == Templates("f")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("u")
    assert read_templates(tmp_path, {}) == Templates("f", "u")


def test_conversations_with_tools_have_the_template_for_tools() -> None:
    template = make("plain", "{{ tools | tojson }}")
    assert template.render([USER]) == "plain"
    assert template.render([USER], TOOLS) == json.dumps(TOOLS)
    open_ended = make("{{ messages[-1].content }}", "tools: {{ messages[-1].content }}")
    assert open_ended.render_open([USER], TOOLS) == "tools: hi"
    with pytest.raises(ModelUnavailable, match="does not parse"):
        make("plain", "{% for %}")


def test_what_training_learns_from_is_shown() -> None:
    source = (
        "{% for m in messages %}{%- if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
        "{% set inner = 1 %}{% endgeneration %}{% else %}[{{ m.content }}]{% endif %}{% endfor %}{{ inner is defined }}"
    )
    assert make(source).render([USER, assistant("yes"), USER]) == "[hi]yes</s>[hi]False"
    tracked = render_jinja_template([[USER, assistant("yes"), USER]], chat_template=source, **TOKENS)
    assert tracked[0] == ["[hi]yes</s>[hi]False"]


@pytest.mark.parametrize(
    "given",
    [
        "",
        "indent=2",
        "separators=(',', ':')",
        "sort_keys=true",
        "ensure_ascii=true",
        "indent=4, ensure_ascii=false",
    ],
)
def test_json_is_written_as_templates_ask(given: str) -> None:
    source = "{{ messages | tojson(" + given + ") }}"
    messages = [{"role": "user", "content": "é <b>", "a": [1, {"z": None, "y": 2.0}]}]
    (expected,), _ = render_jinja_template([messages], chat_template=source, **TOKENS)
    assert make(source).render(messages) == expected


def test_special_tokens_go_by_their_roles() -> None:
    source = "{{ bos_token }}{{ pad_token }}{{ unk_token }}{{ sep_token }}{{ eos_token }}"
    assert make(source).render([USER]) == "<s><pad><unk></s>"
    assert ChatTemplate(Templates("{{ 'a' + bos_token }}")).render([USER]) == "a"


@pytest.mark.parametrize("content", [{"content": None}, {}], ids=["null", "absent"])
@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("m.content", ""),
        ("m['content'] ~ '.'", "."),
        ("m.content + '.'", "."),
        ("m.content | trim", ""),
        ("'calls' if m.content is none else 'text'", "calls"),
        ("'calls' if m['content'] == none else 'text'", "calls"),
        ("'text' if m.content is not none else 'calls'", "calls"),
        ("'text' if m.content != none else 'calls'", "calls"),
        ("'text' if m.content else 'calls'", "calls"),
        ("m.content if m.content is string else m.content | tojson", ""),
        ("'think' in m.content", "False"),
        ("m.content.split('x')[-1]", ""),
        ("m.content | length", "0"),
        ("'a' if m.content is iterable and m.content is not string else 'b'", "b"),
        ("m.content | tojson", "null"),
        ("[m] | tojson", '[{"role": "assistant", "tool_calls": [], "content": null}]'),
    ],
)
def test_a_message_of_calls_alone_has_no_text_and_not_the_word_none(
    shown: str, text: str, content: dict[str, None]
) -> None:
    message = {"role": "assistant", "tool_calls": [], **content}
    rendered = make("{% for m in messages %}{{ " + shown + " }}{% endfor %}").render([message])
    assert rendered.replace('"content": null, "tool_calls": []', '"tool_calls": [], "content": null') == text


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_are_shown_by_whichever_name_they_come(name: str) -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }};{% endfor %}"
    messages = [{**assistant("4"), name: "2 + 2"}, USER]
    (expected,), _ = render_jinja_template([messages], chat_template=source)
    assert make(source).render(messages) == expected == "2 + 2|2 + 2;|;"


USER = {"role": "user", "content": "hi"}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize("content", ["", "He", "He ", " He\n\n", "<|assistant|>", "\n", "e"])
@pytest.mark.parametrize(
    "shown", ["m.content", "m.content | trim", "m.content.split('|')[-1]", "m.content | upper"]
)
def test_an_open_message_ends_with_its_very_text(shown: str, content: str) -> None:
    """Though the template strips it or takes it apart, and though the text occurs in what the template adds."""
    source = "{% for m in messages %}<|{{ m.role }}|>{{ " + shown + " }}<|end|>{% endfor %}"
    text = make(source).render_open([{"role": "user", "content": "He "}, assistant(content)])
    assert text.endswith(f"<|end|><|assistant|>{content}")
    assert text.count("<|assistant|>") == 1 + (content == "<|assistant|>")


def test_an_open_message_begins_where_the_generation_prompt_ends() -> None:
    """Some templates write an empty thought before an answer that is past (Qwen 3 does)."""
    source = (
        "{% for m in messages %}[{{ m.role }}]"
        "{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}.{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert make(source).render_open([USER, assistant("<think>We")]) == "[user]hi.[assistant]<think>We"
    # White space is another matter: Llama 2 has one space before an answer, and no generation prompt.
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content | trim }} </s>{% endif %}{% endfor %}"
    )
    assert make(source).render_open([USER, assistant("We ")]) == "[INST] hi [/INST] We "


def test_an_open_message_that_is_not_shown_cannot_be_continued() -> None:
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        make("{{ messages[0].content }}").render_open([USER, assistant("a")])


def test_the_generation_prompt_can_be_left_out() -> None:
    assert make().render([USER], generation_prompt=False) == "<|user|>hi\n"


def test_a_template_that_is_no_text_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ModelUnavailable, match="no text"):
        read_templates(tmp_path, {"chat_template": 5})
    with pytest.raises(ModelUnavailable, match="no text"):
        read_templates(tmp_path, {"chat_template": ["x", {"name": "default", "template": 5}]})
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelUnavailable, match=r"chat_template\.jinja"):
        read_templates(tmp_path, {})
