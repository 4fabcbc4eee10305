"""Calls without their format's marker: what small models write is called, what only looks like a call stays text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.client import EngineClient
from engine.server.adapters import Adapters
from engine.server.prepare import ContextBudget, Preparer
from engine.server.renderer import Renderer
from engine.server.template_files import read_templates
from engine.server.tokenizer import Tokenizer
from engine.server.tools import HERMES, LLAMA, MISTRAL, MISTRAL_ARGS, PHI, PHI4_MINI, QWEN3_CODER, Format
from engine.server.tools_parser import ToolParser
from engine.server.tools_unmarked import offered
from tests.engine.server.test_metrics import READY
from tests.engine.server.test_tools import HERMES_TEMPLATE
from tests.engine.server.test_tools_parser import both, cuts, run, written
from tests.engine.tiny import write_model
from tests.examples import examples

FORMATS = [HERMES, LLAMA, MISTRAL, MISTRAL_ARGS, PHI, PHI4_MINI, QWEN3_CODER]
CALL = '{"name": "sum", "arguments": {"a": 1}}'
ONE = ("sum", '{"a": 1}')
TWO = ("weather", '{"city": "}]\\"```{["}')
SECOND = f'{{"name": "weather", "arguments": {TWO[1]}}}'
DEFINITION = (
    '{"type": "function", "function": {"name": "sum", "description": "Adds.", "parameters": '
    '{"type": "object", "properties": {"a": {}}}, "strict": true}}'
)

CALLS = [
    (CALL, [ONE]),
    (f"\n {CALL}\n", [ONE]),
    (f"```json\n{CALL}\n```", [ONE]),
    (f"```\n{CALL}\n```\n", [ONE]),
    (f"```tool_call\n{CALL}```", [ONE]),
    (f"``` json \r\n{CALL}\r\n```", [ONE]),
    (f"```json{CALL}```", [ONE]),
    (f"<tools>\n{CALL}\n</tools>", [ONE]),
    (f"{{{CALL}}}", [ONE]),
    ('{{"name": "sum", "arguments": {{"a": 1}}}}', [ONE]),
    ('{\n  "name": "sum",\n  "arguments": {"a": 1}\n}', [ONE]),
    ('{"arguments": {"a": 1}, "name": "sum"}', [ONE]),
    ('{"name": "SUM", "parameters": {"a": 1}}', [ONE]),
    ('{"name": "sum", "arguments": "{\\"a\\": 1}"}', [ONE]),
    ('{"id": "x", "type": "function", "function": {"name": "sum", "arguments": {"a": 1}}}', [ONE]),
    ('{"name": "sum", "arguments": {"a": 1}, "additionalProperties": false}', [ONE]),
    ('{"name": "sum", "description": "Adds {", "strict": true, "arguments": {"a": 1}}', [ONE]),
    ('{"name": "sum", "arguments": null}', [("sum", "{}")]),
    (f"[{CALL}, {SECOND}]", [ONE, TWO]),
    (f"```json\n[{SECOND},\n{CALL}]\n```", [TWO, ONE]),
    (f"{CALL}\n{SECOND}", [ONE, TWO]),
    (f"{CALL}; {SECOND}", [ONE, TWO]),
    (f"```json\n{CALL}\n```\n\n```json\n{SECOND}\n```", [ONE, TWO]),
    # Qwen2.5-Coder-1.5B counts its doubled braces wrong.
    ('{{"name": "sum", "arguments": {"a": 1}}}}', [ONE]),
    (f"<tools>\n{CALL}}}\n{SECOND}}}\n</tools>", [ONE, TWO]),
    # It repeats what it was offered, and forgets a fence.
    (f"<tools>\n{DEFINITION}\n</tools>\n{{{CALL}}}\n{{{SECOND}}}}}\n```", [ONE, TWO]),
    # Nothing but what closes it is missing.
    ('{"name": "sum", "arguments": {"a": 1}', [ONE]),
    (f"```json\n[{CALL}", [ONE]),
    (f"[{CALL}, ", [ONE]),
]
"""Answers, and what they call."""

TEXTS = [
    DEFINITION,
    f"<tools>\n{DEFINITION}\n</tools>",
    f"{CALL}}}}}",
    f"}}{CALL}",
    f"{CALL},}}",
    f"Say {CALL}",
    f"{CALL} is how it is called.",
    f"```json\n{CALL}\n```\nThis is how it is called.",
    f"```python\n{CALL}\n```",
    f"```json\n{CALL}\n``` and",
    '{"name": "Bob", "arguments": {}}',
    '{"name": "sum"}',
    '{"name": "sum", "age": 7}',
    '{"age": 7, "name": "sum", "arguments": {}}',
    '{"name": "sum", "arguments": {}, "arguments": {}}',
    '{"name": "sum", "arguments": {}, "why": }',
    '{"name": "sum", "arguments": [1]}',
    '{"name": "sum", "arguments": {"a": 1,}}',
    '{"name": "sum", "arguments": {"a": ',
    '{"name": "sum", "arguments": {"a": 1}, "type": "fun',
    '{"name": "sum", "name": "weather", "arguments": {}}',
    '[{"name": "Bob"}]',
    f"[{CALL}, 7]",
    "[1, 2]",
    "[]",
    "{}",
    "``",
    "``` ",
    "```json\n```",
    "```json\n[1]\n```",
    "`sum`",
    "<tools>",
    "<toolset>",
    "<b>",
    ",",
    f";{CALL}",
    " ",
    "",
]


def reads_itself(format: Format, text: str) -> bool:
    """The format that has calls without a marker streams them, and does not look at what comes after."""
    return format.bare and text.lstrip().startswith("{")


@both
@pytest.mark.parametrize(
    ("format", "text", "calls"),
    [(form, *one) for one in CALLS for form in FORMATS if not reads_itself(form, one[0])],
)
def test_an_answer_that_is_nothing_but_calls(
    format: Format, whole: bool, text: str, calls: list[tuple[str, str]]
) -> None:
    for pieces in ([text], list(text)):
        assert run(format, pieces, whole=whole) == ("", calls, len(calls))
    assert run(format, [text], whole=whole, only=1) == ("", calls[:1], 1)


@both
@pytest.mark.parametrize(
    ("format", "text"),
    [(form, text) for text in TEXTS for form in FORMATS if not reads_itself(form, text)],
)
def test_what_only_looks_like_calls_is_text(format: Format, whole: bool, text: str) -> None:
    for pieces in ([text], list(text)):
        assert run(format, pieces, whole=whole) == (text, [], 0)


@settings(max_examples=examples(400), deadline=None, derandomize=True)
@given(st.data())
def test_how_it_is_cut_makes_no_difference_and_no_word_is_lost(data: st.DataObject) -> None:
    scraps = [
        CALL, SECOND, "```json\n", "```", "\n", " ", "<tools>", "</tools>", "[", "]", ",", ";", "{", "}", '"name"',
        '{"name": "sum", "arguments": ', '{"a": 1}', '"x"', ":", "x", "`", "<", written(HERMES, ONE),
    ]  # fmt: skip
    text = "".join(data.draw(st.lists(st.sampled_from(scraps), max_size=6)))
    cut = data.draw(st.booleans())
    whole = data.draw(st.booleans())
    found = run(HERMES, [text], whole=whole, cut=cut)
    assert run(HERMES, data.draw(cuts(text)), whole=whole, cut=cut) == found
    received, calls, complete = found
    if not calls:
        assert received == text
    elif not (received or "<tool_call>" in text):
        # Nothing but what frames a call is missing.
        rest = text
        for name, arguments in calls:
            at = rest.index(arguments)
            assert rest[:at].casefold().count(name) == 1
            rest = rest[at + len(arguments) :]
        assert complete == len(calls)


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.text('{}[]"`<tools>/json: ,;\nna', max_size=40), st.data())
def test_prose_is_kept_to_the_letter(text: str, data: st.DataObject) -> None:
    for form in FORMATS:
        assert run(form, data.draw(cuts(text))) == (text, [], 0)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("The sum is 3.", 0),
        ("  \n The sum", 4),
        ('{"name": "Bob", "age": 7}', len('{"name": "Bob')),
        ('{"total": 3}', len('{"total": ')),
        ("```python\nx = {}\n```", 3),
        ("```jsonc\n{}", 7),
        ("[see](there)", 1),
        ("<table>", 2),
        (f"{CALL} is it", len(CALL) + 1),
    ],
)
def test_text_is_held_no_longer_than_it_may_be_a_call(text: str, held: int) -> None:
    parser = ToolParser(HERMES, ["sum"])
    shown = ""
    for number, char in enumerate(text, 1):
        shown += parser.push(char).text
        assert shown == ("" if number <= held else text[:number].rstrip()), number
    assert shown + parser.finish(cut=False).text == text


def test_it_is_not_looked_for_where_it_means_nothing() -> None:
    for parser in (ToolParser(HERMES, ["sum"], unmarked=False), ToolParser(HERMES, [])):
        assert parser.push(CALL).text == CALL
        assert parser.finish(cut=False).calls == []
        assert parser.complete == 0


def test_a_cut_call_is_text() -> None:
    for length in range(1, CALL.rindex("}") - 1):
        assert run(HERMES, [CALL[:length]], cut=True) == (CALL[:length], [], 0)


def test_names_may_differ_in_case_where_only_one_is_meant() -> None:
    assert offered("write", ["Write", "Read"]) == "Write"
    assert offered("Write", ["Write", "write"]) == "Write"
    assert offered("WRITE", ["Write", "write"]) is None
    assert offered("writes", ["Write"]) is None
    text = '<tool_call>\n{"name": "Sum", "arguments": {"a": 1}}\n</tool_call>'
    assert run(HERMES, list(text)) == ("", [ONE], 1)
    text = "<tool_call><function=SUM><parameter=a>1</parameter></function></tool_call>"
    assert run(QWEN3_CODER, list(text)) == ("", [ONE], 1)


@both
@pytest.mark.parametrize("braces", ["}}", "}"])
def test_doubled_braces_between_markers(whole: bool, braces: str) -> None:
    text = f'<tool_call>\n{{{{"name": "sum", "arguments": {{"a": 1}}{braces}\n</tool_call>'
    assert run(HERMES, list(text), whole=whole) == ("", [ONE], 1)


def test_ids_are_of_the_formats_form() -> None:
    parser = ToolParser(MISTRAL, ["sum"])
    assert parser.push(CALL).calls == []
    (delta,) = parser.finish(cut=False).calls
    assert (delta.name, json.loads(delta.arguments), len(delta.id or "")) == ("sum", {"a": 1}, 9)


@pytest.mark.anyio
async def test_where_it_is_looked_for(tmp_path: Path) -> None:
    """Where calls are free: not where a form is asked for, which may look like one, nor without tools."""
    tokenizer = Tokenizer(write_model(tmp_path / "tiny", template=HERMES_TEMPLATE))
    templates = read_templates(tmp_path / "tiny", tokenizer.settings)
    assert templates is not None
    template = await Renderer.start(templates, tokenizer.roles)
    try:
        adapters = Adapters(cast(EngineClient, None), "tiny")
        preparer = Preparer(adapters, replace(READY, vocab_size=320), tokenizer, template)
        tool = {"type": "function", "function": {"name": "sum"}}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
        for more, finds in (
            ({"tools": [tool]}, True),
            ({"tools": [tool], "tool_choice": "none"}, False),
            ({"tools": [tool], "response_format": form}, False),
            ({"tools": [tool], "guided_regex": ".*"}, False),
            ({}, False),
        ):
            asked = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 9, **more}
            prepared = await preparer.chat(json.dumps(asked).encode(), ContextBudget(2000))
            (sequence,) = prepared.sequences
            found = False
            if sequence.parser is not None:
                text = sequence.parser.push(CALL).text
                rest = sequence.parser.finish(cut=False)
                found = rest.calls != []
                assert text + rest.text == ("" if found else CALL)
            assert found == finds, more
    finally:
        await template.close()
