"""Chunks as events of the Responses API: whatever comes, the events add up to the response."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamFailed
from gateway.types import Chunk, Usage
from gateway.wire.responses.body_to_request import ResponseRequest, read_request
from gateway.wire.responses.chunks_to_events import ResponseEventWriter
from gateway.wire.responses.chunks_to_response import ResponseBodyWriter
from gateway.wire.responses.response_fields import ResponseFields
from tests.fakes import a_call
from tests.response_events import read_events, replay

ASKED = read_request(b'{"model":"m","input":"Hi"}')


def a_writer(asked: ResponseRequest = ASKED) -> ResponseEventWriter:
    call = a_call()
    call.request_id = "req_" + "0" * 24
    return ResponseEventWriter(ResponseFields(call, asked, stored=True))


def events_of(*chunks: Chunk, asked: ResponseRequest = ASKED) -> list[dict[str, Any]]:
    writer = a_writer(asked)
    return read_events((b"".join(map(writer.event, chunks)) + writer.end()).decode())


def a_piece(index: int, name: str | None = None, arguments: str = "", id: str | None = None) -> Chunk:
    function = {**({"name": name} if name else {}), "arguments": arguments}
    return Chunk(delta={"tool_calls": [{"index": index, **({"id": id} if id else {}), "function": function}]})


DELTAS = st.one_of(
    st.builds(lambda text: {"content": text}, st.text(max_size=4)),
    st.builds(lambda text: {"reasoning_content": text}, st.text(max_size=4)),
    st.builds(lambda text: {"reasoning": text, "content": text}, st.text(max_size=4)),
    st.builds(lambda text: {"refusal": text}, st.text(max_size=4)),
    st.just({"signature": "s"}),
    st.just({"redacted_thinking": "r"}),
    st.just({"role": "assistant", "content": None}),
    st.just({}),
    st.builds(
        lambda index, name, text: {
            "tool_calls": [{"index": index, "function": {"name": name, "arguments": text}}]
        },
        st.integers(0, 2),
        st.sampled_from(["f", "g", None]),
        st.text(max_size=4),
    ),
)


@given(
    st.lists(DELTAS, max_size=12), st.sampled_from(["stop", "length", "content_filter", "tool_calls", None])
)
def test_the_events_add_up_to_the_response(deltas: list[dict[str, Any]], reason: str | None) -> None:
    chunks = [Chunk(delta=delta) for delta in deltas] + [Chunk(delta={}, finish_reason=reason)]
    events = events_of(*chunks)
    last = events[-1]["response"]
    assert replay(events) == last["output"]
    whole = ResponseBodyWriter(a_writer())
    for chunk in chunks:
        whole.add(chunk)
    assert orjson.loads(whole.body())["output"] == last["output"]
    said = "".join(delta.get("content") or "" for delta in deltas)
    parts = [part for item in last["output"] if item["type"] == "message" for part in item["content"]]
    assert "".join(part["text"] for part in parts if part["type"] == "output_text") == said


@given(st.lists(DELTAS, max_size=12))
def test_an_answer_that_fails_anywhere_ends_well(deltas: list[dict[str, Any]]) -> None:
    writer = a_writer()
    sent = b"".join(writer.event(Chunk(delta=delta)) for delta in deltas)
    events = read_events((sent + writer.error(UpstreamFailed("gone"))).decode())
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["error"]["message"] == "gone"


def test_an_empty_answer() -> None:
    events = events_of()
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert events[-1]["response"]["output"] == []


def test_calls_whose_pieces_mingle() -> None:
    events = events_of(
        a_piece(0, "f", "{", "call_a"),
        a_piece(1, "g", "[", "call_b"),
        a_piece(0, arguments="}"),
        a_piece(1, arguments="]"),
    )
    output = events[-1]["response"]["output"]
    assert [(item["call_id"], item["arguments"]) for item in output] == [("call_a", "{}"), ("call_b", "[]")]


def test_a_call_without_an_id_gets_one() -> None:
    (item,) = events_of(a_piece(0, "f", "{}"))[-1]["response"]["output"]
    assert item["call_id"].startswith("call_")


def test_a_call_whose_name_never_comes_is_none() -> None:
    assert events_of(a_piece(0, None, "{}"))[-1]["response"]["output"] == []


def test_other_choices_are_not_read() -> None:
    assert (
        events_of(Chunk(1, {"content": "no"}), Chunk(0, {"content": "yes"}))[-1]["response"]["output"][0][
            "content"
        ][0]["text"]
        == "yes"
    )


@pytest.mark.parametrize(
    ("revocation", "left"),
    [
        ({"from": 3}, ("think", "abc", "{}")),
        ({"from": 3, "channel": "reasoning_content"}, ("thi", "abcdef", "{}")),
        ({"from": 1, "channel": "tool_calls[0].function.arguments"}, ("think", "abcdef", "{")),
        ({"from": 1, "channel": "tool_calls[0].function.name"}, ("think", "abcdef", "")),
        ({"from": None}, ("think", "abcdef", "{}")),
    ],
)
def test_what_is_revoked_is_not_in_the_end(revocation: dict[str, Any], left: tuple[str, str, str]) -> None:
    writer = a_writer()
    for chunk in (
        Chunk(delta={"reasoning_content": "think"}),
        Chunk(delta={"content": "abc"}),
        Chunk(delta={"content": "def"}),
        a_piece(0, "f", "{}", "c"),
    ):
        writer.event(chunk)
    writer.event(Chunk(delta={}, finish_reason="content_filter", revocation={"revoked": True, **revocation}))
    response = orjson.loads(writer.end().split(b"data: ")[-2])["response"]
    thought, message, call = response["output"]
    assert (thought["summary"][0]["text"], message["content"][0]["text"], call["arguments"]) == left
    assert response["status"] == "incomplete"


def test_only_so_many_calls_and_only_allowed_ones() -> None:
    chunks = [a_piece(i, name, "{}", f"call_{i}") for i, name in enumerate(("f", "g", "f", "g"))]
    few = events_of(*chunks, asked=replace(ASKED, max_tool_calls=3))
    assert len(few[-1]["response"]["output"]) == 3
    one = events_of(*chunks, asked=replace(ASKED, callable=frozenset({"g"}), max_tool_calls=1))
    assert [item["call_id"] for item in one[-1]["response"]["output"]] == ["call_1"]


def test_what_the_provider_says_of_the_tier_and_the_usage() -> None:
    usage = Usage(prompt=10, completion=5, cached=4, cache_write=3, reasoning=2)
    response = events_of(
        Chunk(delta={"content": "Hi"}, usage=usage, envelope={"service_tier": "flex", "id": "chatcmpl-1"})
    )[-1]["response"]
    assert response["service_tier"] == "flex"
    assert response["id"] == "resp_" + "0" * 24
    assert response["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 15,
    }


def test_what_is_kept_and_what_is_sent_were_completed_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    events = a_writer()
    events.event(Chunk(delta={"content": "Hi"}, finish_reason="stop"))
    kept = events.response()
    now = time.time()
    monkeypatch.setattr("gateway.wire.responses.response_fields.time.time", lambda: now + 5)
    assert events.response() == kept
