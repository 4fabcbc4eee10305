"""Requests in a provider's own dialect: what is read of them, and in which order."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.errors import BadRequest
from gateway.guards.texts.anthropic_texts import conversation
from gateway.guards.texts.request_texts import RequestTexts
from gateway.types import ChatRequest
from gateway.wire.anthropic.body_to_request import read_request


@pytest.mark.parametrize("kind", ["tool_result", "new_kind"])
def test_blocks_within_blocks_without_end_are_refused(kind: str) -> None:
    block: Any = {"type": "text", "text": "hi"}
    for _ in range(20):
        block = {"type": kind, "content": [block]}
    assert [found.value for found in conversation({"messages": [{"role": "user", "content": [block]}]})] == [
        "hi"
    ]
    for _ in range(900):
        block = {"type": kind, "content": [block]}
    with pytest.raises(BadRequest, match="levels"):
        list(conversation({"messages": [{"role": "user", "content": [block]}]}))


TOOL: dict[str, Any] = {
    "name": "f",
    "description": "tool",
    "input_schema": {"type": "object", "properties": {"a": {"type": "string", "description": "field"}}},
    "input_examples": [{"a": "example"}],
    "field_of_tomorrow": {"of": ["tomorrow"]},
    "cache_control": {"type": "ephemeral"},
}
SEARCH: dict[str, Any] = {
    "type": "web_search_20250305",
    "name": "web_search",
    "allowed_domains": ["example.com"],
    "user_location": {"city": "Springfield"},
}


def native(*messages: dict[str, Any]) -> ChatRequest:
    body = {"model": "m", "max_tokens": 9, "tools": [TOOL, SEARCH], "system": "rules", "messages": messages}
    return read_request(orjson.dumps(body))


def openai(*messages: dict[str, Any]) -> ChatRequest:
    function = {"name": "f", "description": "tool", "parameters": TOOL["input_schema"]}
    params = {"tools": [{"type": "function", "function": function}], "metadata": {"of": "six"}}
    return ChatRequest("m", messages=({"role": "system", "content": "rules"}, *messages), params=params)


def test_what_tools_say_is_read_and_what_they_are_set_to_is_not() -> None:
    said = [
        text.text
        for text in RequestTexts.of(native({"role": "user", "content": "Hi", "note": "aside"})).texts
    ]
    names = "f\na\nfield_of_tomorrow\nof\nweb_search\nuser_location\ncity"
    assert said[:5] == ["tool", "field", "example", "tomorrow", "Springfield"]
    assert said[6:] == ["rules", "Hi", "aside"]
    assert set(said[5].split("\n")) <= set(names.split("\n"))


@pytest.mark.parametrize("request_of", [native, openai])
def test_a_turn_that_follows_is_read_after_all_that_was_there_before(request_of: Any) -> None:
    first = {"role": "user", "content": "one"}
    more = [{"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
    before = [text.text for text in RequestTexts.of(request_of(first)).texts]
    after = [text.text for text in RequestTexts.of(request_of(first, *more)).texts]
    assert after == [*before, "two", "three"]
