from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import InvalidRequest, ModelUnavailable
from engine.server.chat_template import ChatTemplate, read_template
from tests.engine.tiny import CHAT_TEMPLATE


def make(source: str = CHAT_TEMPLATE) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>")


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
    assert read_template(tmp_path, {}) is None
    assert read_template(tmp_path, {"chat_template": "a"}) == "a"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert read_template(tmp_path, {"chat_template": named}) == "d"
    (tmp_path / "chat_template.jinja").write_text("f")
    assert read_template(tmp_path, {"chat_template": "a"}) == "f"


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
        read_template(tmp_path, {"chat_template": 5})
    with pytest.raises(ModelUnavailable, match="no text"):
        read_template(tmp_path, {"chat_template": ["x", {"name": "default", "template": 5}]})
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelUnavailable, match=r"chat_template\.jinja"):
        read_template(tmp_path, {})
