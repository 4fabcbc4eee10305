"""Anthropic's answers, read and written: from its events and messages to chunks, and from chunks back to them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from gateway import errors
from gateway.deltas import join_delta
from gateway.deltas import joined as joined_delta
from gateway.types import Call, Candidate, Chunk, TokenEstimate, Usage
from gateway.wire import sse
from gateway.wire.anthropic.chunks_to_events import AnthropicEventWriter
from gateway.wire.anthropic.chunks_to_message import AnthropicBodyWriter
from gateway.wire.anthropic.errors import error_body
from gateway.wire.anthropic.events_to_chunks import AnthropicChunkReader
from gateway.wire.openai import chat as openai_chat
from tests.examples import examples
from tests.fakes import CANDIDATE, a_call, cut_at

RECORDED = Path(__file__).parents[3] / "recorded" / "anthropic"
STREAMS = ["text", "tool_use", "thinking", "refusal"]
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def chunks_of(*parts: bytes) -> list[Chunk]:
    """What the gateway's own reader makes of a stream."""
    reader, message = sse.EventReader(), AnthropicChunkReader()
    found = [
        chunk
        for part in parts
        for data in reader.feed(part)
        for chunk in message.read_event(orjson.loads(data))
    ]
    assert message.done
    return found


def joined(chunks: Iterable[Chunk]) -> dict[str, Any]:
    """All that these chunks say, put together."""
    delta: dict[str, Any] = {}
    news: dict[str, Any] = {"finish_reason": None, "usage": None}
    for chunk in chunks:
        join_delta(delta, chunk.delta or {})
        news["finish_reason"] = chunk.finish_reason or news["finish_reason"]
        news["usage"] = chunk.usage or news["usage"]
    return {**news, **joined_delta(delta)}


def written(*chunks: Chunk, call: Call | None = None) -> list[dict[str, Any]]:
    """The events that a client gets, each checked against the SDK's types."""
    events = AnthropicEventWriter(call or a_call(request_id="req_1"))
    sent = b"".join(events.event(chunk) for chunk in chunks) + events.end()
    found = []
    for block in sent.removesuffix(b"\n\n").split(b"\n\n"):
        name, data = block.split(b"\n")
        value = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + value["type"].encode()
        EVENT.validate_python(value)
        found.append(value)
    in_order(found)
    return found


def in_order(events: list[dict[str, Any]]) -> None:
    """The documented order: one message, its blocks one after the other, its news, its end."""
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    open_block, next_block = None, 0
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert (open_block, event["index"]) == (None, next_block)
                open_block, next_block = next_block, next_block + 1
            case "content_block_delta":
                assert event["index"] == open_block
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
            case kind:
                raise AssertionError(kind)
    assert open_block is None


def whole(*chunks: Chunk, call: Call | None = None) -> dict[str, Any]:
    message = AnthropicBodyWriter(call or a_call(request_id="req_1"))
    for chunk in chunks:
        message.add(chunk)
    value: dict[str, Any] = orjson.loads(message.body())
    Message.model_validate(value)
    return value


def say(content: str | None = None, *, finish: str | None = None, **more: Any) -> Chunk:
    delta = {**({} if content is None else {"content": content}), **more}
    return Chunk(delta=delta, finish_reason=finish)


def tool(index: int, arguments: str = "", **head: str) -> Chunk:
    function = {"arguments": arguments, **({"name": head["name"]} if "name" in head else {})}
    named = {"id": head["id"], "type": "function"} if "id" in head else {}
    return say(tool_calls=[{"index": index, **named, "function": function}])


def text(words: str = "") -> dict[str, Any]:
    return {"type": "text", "text": words, "citations": None}


DIRECT = {"type": "direct"}
"""Who calls a tool: of other servers always the model itself."""
NO_THOUGHT = {"output_tokens_details": {"thinking_tokens": 0}}
UNTOLD = {
    **NO_THOUGHT,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "inference_geo": None,
    "server_tool_use": None,
    "service_tier": None,
}
"""What other servers do not tell of usage."""


# Read


