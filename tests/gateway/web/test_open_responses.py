"""What is rendered at ``/v1/responses`` against both published schemas: OpenAI's types, and Open Responses.

The cases are those that the specification names: text, a stream, a system's message, tools whole and streamed, a
picture, several turns, and what continues (https://www.openresponses.org/specification).
"""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import responses as published

from tests.fakes import DONE, FakeUpstream, answer_events, delta, sse, stream, usage_event
from tests.response_events import check_response, read_events, replay
from tests.serving import Gateway

pytestmark = pytest.mark.anyio

TOOLS: Any = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather in a place.",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    }
]
PICTURE = "data:image/png;base64,iVBORw0KGgo="


def a_call(arguments: str, **more: Any) -> dict[str, Any]:
    return {"index": 0, "function": {"arguments": arguments, **more}}


CALLS = stream(
    sse(delta(tool_calls=[{**a_call("", name="get_weather"), "id": "call_1", "type": "function"}])),
    sse(delta(tool_calls=[a_call('{"location":')])),
    sse(delta(tool_calls=[a_call('"San Francisco"}')])),
    sse(delta(finish="tool_calls")),
    sse(usage_event()),
    DONE,
)
CITED: Any = {
    "type": "url_citation",
    "url_citation": {"url": "https://x", "title": "X", "start_index": 0, "end_index": 2},
}
EVERYTHING = stream(
    sse(delta(reasoning_content="Let me")),
    sse(delta(reasoning_content=" see.")),
    sse(delta("He")),
    sse(delta("llo")),
    sse(delta(annotations=[CITED])),
    sse(delta(refusal="No more.")),
    sse(delta(tool_calls=[{**a_call("{}", name="get_weather"), "id": "call_1", "type": "function"}])),
    sse(delta(finish="length")),
    sse(usage_event()),
    DONE,
)


def said(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], Any]] = {
    "text": ([said("user", "Say hello.")], {}, None),
    "system": ([said("system", "Speak like a pirate."), said("user", "Say hello.")], {}, None),
    "developer": ([said("developer", "Be brief."), said("user", "Say hello.")], {}, None),
    "tools": ([said("user", "The weather in San Francisco?")], {"tools": TOOLS}, CALLS),
    "picture": (
        [said("user", [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": PICTURE}])],
        {},
        None,
    ),
    "turns": (
        [said("user", "I am Alice."), said("assistant", "Hello Alice!"), said("user", "Who am I?")],
        {},
        None,
    ),
    "phases": (
        [
            {**said("assistant", "I should answer with the number."), "phase": "commentary"},
            {**said("assistant", "Four."), "phase": "final_answer"},
            said("user", "Once more?"),
        ],
        {},
        None,
    ),
    "everything": ([said("user", "?")], {"tools": TOOLS}, EVERYTHING),
    "schema": (
        [said("user", "?")],
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}}},
        None,
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_whole_response(gateway: Gateway, upstream: FakeUpstream, name: str) -> None:
    items, more, script = CASES[name]
    upstream.scripts = [script or stream(*answer_events("Hel", "lo"))]
    answer = await gateway.http.post("/v1/responses", json={"model": "up", "input": items, **more})
    assert answer.headers["content-type"] == "application/json"
    response = answer.json()
    check_response(response)
    assert response["output"]
    assert response["status"] == ("incomplete" if name == "everything" else "completed")
    if "tools" in more:
        assert "function_call" in [item["type"] for item in response["output"]]


@pytest.mark.parametrize("name", CASES)
async def test_a_streamed_response(gateway: Gateway, upstream: FakeUpstream, name: str) -> None:
    items, more, script = CASES[name]
    upstream.scripts = [script or stream(*answer_events("Hel", "lo"))]
    ask = {"model": "up", "input": items, "stream": True, **more}
    answer = await gateway.http.post("/v1/responses", json=ask)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = read_events(answer.text)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last["type"] == ("response.incomplete" if name == "everything" else "response.completed")
    assert replay(events) == last["response"]["output"]
    fetched = await gateway.http.get(f"/v1/responses/{last['response']['id']}")
    assert fetched.json() == last["response"]
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1


async def test_of_an_incomplete_answer_the_last_item_is_incomplete(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.scripts = [EVERYTHING]
    response = (await gateway.http.post("/v1/responses", json={"model": "up", "input": "?"})).json()
    assert [(item["type"], item["status"]) for item in response["output"]] == [
        ("reasoning", "completed"),
        ("message", "completed"),
        ("function_call", "incomplete"),
    ]


async def test_what_failed_is_sound_too(gateway: Gateway) -> None:
    answer = await gateway.http.post("/v1/responses", json={"model": "fake", "input": "cut", "stream": True})
    *_, error, failed = read_events(answer.text)
    assert error["type"] == "error"
    assert failed["response"]["error"].keys() >= {"code", "message"}


async def test_a_response_continues_another(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [stream(*answer_events("Hello")), stream(*answer_events("Alice"))]
    first = (await gateway.http.post("/v1/responses", json={"model": "up", "input": "I am Alice."})).json()
    ask = {"model": "up", "input": "Who am I?", "previous_response_id": first["id"]}
    second = (await gateway.http.post("/v1/responses", json=ask)).json()
    check_response(second)
    assert second["previous_response_id"] == first["id"]
    assert len(upstream.requests[1].json()["messages"]) == 3


async def test_a_compaction_has_what_is_required(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [stream(*answer_events("A summary."))]
    compacted = (
        await gateway.http.post("/v1/responses/compact", json={"model": "up", "input": "A long story"})
    ).json()
    published.CompactedResponse.model_validate(compacted)
    assert compacted.keys() >= {"id", "object", "output", "created_at", "usage"}
    assert compacted["output"][-1].keys() >= {"type", "id", "encrypted_content"}


async def test_an_items_page_has_what_is_required(gateway: Gateway) -> None:
    items = [
        said("user", "?"),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]
    made = (await gateway.http.post("/v1/responses", json={"model": "fake", "input": items})).json()
    page = (await gateway.http.get(f"/v1/responses/{made['id']}/input_items?order=asc")).json()
    published.ResponseItemList.model_validate(page)
    assert [item["type"] for item in page["data"]] == [item["type"] for item in items]
    wrong = await gateway.http.get(f"/v1/responses/{made['id']}/input_items?order=up")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "order")
