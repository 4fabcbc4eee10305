"""What each check takes for right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.lab.evaluate.answer import Answer, read_answer
from gateway.lab.evaluate.case import Rubric, Similar
from gateway.lab.evaluate.checks import same_json
from gateway.lab.evaluate.errors import SetError
from gateway.lab.evaluate.reader import read_set
from tests.examples import examples


def judged(tmp_path: Path, check: dict[str, Any], answer: Answer) -> bool:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"prompt": "?", "checks": [check]}))
    (read,) = read_set(path)[0].checks
    assert not isinstance(read, (Similar, Rubric))
    return read(answer).passed


@pytest.mark.parametrize(
    ("check", "text", "passes"),
    [
        ({"exact": "Paris"}, " Paris\n", True),
        ({"exact": "Paris"}, "paris", False),
        ({"exact": "Paris", "ignore_case": True}, "PARIS", True),
        ({"exact": "a  b"}, "a b", True),
        ({"regex": r"\bParis\b"}, "It is Paris.", True),
        ({"regex": r"\bParis\b"}, "Parisian", False),
        ({"number": 1234.5}, "That makes 3 of them: $1,234.50", True),
        ({"number": 7}, "3 + 4 = 7.", True),
        ({"number": -2}, "x = -2", True),
        ({"number": 3.14159, "tolerance": 0.01}, "about 3.14", True),
        ({"number": 3.14159}, "about 3.14", False),
        ({"number": 100, "relative": 0.05}, "104", True),
        ({"number": 100, "relative": 0.05}, "106", False),
        ({"number": 6e23}, "6e23", True),
        ({"number": 1}, "one", False),
        ({"number": 1}, "1e999", False),
        ({"json_schema": {"type": "object", "required": ["a"]}}, '{"a": 1}', True),
        ({"json_schema": {"type": "object", "required": ["a"]}}, 'Here:\n```json\n{"a": 1}\n```', True),
        ({"json_schema": {"type": "object", "required": ["a"]}}, "{}", False),
        ({"json_schema": {"type": "object", "required": ["a"]}}, "{", False),
        ({"json_schema": {}}, "[" * 100_000, False),
        ({"tool_call": False}, "No.", True),
        ({"tool_call": {"name": "f"}}, "f()", False),
    ],
)
def test_texts(tmp_path: Path, check: dict[str, Any], text: str, passes: bool) -> None:
    assert judged(tmp_path, check, Answer(text=text)) is passes


@pytest.mark.parametrize(
    ("wanted", "called", "passes"),
    [
        ({"name": "f"}, ("f", "{"), True),
        ({"name": "f", "arguments": {"a": 1}}, ("f", '{"a": 1.0}'), True),
        ({"name": "f", "arguments": {"a": 1}}, ("f", '{"a": true}'), False),
        ({"name": "f", "arguments": {"a": 1}}, ("f", '{"a": 1, "b": 2}'), False),
        ({"name": "f", "arguments": {"a": 1}, "partial": True}, ("f", '{"a": 1, "b": 2}'), True),
        ({"name": "f", "arguments": {"a": 1}, "partial": True}, ("f", "[1]"), False),
        ({"name": "f", "arguments": {}}, ("f", ""), True),
        ({"name": "f", "arguments": {"a": 1}}, ("f", '{"a": '), False),
        ({"name": "f"}, ("g", "{}"), False),
    ],
)
def test_tool_calls(tmp_path: Path, wanted: dict[str, Any], called: tuple[str, str], passes: bool) -> None:
    answer = Answer(tool_calls=(("other", "{}"), called))
    assert judged(tmp_path, {"tool_call": wanted}, answer) is passes


def test_a_tool_that_should_not_be_called(tmp_path: Path) -> None:
    assert not judged(tmp_path, {"tool_call": False}, Answer(tool_calls=(("f", "{}"),)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=examples(200))
@given(one=JSON, other=JSON)
def test_json_is_equal_as_its_canonical_text_is(one: Any, other: Any) -> None:
    def canonical(value: Any) -> str:
        def plain(inner: Any) -> Any:
            if isinstance(inner, dict):
                return {key: plain(inner[key]) for key in inner}
            if isinstance(inner, list):
                return [plain(item) for item in inner]
            return (
                float(inner) + 0.0
                if isinstance(inner, (int, float)) and not isinstance(inner, bool)
                else inner
            )

        return json.dumps(plain(value), sort_keys=True)

    assert same_json(one, one)
    assert same_json(one, other) is (canonical(one) == canonical(other))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "set.jsonl:2: Expecting"),
        ("3", "a case is a JSON object"),
        ('{"prompt": "x", "check": []}', "there is no 'check'"),
        ('{"checks": [{"exact": "x"}]}', "either 'prompt'"),
        ('{"prompt": "x", "messages": [{}], "checks": [{"exact": "x"}]}', "either 'prompt'"),
        ('{"messages": [], "checks": [{"exact": "x"}]}', "'messages'"),
        ('{"prompt": "x"}', "'checks' is missing"),
        ('{"prompt": "x", "checks": []}', "at least one"),
        ('{"prompt": "x", "checks": ["exact"]}', "'checks', the 1.: is an object"),
        (
            '{"prompt": "x", "checks": [{"exact": "x"}, {"exactly": "x"}]}',
            "'checks', the 2.: has one of exact",
        ),
        ('{"prompt": "x", "checks": [{"exact": 3}]}', "'exact': not a text"),
        ('{"prompt": "x", "checks": [{"number": true}]}', "'number': not a number"),
        ('{"prompt": "x", "checks": [{"number": 1, "tolerance": -1}]}', "not negative"),
        ('{"prompt": "x", "checks": [{"regex": "("}]}', "'regex': missing )"),
        ('{"prompt": "x", "checks": [{"json_schema": {"type": "thing"}}]}', "'json_schema': 'thing'"),
        ('{"prompt": "x", "checks": [{"tool_call": true}]}', "'tool_call': not an object"),
        ('{"prompt": "x", "checks": [{"similar": "x", "at_least": 2}]}', "a cosine"),
        ('{"prompt": "x", "checks": [{"judge": "x", "at_least": 1}]}', "from 2 to 5"),
        ('{"prompt": "x", "params": {"model": "m"}, "checks": [{"exact": "x"}]}', "model cannot stand there"),
        ('{"id": "case-1", "prompt": "x", "checks": [{"exact": "x"}]}', "another case 'case-1'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_told_with_its_number(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "x", "checks": [{"exact": "x"}]}\n' + line + "\n")
    with pytest.raises(SetError) as error:
        read_set(path)
    assert said in str(error.value)
    assert f"{path}:2: " in str(error.value)


def test_a_set_without_cases_or_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    for name, said in (("empty.jsonl", "no case"), ("none.jsonl", "No such file")):
        with pytest.raises(SetError, match=said):
            read_set(tmp_path / name)


def test_a_line_separator_of_unicode_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"prompt": "one\u2028two", "checks": [{"exact": "x"}]}', encoding="utf-8")
    assert read_set(path)[0].body["messages"][0]["content"] == "one\u2028two"


def test_errors_of_lines_are_no_answers() -> None:
    never = read_answer({"response": None, "error": {"code": "batch_expired", "message": "too late"}})
    wrong = read_answer(
        {
            "response": {
                "status_code": 404,
                "request_id": "r",
                "body": {"error": {"message": "no", "code": "c"}},
            }
        }
    )
    assert (never.error, wrong.error, wrong.request_id) == ("batch_expired: too late", "404 c: no", "r")