def test_a_stream_of_text() -> None:
    assert chunks_of(recorded("text.sse")) == [
        Chunk(
            delta={"role": "assistant", "content": "Hello"},
            usage=Usage(prompt=35, completion=1, cached=6, cache_write=4),
            envelope={"id": "chatcmpl-1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyY", "model": "claude-sonnet-4-5"},
        ),
        Chunk(delta={"content": ", Zoë! 👋"}),
        Chunk(
            delta={},
            finish_reason="stop",
            usage=Usage(prompt=35, completion=15, cached=6, cache_write=4),
        ),
    ]


def test_a_stream_of_tool_calls() -> None:
    said = joined(chunks_of(recorded("tool_use.sse")))
    assert said["content"] == "Let me look that up."
    assert said["finish_reason"] == "tool_calls"
    assert [(c["index"], c["id"], c["type"], c["function"]) for c in said["tool_calls"]] == [
        (
            0,
            "call_01T1x1fJ34qAmk2tNTrN7Up6",
            "function",
            {"name": "get_weather", "arguments": '{"location": "San Francisco, CA"}'},
        ),
        # An OpenAI client parses the arguments of a tool that takes none, too.
        (1, "call_01D7FLrfh4GYq7yT1ULFeyMV", "function", {"name": "get_time", "arguments": "{}"}),
    ]


def test_thoughts_are_kept_apart_from_the_answer() -> None:
    assert joined(chunks_of(recorded("thinking.sse"))) == {
        "role": "assistant",
        "reasoning_content": "1071 = 2 * 462 + 147. So it is 21.",
        "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds",
        "redacted_thinking": "EmwKAhgBEgy3va3pzix",
        "content": "The greatest common divisor is 21.",
        "finish_reason": "stop",
        "usage": Usage(prompt=40, completion=60, reasoning=33),
    }


def test_a_refusal_comes_with_its_reason() -> None:
    said = joined(chunks_of(recorded("refusal.sse")))
    assert said["finish_reason"] == "content_filter"
    assert said["refusal"] == "This concerns dangerous laboratory methods."
    assert said["usage"] == Usage(prompt=30, completion=4)


@pytest.mark.parametrize("name", ["input_tokens", "output_tokens", "cache_read_input_tokens"])
def test_usage_that_nobody_can_have_used_is_not_believed(name: str) -> None:
    message = orjson.loads(recorded("text.json"))
    message["usage"][name] = 2**62
    assert joined(AnthropicChunkReader().read_answer(message))["usage"] is None


def test_whole_messages() -> None:
    usage = Usage(prompt=14, completion=10)
    assert [*AnthropicChunkReader().read_answer(orjson.loads(recorded("text.json")))] == [
        Chunk(
            delta={"role": "assistant", "content": "The capital of France is Paris."},
            usage=usage,
            envelope={"id": "chatcmpl-013Zva2CMHLNnXjNJJKqJ2EF", "model": "claude-sonnet-4-5"},
        ),
        Chunk(delta={}, finish_reason="stop", usage=usage),
    ]
    said = joined(AnthropicChunkReader().read_answer(orjson.loads(recorded("tool_use.json"))))
    assert said["finish_reason"] == "tool_calls"
    assert said["usage"] == Usage(prompt=200, completion=42, cached=70, cache_write=30)
    assert said["reasoning_content"] == "Both cities are asked for."
    assert [call["function"]["arguments"] for call in said["tool_calls"]] == [
        '{"location":"Paris"}',
        '{"location":"Rome"}',
    ]


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
        ("a_new_one", "stop"),
    ],
)
def test_stop_reasons(stop_reason: str, finish_reason: str) -> None:
    raw = orjson.loads(recorded("text.json")) | {"stop_reason": stop_reason}
    assert [*AnthropicChunkReader().read_answer(raw)][-1].finish_reason == finish_reason


def test_a_lost_piece_of_news_does_not_leave_the_end_open() -> None:
    data = recorded("tool_use.sse").replace(b'"type":"message_delta"', b'"type":"message_delty"')
    assert chunks_of(data)[-1].finish_reason == "tool_calls"


