"""Tool calls in every format, cut into pieces in every way."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.server.tools import (
    HARMONY,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_ARGS,
    PHI,
    PHI4_MINI,
    QWEN3_CODER,
    Format,
)
from engine.server.tools_parser import ToolParser
from tests.examples import examples

FORMATS = [HERMES, LLAMA, MISTRAL, MISTRAL_ARGS, PHI, PHI4_MINI, QWEN3_CODER, HARMONY]
NAMES = ["weather", "sum"]
SCHEMAS = {
    "weather": {
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "array"},
            "of": {"type": "object"},
            "on": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "a": {"$ref": "#/$defs/number"},
            "unit": {"enum": ["C", "F"]},
            "free": {},
        },
        "$defs": {"number": {"type": "number"}},
    },
    "sum": {"properties": {"a": {"type": "integer"}}},
}
both = pytest.mark.parametrize("whole", [False, True], ids=["stream", "whole"])
every = pytest.mark.parametrize("format", FORMATS, ids=lambda f: f.name)

Call = tuple[str, str]


def run(
    format: Format,
    pieces: list[str],
    *,
    whole: bool = False,
    cut: bool = False,
    only: int | None = None,
    distinct: bool = False,
) -> tuple[str, list[Call], int]:
    """The text, the calls (name, arguments), and how many are complete."""
    parser = ToolParser(format, NAMES, whole=whole, only=only, schemas=SCHEMAS, distinct=distinct)
    text, calls, ids = "", [], []
    for parsed in [*map(parser.push, pieces), parser.finish(cut=cut)]:
        text += parsed.text
        for delta in parsed.calls:
            if delta.index == len(calls):
                assert delta.id
                assert delta.name
                ids.append(delta.id)
                calls.append((delta.name, ""))
            else:
                assert (delta.id, delta.name) == (None, None)
            assert delta.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    assert len(set(ids)) == len(ids)
    return text, calls, parser.complete


def written(format: Format, *calls: Call) -> str:
    """As a model of that format writes them."""
    if format is QWEN3_CODER:
        return "\n".join(f"<tool_call>\n{tags(*call)}\n</tool_call>" for call in calls)
    key = format.arguments
    objects = [f'{{"name": {json.dumps(name)}, "{key}": {arguments}}}' for name, arguments in calls]
    if format.layout == "list":
        return f"{format.begin}[{', '.join(objects)}]{format.end}"
    if format.layout == "args":
        return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)
    if format.layout == "channel":
        return "".join(f"{format.begin}{name}<|message|>{arguments}{format.end}" for name, arguments in calls)
    if format.bare:
        return "; ".join(objects)
    return "\n".join(f"{format.begin}\n{one}\n{format.end}" for one in objects)


def tags(name: str, arguments: str) -> str:
    values = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in json.loads(arguments).items()
    }
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<function={name}>\n{parameters}</function>"


def cuts(text: str) -> st.SearchStrategy[list[str]]:
    places = st.lists(st.integers(0, len(text)), max_size=8).map(lambda found: [0, *sorted(found), len(text)])
    return places.map(lambda at: [text[a:b] for a, b in pairwise(at)])


PARIS = ("weather", '{"city": "Paris", "days": [1, 2], "of": {"a": "}]\\"{["}}')
ONE = ("sum", '{"a": 1}')
NONE = ("sum", "{}")


@every
@both
@pytest.mark.parametrize("calls", [[PARIS], [NONE, PARIS, ONE]], ids=["one", "three"])
def test_calls_are_found_sign_by_sign_and_at_once(format: Format, whole: bool, calls: list[Call]) -> None:
    text = written(format, *calls)
    assert run(format, [text], whole=whole) == ("", calls, len(calls))
    assert run(format, list(text), whole=whole) == ("", calls, len(calls))


@every
@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(st.data())
def test_how_it_is_cut_makes_no_difference(format: Format, data: st.DataObject) -> None:
    before = "" if format.bare else data.draw(st.sampled_from(["", "Let me see <a> [TOOL", "1 < 2 {"]))
    text = before + written(format, PARIS, ONE)
    pieces = data.draw(cuts(text))
    whole = data.draw(st.booleans())
    assert run(format, pieces, whole=whole) == (before, [PARIS, ONE], 2)


@every
@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.data())
def test_any_text_comes_out_as_text_or_calls(format: Format, data: st.DataObject) -> None:
    """Whatever a model writes: nothing breaks, and a whole answer has each word in one of the two places."""
    scraps = [
        *format.markers, '{"name": "sum"', '"name"', '{"', '"', "{", "}", "[", "]", ":", ",", ";", " ", "\n", "\\", "x",
        '"arguments": {"a": 1}', '"parameters": {', '"sum"', '"ring\\ud800"', "null", "7", "<tool",
        written(format, ONE),
    ]  # fmt: skip
    text = "".join(data.draw(st.lists(st.sampled_from(scraps), max_size=12)))
    pieces = data.draw(cuts(text))
    cut = data.draw(st.booleans())
    for whole in (False, True):
        received, calls, complete = run(format, pieces, whole=whole, cut=cut)
        assert len(calls) >= complete
        for name, arguments in calls[: complete if whole else 0]:
            assert name
            assert isinstance(json.loads(arguments), dict)
        json.dumps([received, calls], ensure_ascii=False).encode()
        for letter in "x7":
            reported = received + "".join(name + arguments for name, arguments in calls)
            if '"arg' not in text and '"par' not in text and not complete:
                assert reported.count(letter) == text.count(letter)
    # Cut anywhere, a whole answer is the same.
    assert run(format, pieces, whole=True, cut=cut) == run(format, [text], whole=True, cut=cut)


@every
@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(st.text("ab <>{}[]|\n/_tolcTOLCALLS", max_size=40), st.data())
def test_a_text_without_calls_is_left_as_it_is(format: Format, text: str, data: st.DataObject) -> None:
    for whole in (False, True):
        assert run(format, data.draw(cuts(text)), whole=whole) == (text, [], 0)


SEVERAL = [form for form in FORMATS if not form.bare]


@both
@pytest.mark.parametrize("format", SEVERAL, ids=lambda f: f.name)
@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(st.data())
def test_a_call_made_before_ends_what_is_forced(format: Format, whole: bool, data: st.DataObject) -> None:
    """However it is cut, in pieces or off."""
    berlin = ("weather", PARIS[1].replace("Paris", "Berlin"))
    text = written(format, PARIS, berlin, ONE, PARIS, NONE)
    pieces = data.draw(cuts(text))
    assert run(format, pieces, whole=whole, distinct=True) == ("", [PARIS, berlin, ONE], 3)
    assert run(format, pieces, whole=whole) == ("", [PARIS, berlin, ONE, PARIS, NONE], 5)
    short = text[: text.index("Paris", text.index("Paris") + 5) + 3]
    pieces = data.draw(cuts(short))
    assert run(format, pieces, whole=whole, distinct=True, cut=True) == ("", [PARIS, berlin, ONE], 3)


@both
def test_texts_that_differ_in_white_space_are_different_calls(whole: bool) -> None:
    calls = [("weather", '{"city": "a b"}'), ("weather", '{"city": "ab"}'), ("weather", '{ "city":"a b" }')]
    text = written(HERMES, *calls)
    assert run(HERMES, [text], whole=whole, distinct=True) == ("", calls[:2], 2)


def test_a_call_that_may_be_a_repetition_is_held_back_until_it_is_none() -> None:
    parser = ToolParser(HERMES, NAMES, distinct=True)
    parser.push(written(HERMES, ("sum", '{"a": 12, "b": 3}')))
    assert parser.push('<tool_call>\n{"name": "sum", "arguments": {"a": 1').calls == []
    (delta,) = parser.push("3").calls
    assert (delta.index, delta.name, delta.arguments) == (1, "sum", '{"a": 13')
    assert [delta.arguments for delta in parser.push("}}").calls] == ["}"]
    # One of another tool has never been made.
    (delta,) = parser.push('<tool_call>{"name": "weather", "arguments": {').calls
    assert (delta.index, delta.arguments) == (2, "{")


@both
def test_text_before_a_call_streams_without_the_marker(whole: bool) -> None:
    parser = ToolParser(HERMES, NAMES, whole=whole)
    assert parser.push("I will look. ").text == "I will look."
    assert parser.push("<b> is <tool").text == " <b> is"
    assert parser.push("_call").text == ""
    assert parser.push('>{"name": "sum", "arguments": {}}</tool_call>').text == ""
    assert parser.finish(cut=False).text == ""


def test_arguments_stream_as_they_come() -> None:
    parser = ToolParser(HERMES, NAMES)
    assert parser.push('<tool_call>{"name": "sum", "arg').calls == []
    (first,) = parser.push('uments": {"a"').calls
    assert (first.index, first.name, first.arguments) == (0, "sum", '{"a"')
    (more,) = parser.push(": 1").calls
    assert (more.id, more.name, more.arguments) == (None, None, ": 1")
    assert [delta.arguments for delta in parser.push("}}").calls] == ["}"]
    assert parser.complete == 1


@both
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\nno json",
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "sum", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "sum", "arguments": "no object"}</tool_call>',
        '<tool_call>{"name": "sum", "arguments": 7}</tool_call>',
        '<tool_call>{"name": "sum", "arguments": {"a": 1,}}</tool_call>',
        '<tool_call>{"name": "sum", "arguments": {"a": 1]}</tool_call>',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "sum", "arguments": ' + '{"a": ' * 5000 + "1" + "}" * 5001,
        '{"name": "sum"}',
    ],
)
def test_a_broken_call_is_text(text: str, whole: bool) -> None:
    assert run(HERMES, [text], whole=whole) == (text, [], 0)


def test_a_stream_that_has_told_a_call_gives_the_rest_as_text() -> None:
    text = '<tool_call>{"name": "sum", "arguments": {"a": 1,}} and so on'
    received, calls, complete = run(HERMES, list(text))
    assert calls[0][1] + received == '{"a": 1,}} and so on'
    assert complete == 0


@both
def test_after_a_broken_call_others_are_found(whole: bool) -> None:
    broken = '<tool_call>{"name": }'
    text = f"{broken}\n{written(HERMES, ONE)} Done."
    assert run(HERMES, list(text), whole=whole) == (f"{broken} Done.", [ONE], 1)


@both
@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "sum", "arguments": {"a": 1}',
        '<tool_call>{"name": "sum", "arguments": {"a": 1}\n</tool_call>',
        '<tool_call>{"arguments": {"a": 1}, "name": "sum"}</tool_call>',
        '<tool_call>{"name": "sum", "parameters": {"a": 1}, "why": [1, "x"]}</tool_call>',
        '<tool_call>{"type": "function", "function": {"name": "sum", "arguments": {"a": 1}}}</tool_call>',
        '<tool_call>{"name": "sum", "arguments": "{\\"a\\": 1}"}</tool_call>',
    ],
)
def test_small_slips_and_other_spellings_are_understood(text: str, whole: bool) -> None:
    assert run(HERMES, list(text), whole=whole) == ("", [ONE], 1)


@both
def test_llamas_calls_need_no_marker_but_must_name_a_tool(whole: bool) -> None:
    call = '{"name": "sum", "parameters": {"a": 1}}'
    assert run(LLAMA, list(call), whole=whole) == ("", [ONE], 1)
    assert run(LLAMA, list(f"<|python_tag|>{call}"), whole=whole) == ("", [ONE], 1)
    for answer in ('{"name": "Bob", "parameters": {}}', '{"a": {"name": "sum"}}', "{}", f"Say {call}"):
        assert run(LLAMA, list(answer), whole=whole) == (answer, [], 0)


@both
def test_mistrals_two_ways(whole: bool) -> None:
    for form in (MISTRAL, MISTRAL_ARGS):
        for text in (
            '[TOOL_CALLS] [{"name": "sum", "arguments": {"a": 1}, "id": "123456789"}]',
            '[TOOL_CALLS]sum[ARGS]{"a": 1}',
            '[TOOL_CALLS]sum[CALL_ID]123456789[ARGS]{"a": 1}',
        ):
            assert run(form, list(text), whole=whole) == ("", [ONE], 1)
    assert run(MISTRAL, ["[TOOL_CALLS]", "x" * 300], whole=whole)[0] == "[TOOL_CALLS]" + "x" * 300


def test_a_cut_call_is_told_as_far_as_it_is() -> None:
    for whole in (False, True):
        text = '<tool_call>{"name": "sum", "arguments": {"a": '
        assert run(HERMES, [text], whole=whole, cut=True) == ("", [("sum", '{"a": ')], 0)
        text = '<tool_call>{"name": "su'
        assert run(HERMES, [text], whole=whole, cut=True) == (text, [], 0)
        text = written(HERMES, ONE)
        for length in range(text.index("</"), len(text)):
            assert run(HERMES, [text[:length]], whole=whole, cut=True) == ("", [ONE], 1)


@every
def test_only_so_many_calls_are_taken(format: Format) -> None:
    text = written(format, ONE, PARIS) + " and more"
    assert run(format, list(text), only=1) == ("", [ONE], 1)
    assert run(format, [text], only=1, whole=True) == ("", [ONE], 1)


def test_values_in_tags_are_text_or_json_by_the_tools_schema() -> None:
    values = {
        "city": ' 12\n<b> "x" </parameter',
        "days": '[1, {"a": "é"}]',
        "of": "{broken",
        "on": "True",
        "a": "72.0",
        "unit": "C",
        "free": "true",
        "unknown": "5",
    }
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    text = f"<tool_call>\n<function=weather>\n{parameters}</function>\n</tool_call>"
    expected = {
        **values,
        "days": [1, {"a": "é"}],
        "on": True,
        "a": 72.0,
    }
    for pieces in ([text], list(text)):
        received, ((name, arguments),), complete = run(QWEN3_CODER, pieces)
        assert (received, name, complete) == ("", "weather", 1)
        assert json.loads(arguments) == expected
    for value in ("null", "None"):
        text = (
            f"<function=weather><parameter=on>{value}</parameter><parameter=days>NaN</parameter></function>"
        )
        _, ((_, arguments),), _ = run(QWEN3_CODER, [text])
        assert json.loads(arguments) == {"on": None, "days": "NaN"}


@both
@pytest.mark.parametrize("end", ["", "\n", "</func", "\n</function"])
def test_a_call_in_tags_that_lacks_its_last_one_is_whole(end: str, whole: bool) -> None:
    text = f"<tool_call>\n<function=sum>\n<parameter=a>\n1\n</parameter>{end}"
    assert run(QWEN3_CODER, list(text), whole=whole) == ("", [ONE], 1)


def test_a_call_in_tags_that_breaks_off_is_text_from_where_it_was_not_told() -> None:
    reported = "<tool_call>\n<function=sum>\n<parameter=a>\n1\n</parameter>"
    rest = "\n<parameter=b>\n2"
    assert run(QWEN3_CODER, list(reported + rest)) == (rest, [("sum", '{"a": 1')], 0)
    assert run(QWEN3_CODER, list(reported + rest), whole=True) == (reported + rest, [], 0)
    assert run(QWEN3_CODER, list(reported + rest), cut=True) == ("", [("sum", '{"a": 1')], 0)
    for text in ("<tool_call>\n<b>", "a <function=>", "<function=" + "x" * 300, "<function", "<tool_call>"):
        assert run(QWEN3_CODER, list(text)) == (text, [], 0)


def test_phi_4_mini_calls_by_a_word_or_a_token() -> None:
    calls = '[{"name": "sum", "arguments": {"a": 1}}]'
    for text in (f"functools{calls}", f"functools {calls}", f"<|tool_call|>{calls}<|/tool_call|>"):
        assert run(PHI4_MINI, list(text)) == ("", [ONE], 1)
    for text in ("import functools\n\n@functools.cache\ndef f(): ...", "functools[0]", "functools"):
        assert run(PHI4_MINI, list(text)) == (text, [], 0)
