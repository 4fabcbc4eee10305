"""The sets of conversations and schemas: they are what they say, and the judge tells right from wrong."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.tool_calls.__main__ import HEAD, line
from benchmarks.tool_calls.ask import FOLDER, MAX_TOKENS, Judged, Server, conversation, rows
from benchmarks.tool_calls.judge import matches, right_calls
from benchmarks.tool_calls.schema import fits
from tests.json_server import json_server

TOOLS = json.loads((FOLDER / "tools.json").read_text(encoding="utf-8"))


def test_a_hundred_of_each_and_none_twice() -> None:
    conversations, schemas = rows("conversations.jsonl"), rows("schemas.jsonl")
    assert Counter(row["kind"] for row in conversations) == {
        "one": 40,
        "none": 18,
        "result": 16,
        "nested": 14,
        "several": 12,
    }
    assert sum(row["language"] == "de" for row in conversations) == 30
    assert len({json.dumps(row["messages"]) for row in conversations}) == 100
    assert len({json.dumps(row["schema"], sort_keys=True) for row in schemas}) == 100


def example(wanted: Any) -> Any:
    """A value that is right."""
    if isinstance(wanted, dict):
        if wanted.keys() == {"has"}:
            return f"the {wanted['has']}"
        if wanted.keys() == {"any"}:
            return wanted["any"][0]
        return {name: example(one) for name, one in wanted.items()}
    return [example(one) for one in wanted] if isinstance(wanted, list) else wanted


def test_what_is_right_is_judged_right_and_names_what_is_there() -> None:
    for row in rows("conversations.jsonl"):
        calls = [(call["name"], example(call["arguments"])) for call in row["calls"]]
        assert right_calls(calls, row["calls"])
        assert not right_calls([*calls, ("search_web", {})], row["calls"])
        for name, arguments in calls:
            assert name in row["tools"]
            parameters = TOOLS[name]["function"]["parameters"]
            assert arguments.keys() <= parameters["properties"].keys()
            assert fits(arguments, {**parameters, "required": []}) or row["kind"] == "nested"
    for row in rows("schemas.jsonl"):
        value, schema = example(row["right"]), row["schema"]
        assert matches(value, row["right"])
        assert not matches(None, row["right"])
        fits(value, schema)  # raises where a keyword is not known


@pytest.mark.parametrize(
    ("value", "schema", "fit"),
    [
        (1, {"type": "integer"}, True),
        (True, {"type": "integer"}, False),
        (1.5, {"type": "number", "minimum": 2}, False),
        ({"a": 1}, {"type": "object", "properties": {"a": {"type": "string"}}}, False),
        ({"b": 1}, {"properties": {"a": {}}, "additionalProperties": False}, False),
        ({}, {"required": ["a"]}, False),
        ([1, "a"], {"items": {"type": "integer"}}, False),
        ([1, 2, 3], {"prefixItems": [{}, {}], "items": False}, False),
        ({"n": {"n": 1}}, {"$defs": {"x": {"properties": {"n": {"$ref": "#/$defs/x"}}, "type": "object"}},
                           "$ref": "#/$defs/x"}, False),
        ("2026-1-1", {"format": "date"}, False),
        ("x", {"anyOf": [{"const": "y"}, {"enum": ["x"]}]}, True),
    ],
)  # fmt: skip
def test_the_judge_of_schemas(value: Any, schema: dict[str, Any], fit: bool) -> None:
    assert fits(value, schema) is fit


def test_texts_match_by_letters_and_numbers_by_value() -> None:
    assert matches("paris.", "Paris")
    assert matches(250, 250.0)
    assert not matches(True, 1)
    assert not matches([1, 2], [1])
    with pytest.raises(ValueError, match="not known"):
        fits(1, {"not": {}})


def test_kept_answers_are_judged_without_a_server(tmp_path: Path) -> None:
    """Here one whose arguments the length cut off."""
    row = rows("conversations.jsonl")[0]
    call = {"function": {"name": row["tools"][0], "arguments": '{"city": "Par'}}
    answer = {
        "choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "length"}],
        "usage": {"completion_tokens": 7},
    }
    body = {
        "model": "m",
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "messages": row["messages"],
        "tools": [TOOLS[name] for name in row["tools"]],
        "tool_choice": "auto",
    }
    kept = tmp_path / "answers.jsonl"
    kept.write_text(json.dumps([json.dumps(body, sort_keys=True), 1.5, answer]) + "\n")
    with httpx.Client() as client:
        judged = conversation(Server(client, "m", kept), row, TOOLS, "auto")
    assert (judged.valid, judged.right, judged.seconds, judged.tokens) == (False, False, 1.5, 7)
    assert "(no JSON)" in judged.shown


def test_a_system_message_and_another_call_are_asked_for() -> None:
    answer = {
        "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"completion_tokens": 1},
    }
    row = next(row for row in rows("conversations.jsonl") if row["kind"] == "several")
    with (
        json_server(lambda asked: (200, {"tokens": [77]} if asked.path == "/tokenize" else answer)) as server,
        httpx.Client(base_url=server.url.removesuffix("/v1")) as client,
    ):
        asking = Server(client, "m", system="Be brief.", another_call=24, strict=True)
        for choice in ("auto", "required"):
            assert not conversation(asking, row, TOOLS, choice).right
    free, held = server.bodies("/v1/chat/completions")
    assert (
        free["messages"] == held["messages"] == [{"role": "system", "content": "Be brief."}, *row["messages"]]
    )
    assert all(tool["function"]["strict"] for tool in free["tools"])
    assert "logit_bias" not in free
    assert (held["logit_bias"], held["parallel_tool_calls"]) == ({"77": 24}, True)


def test_the_table() -> None:
    each = [Judged("one", True, right, float(i), 20 + i, "stop", "") for i, right in enumerate([True, False])]
    row = line("auto, one", each)
    assert row == "| auto, one | 2 | 2 | 1 | 0 | 0.5 | 0.0 | 20 |"
    assert row.count("|") == HEAD.splitlines()[0].count("|")