def test_unknown_events_and_blocks_are_passed_over() -> None:
    data = recorded("text.sse")
    more = (
        b'data: {"type": "content_block_start", "index": 1, "content_block": {"type": "new", "x": 1}}\n\n'
        b'data: {"type": "content_block_delta", "index": 1, "delta": {"type": "new_delta", "x": 1}}\n\n'
        b'data: {"type": "content_block_delta", "index": 1, '
        b'"delta": {"type": "input_json_delta", "partial_json": "{}"}}\n\n'
        b'data: {"type": "content_block_stop", "index": 1}\n\n'
        b'data: {"type": "celebration"}\n\n'
    )
    at = data.index(b"event: message_delta")
    assert chunks_of(data[:at] + more + data[at:]) == chunks_of(data)


@pytest.mark.parametrize("name", STREAMS)
@given(sizes=st.lists(st.integers(1, 90), max_size=60))
@settings(max_examples=examples(60))
def test_any_cut_of_the_bytes_gives_the_same_chunks(name: str, sizes: list[int]) -> None:
    data = recorded(f"{name}.sse")
    assert chunks_of(*cut_at(data, sizes)) == chunks_of(data)
    assert chunks_of(*cut_at(data, [1] * len(data))) == chunks_of(data)


# Written


def test_events_of_a_text() -> None:
    call = a_call(request_id="req_1")
    call.estimate = TokenEstimate(prompt=9, expected=5, reserved=5)
    call.candidate = CANDIDATE
    last = Chunk(delta={}, finish_reason="stop")
    news = Chunk(usage=Usage(prompt=12, completion=2, cached=8))
    assert written(say("", role="assistant"), say("Hel"), say("lo"), last, news, call=call) == [
        {
            "type": "message_start",
            "message": {
                "id": "msg_req_1",
                "type": "message",
                "role": "assistant",
                "model": "m",
                "content": [],
                "container": None,
                "stop_reason": None,
                "stop_sequence": None,
                "stop_details": None,
                "usage": {
                    **UNTOLD,
                    "input_tokens": 9,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 0,
                    "output_tokens": 0,
                },
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": text()},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {
                "container": None,
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "stop_details": None,
            },
            "usage": {
                **NO_THOUGHT,
                "server_tool_use": None,
                "input_tokens": 4,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 8,
                "output_tokens": 2,
            },
        },
        {"type": "message_stop"},
    ]


def test_blocks_open_and_close_as_thoughts_text_and_tools_alternate() -> None:
    events = written(
        say(reasoning_content="Hm"),
        say(reasoning_content="."),
        say("One"),
        tool(0, id="a", name="f"),
        tool(0, '{"x":'),
        tool(0, "1}"),
        tool(1, "{}", id="b", name="g"),
        say("Two"),
        say(finish="tool_calls"),
    )
    assert [e.get("content_block", e.get("delta")) for e in events[1:-2] if "stop" not in e["type"]] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Hm"},
        {"type": "thinking_delta", "thinking": "."},
        text(),
        {"type": "text_delta", "text": "One"},
        {"type": "tool_use", "id": "toolu_as_a", "name": "f", "input": {}, "caller": DIRECT},
        {"type": "input_json_delta", "partial_json": '{"x":'},
        {"type": "input_json_delta", "partial_json": "1}"},
        {"type": "tool_use", "id": "toolu_as_b", "name": "g", "input": {}, "caller": DIRECT},
        {"type": "input_json_delta", "partial_json": "{}"},
        text(),
        {"type": "text_delta", "text": "Two"},
    ]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("finish", "with_tool", "stop_reason"),
    [
        ("stop", False, "end_turn"),
        ("length", False, "max_tokens"),
        ("tool_calls", True, "tool_use"),
        ("stop", True, "tool_use"),  # as some servers end a forced call
        ("length", True, "max_tokens"),
        ("content_filter", False, "refusal"),
        ("a_new_one", False, "end_turn"),
    ],
)
def test_finish_reasons(finish: str, with_tool: bool, stop_reason: str) -> None:
    chunks = [say("x"), *([tool(0, "{}", id="a", name="f")] if with_tool else []), say(finish=finish)]
    assert written(*chunks)[-2]["delta"]["stop_reason"] == stop_reason
    assert whole(*chunks)["stop_reason"] == stop_reason


def test_an_answer_without_a_word_is_still_a_message() -> None:
    assert [e["type"] for e in written(say(finish="stop"))] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    assert [e["type"] for e in written()] == ["message_start", "message_delta", "message_stop"]
    assert whole(say(finish="stop"))["content"] == []


