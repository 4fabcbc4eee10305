from __future__ import annotations

import json
import time
from typing import Any

import pytest

from gateway.guards.requests.mask import Placeholders, Unmasker
from gateway.guards.texts.arguments import leaf_spans
from gateway.guards.texts.edits import Edit
from gateway.guards.texts.paths import replaced
from gateway.guards.texts.request_texts import RequestTexts
from gateway.types import ChatRequest, Chunk

ORIGINALS = {"<EMAIL_ADDRESS_1>": 'ann"@example.org', "<PHONE_NUMBER_12>": "+49 30 1234567"}


def answered(pieces: list[dict[str, Any]], **params: Any) -> list[dict[str, Any]]:
    unmasker = Unmasker(ORIGINALS, ChatRequest("m", messages=(), params=params))
    out = [ready for piece in pieces for ready in unmasker.feed(Chunk(0, piece))]
    return [dict(chunk.delta or {}) for chunk in (*out, *unmasker.end())]


def contents(text: str, size: int, **params: Any) -> str:
    pieces = [{"content": text[i : i + size]} for i in range(0, len(text), size)]
    return "".join(delta["content"] for delta in answered(pieces, **params))


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_placeholders_that_a_server_escapes_are_filled(size: int) -> None:
    """As Go's encoder writes angle brackets, and so Ollama the arguments of calls."""
    said = r'{"to": "\u003cEMAIL_ADDRESS_1\u003e", "text": "a \u003c b"}'
    pieces = [
        {"tool_calls": [{"index": 0, "function": {"arguments": said[i : i + size]}}]}
        for i in range(0, len(said), size)
    ]
    told = "".join(delta["tool_calls"][0]["function"]["arguments"] for delta in answered(pieces))
    assert json.loads(told) == {"to": 'ann"@example.org', "text": "a < b"}
    told = contents(said, size, response_format={"type": "json_object"})
    assert json.loads(told) == {"to": 'ann"@example.org', "text": "a < b"}
    assert contents(said, size) == said


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_looks_like_a_placeholder_and_is_none_stays(size: int) -> None:
    said = "<EMAIL_ADDRESS_2> <EMAIL_<EMAIL_ADDRESS_1> <PHONE_NUMBER_1> <PHONE_NUMBER_12> <b> <EMAIL_ADDRESS_"
    told = said.replace("<EMAIL_ADDRESS_1>", 'ann"@example.org').replace(
        "<PHONE_NUMBER_12>", "+49 30 1234567"
    )
    assert contents(said, size) == told


def test_many_originals_cost_no_more_a_chunk() -> None:
    originals = {f"<EMAIL_ADDRESS_{number}>": f"a{number}@example.org" for number in range(20_000)}
    began = time.process_time()
    unmasker = Unmasker(originals, ChatRequest("m", messages=()))
    for _ in range(2_000):
        unmasker.feed(Chunk(0, {"content": "a <b> and <EMAIL_ADDRESS_19999> <"}))
    assert time.process_time() - began < 2


@pytest.mark.anyio
async def test_arguments_with_many_values_are_edited_in_time_that_grows_with_their_number() -> None:
    values = [f"a{number}@example.org" for number in range(20_000)]
    call = {"type": "function", "function": {"name": "f", "arguments": json.dumps({"to": values})}}
    texts = RequestTexts.of(ChatRequest("m", messages=({"role": "assistant", "tool_calls": [call]},))).texts
    edits = [
        Edit(start, end, "EMAIL_ADDRESS", end - start, reversible=True)
        for start, end in leaf_spans(texts[1].document)[1:]
    ]
    began = time.process_time()
    placeholders = Placeholders(texts)
    fresh = json.loads(await placeholders.edited(texts[1], edits))
    assert time.process_time() - began < 2
    originals = placeholders.originals
    assert [originals[one] for one in fresh["to"]] == values


def test_texts_of_many_messages_are_replaced_at_once() -> None:
    messages = tuple(
        {"role": "user", "content": [{"type": "text", "text": str(n)}, 1]} for n in range(20_000)
    )
    request = ChatRequest("m", messages=messages, params={"user": "u", "x": [1]})
    paths = {("messages", n, "content", 0, "text"): f"new {n}" for n in range(0, 20_000, 2)}
    began = time.process_time()
    fresh = replaced(request, {**paths, ("params", "user"): "v"})
    assert time.process_time() - began < 2
    assert fresh.messages is not None
    assert isinstance(fresh.messages, tuple)
    assert fresh.messages[2] == {"role": "user", "content": [{"type": "text", "text": "new 2"}, 1]}
    assert fresh.messages[1] is messages[1]
    assert request.messages is messages
    assert messages[2]["content"][0] == {"type": "text", "text": "2"}
    assert fresh.params == {"user": "v", "x": [1]}


def test_tools_documents_and_metadata_are_read() -> None:
    schema = {
        "type": "object",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {"title": {"type": "string", "description": "one", "enum": ["two"]}},
    }
    params = {
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "three", "parameters": schema}}
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        "documents": [{"title": "four", "text": "five"}],
        "metadata": {"of": "six"},
        "stop": ["seven"],
    }
    request = ChatRequest("m", messages=(), params=params)
    texts = RequestTexts.of(request).texts
    assert [(text.text, text.origin) for text in texts] == [
        *((word, "definition") for word in ("three", "one", "two")),
        ("f", "identifier"),
        *((word, "definition") for word in ("one", "two")),
        ("n", "identifier"),
        *((word, "tool") for word in ("four", "five")),
        ("six", "user"),
        ("of", "identifier"),
        ("seven", "identifier"),
    ]
    fresh = replaced(request, {text.path: "x" for text in texts if text.kind != "fixed"})
    said = json.dumps(fresh.params)
    assert not any(f'"{text.text}"' in said for text in texts if text.kind != "fixed")
    assert said.count("2020-12/schema") == 2
    assert RequestTexts.of(request).texts == texts