def test_a_whole_message() -> None:
    call = a_call(request_id="req_1")
    call.candidate = Candidate("other", CANDIDATE.target, CANDIDATE.timeouts)
    assert whole(
        say(reasoning_content="Hm."),
        say("I'll "),
        say("look."),
        tool(0, '{"x":', id="a", name="f"),
        tool(0, "1}"),
        Chunk(delta={}, finish_reason="tool_calls", usage=Usage(5, 6)),
        call=call,
    ) == {
        "id": "msg_req_1",
        "type": "message",
        "role": "assistant",
        "model": "other",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            text("I'll look."),
            {"type": "tool_use", "id": "toolu_as_a", "name": "f", "input": {"x": 1}, "caller": DIRECT},
        ],
        "container": None,
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            **UNTOLD,
            "input_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 6,
        },
    }


def test_arguments_that_were_cut_are_not_lost() -> None:
    cut = whole(tool(0, '{"x": [1', id="a", name="f"), say(finish="length"))
    assert cut["content"][0]["input"] == {"raw_arguments": '{"x": [1'}


def test_tool_calls_out_of_turn_lose_nothing() -> None:
    chunks = [tool(0, id="a", name="f"), tool(1, id="b", name="g"), tool(0, "{}"), tool(1, '{"y":2}')]
    again = chunks_of(*map(orjson_event, written(*chunks)))
    assert [c["function"]["arguments"] for c in joined(again)["tool_calls"]] == ["{}", '{"y":2}']
    assert [b["input"] for b in whole(*chunks)["content"]] == [{}, {"y": 2}]


def test_a_tool_is_told_of_once_its_name_is_known() -> None:
    chunks = [tool(0, id="a"), tool(0, '{"x"', name="f"), tool(0, ":1}"), say(finish="tool_calls")]
    block = written(*chunks)[1]
    assert block["content_block"] == {
        "type": "tool_use",
        "id": "toolu_as_a",
        "name": "f",
        "input": {},
        "caller": DIRECT,
    }
    assert whole(*chunks)["content"] == [
        {"type": "tool_use", "id": "toolu_as_a", "name": "f", "input": {"x": 1}, "caller": DIRECT}
    ]


def test_a_guards_revocation_reaches_the_client() -> None:
    revoked = {"revoked": True, "from": 3}
    last = Chunk(delta={}, finish_reason="content_filter", envelope={"tollgate": revoked})
    assert written(say("Bad"), last)[-2]["tollgate"] == revoked
    assert whole(say("Bad"), last)["tollgate"] == revoked


def test_who_took_over_in_the_middle_is_told_at_the_end() -> None:
    call = a_call()
    first, other = (Candidate(model, CANDIDATE.target, CANDIDATE.timeouts) for model in ("first", "other"))
    call.candidate = first
    events, answer = AnthropicEventWriter(call), AnthropicBodyWriter(call)
    told = events.event(say("Hel"))
    answer.add(say("Hel"))
    call.candidate = other
    answer.add(say("lo", finish="stop"))
    told += events.event(say("lo", finish="stop")) + events.end()
    started, *_, news, _ = [orjson.loads(data) for data in sse.EventReader().feed(told)]
    assert started["message"]["model"] == "first"
    assert news["tollgate"] == {"model": "other"}
    assert orjson.loads(answer.body())["model"] == "other"
    assert "tollgate" not in orjson.loads(answer.body())


def test_a_stop_sequence_and_an_id_of_their_own_come_through() -> None:
    chunks = chunks_of(recorded("thinking.sse"))
    events = written(*chunks)
    assert events[0]["message"]["id"] == "msg_01Thinking"
    delta = events[-2]["delta"]
    assert (delta["stop_reason"], delta["stop_sequence"]) == ("stop_sequence", "END")
    assert whole(*chunks)["stop_reason"] == "stop_sequence"


def test_a_refusals_reason_comes_through() -> None:
    chunks = chunks_of(recorded("refusal.sse"))
    for message in (whole(*chunks), written(*chunks)[-2]["delta"]):
        assert message["stop_reason"] == "refusal"
        assert message["stop_details"]["explanation"] == "This concerns dangerous laboratory methods."
    # OpenAI's models refuse in so many words.
    spoken = (say(refusal="I "), say(refusal="won't."), say(finish="stop"))
    assert whole(*spoken)["content"] == [text("I won't.")]
    assert joined(chunks_of(*map(orjson_event, written(*spoken))))["content"] == "I won't."


def orjson_event(value: dict[str, Any]) -> bytes:
    return sse.event(orjson.dumps(value))


def test_comments_are_pings() -> None:
    assert AnthropicEventWriter(a_call()).comment("position 3") == b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.mark.parametrize("name", STREAMS)
def test_recorded_streams_come_through_as_the_same_answer(name: str) -> None:
    chunks = chunks_of(recorded(f"{name}.sse"))
    again = chunks_of(*map(orjson_event, written(*chunks)))
    assert joined(again) == joined(chunks)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
arguments = st.dictionaries(texts, st.integers(-9, 9) | texts, max_size=2).map(
    lambda v: orjson.dumps(v).decode()
)


@st.composite
def answers(draw: st.DrawFn) -> list[Chunk]:
    chunks: list[Chunk] = [say(role="assistant")]
    tools = 0
    for kind in draw(st.lists(st.sampled_from(["text", "thought", "tool"]), max_size=6)):
        match kind:
            case "text":
                chunks += map(say, draw(st.lists(texts, min_size=1, max_size=3)))
            case "thought":
                chunks.append(say(reasoning_content=draw(texts)))
            case _:
                given = draw(arguments)
                cut = draw(st.integers(0, len(given)))
                chunks.append(tool(tools, given[:cut], id=f"call_{tools}", name="f"))
                chunks.append(tool(tools, given[cut:]))
                tools += 1
    finish = "tool_calls" if tools else draw(st.sampled_from(["stop", "length", "content_filter"]))
    cached = draw(st.integers(0, 50))
    usage = Usage(
        prompt=cached + draw(st.integers(0, 50)), completion=draw(st.integers(0, 99)), cached=cached
    )
    if draw(st.booleans()):
        return [*chunks, Chunk(delta={}, finish_reason=finish, usage=usage)]
    return [*chunks, Chunk(delta={}, finish_reason=finish), Chunk(usage=usage)]


@settings(max_examples=examples(200))
@given(answers(), st.lists(st.integers(1, 200), max_size=20))
def test_what_is_written_reads_back_as_the_same_answer(chunks: list[Chunk], sizes: list[int]) -> None:
    events = AnthropicEventWriter(a_call())
    sent = b"".join(map(events.event, chunks)) + events.end()
    written(*chunks)
    assert joined(chunks_of(*cut_at(sent, sizes))) == joined(chunks)
    message = AnthropicChunkReader().read_answer(whole(*chunks))
    assert without_indices(joined(message)) == without_indices(joined(chunks))


def without_indices(said: dict[str, Any]) -> dict[str, Any]:
    """Arguments as values, as a whole message has them so."""
    calls = [
        {**call, "function": {**call["function"], "arguments": orjson.loads(call["function"]["arguments"])}}
        for call in said.get("tool_calls") or ()
    ]
    return {**said, "tool_calls": calls}


# Errors


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.BadRequest("No."), "invalid_request_error"),
        (errors.MethodNotAllowed("No.", allow="POST"), "invalid_request_error"),
        (errors.Unauthenticated("No."), "authentication_error"),
        (errors.Forbidden("No."), "permission_error"),
        (errors.UnknownModel("No."), "not_found_error"),
        (errors.BodyTooLarge("No."), "request_too_large"),
        (errors.RateLimited("No."), "rate_limit_error"),
        (errors.BudgetSpent("No."), "rate_limit_error"),
        (errors.Internal("No."), "api_error"),
        (errors.UpstreamFailed("No."), "api_error"),
        (errors.Overloaded("No."), "overloaded_error"),
        (errors.UpstreamUnavailable("No."), "overloaded_error"),
        (errors.ShuttingDown("No."), "overloaded_error"),
        (errors.UpstreamTimeout("No."), "timeout_error"),
    ],
)
def test_errors_have_anthropics_shape(error: errors.GatewayError, kind: str) -> None:
    assert orjson.loads(error_body(error, "req_1")) == {
        "type": "error",
        "error": {"type": kind, "message": "No."},
        "request_id": "req_1",
    }


def test_an_errors_message_names_the_field() -> None:
    error = errors.BadRequest("Wrong.", param="messages[0].content")
    assert orjson.loads(error_body(error, "r"))["error"]["message"] == "messages[0].content: Wrong."


def test_clients_recognise_a_prompt_that_is_too_long() -> None:
    error = errors.ContextTooLong("8193 tokens, not 8192.", status=400, type=None, param=None, code=None)
    assert orjson.loads(error_body(error, "r"))["error"]["message"].startswith("prompt is too long: ")


def test_a_prompt_with_room_is_not_called_too_long() -> None:
    said = (
        "This model's maximum context length is 512 tokens. However, you requested {} tokens ({} in the messages, "
        "{} in the completion). Please reduce the length of the messages or completion."
    )
    for prompt, cap, words in (
        (11, 4096, "input length and `max_tokens` exceed context limit"),
        (600, 5, "prompt is too long"),
    ):
        message = said.format(prompt + cap, prompt, cap)
        error = errors.ContextTooLong(message, status=400, type=None, param=None, code=None)
        told = orjson.loads(error_body(error, "r"))["error"]["message"]
        assert told.startswith(words)
        assert ("prompt is too long" in told) == (prompt > 512)


def test_an_error_within_a_stream() -> None:
    events = AnthropicEventWriter(a_call(request_id="req_1"))
    events.event(say("x"))
    assert events.error(errors.Overloaded("Busy.")) == (
        b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Busy."},'
        b'"request_id":"req_1"}\n\n'
    )


def _deep(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content_block_start", "index": "x", "content_block": {"type": "new", "a": "b"}},
        {"type": "content_block_delta", "index": None, "delta": {"type": "new", "a": "b"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "new", "a": _deep(200)}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "new", "a": _deep(200)}},
    ],
    ids=["no number", "none", "deep block", "deep delta"],
)
def test_what_guards_could_not_walk_through_is_no_event(event: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        list(AnthropicChunkReader(native=True).read_event(event))
    if "content_block" in event and isinstance(event["index"], int):
        whole = {"type": "message", "content": [event["content_block"]], "stop_reason": "end_turn"}
        with pytest.raises(TypeError):
            list(AnthropicChunkReader(native=True).read_answer(whole))


@pytest.mark.parametrize("told", ["x", ["x"], 1])
def test_another_server_speaks_neither_for_us_nor_in_our_own_terms(told: Any) -> None:
    """What it puts under names of ours is not taken for ours."""
    delta = {"content": "hello", "native": told, "signature": [told], "redacted_thinking": {"a": told}}
    raw = {"choices": [{"index": 0, "delta": delta}], "native": told, "tollgate": told}
    [chunk] = openai_chat.read_event(raw)
    assert chunk.delta == {"content": "hello"}
    events = written(chunk, Chunk(finish_reason="stop", delta={}))
    assert "tollgate" not in events[-2]
    whole = AnthropicBodyWriter(a_call(request_id="req_1"))
    whole.add(chunk)
    assert orjson.loads(whole.body())["content"][0]["text"] == "hello"


@pytest.mark.parametrize(
    ("delta", "said"),
    [
        ({"content": [{"type": "text", "text": " you"}, {"type": "text", "text": 5}, 5, None]}, "hello you"),
        ({"reasoning_content": ["a"]}, "hello"),
        ({"reasoning": {"a": 1}}, "hello"),
        ({"refusal": ["a"]}, "hello"),
    ],
)
def test_another_servers_words_in_another_shape(delta: dict[str, Any], said: str) -> None:
    chunks = [Chunk(delta={"content": "hello"}), Chunk(delta=delta), Chunk(delta={}, finish_reason="stop")]
    told = [event["delta"].get("text", "") for event in written(*chunks) if "delta" in event]
    assert "".join(told) == said
    whole = AnthropicBodyWriter(a_call(request_id="req_1"))
    for chunk in chunks:
        whole.add(chunk)
    assert [block["text"] for block in orjson.loads(whole.body())["content"]] == [said]
