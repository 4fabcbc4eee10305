"""Upstream answers into chunks, and chunks into what the client gets: as one body, or as events."""

from __future__ import annotations

import copy
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.types import Chunk, Usage
from gateway.wire import sse
from gateway.wire.openai import chat as openai_chat
from gateway.wire.openai.chunks_to_body import OpenAIBodyWriter
from gateway.wire.openai.chunks_to_events import OpenAIEventWriter
from gateway.wire.openai.dialect import CHAT, COMPLETIONS, OpenAIDialect
from gateway.wire.openai.usage import read_usage
from tests.fakes import USAGE, a_call, completion, delta, usage_event

NOTHING_SAID = {"role": "assistant", "content": None, "refusal": None, "annotations": []}


def collect(events: list[dict[str, Any]], dialect: OpenAIDialect = CHAT) -> Any:
    """The whole body that a stream of these events adds up to."""
    whole = OpenAIBodyWriter(dialect.format, a_call(request_id="req_1"))
    for event in events:
        for chunk in dialect.read_event(event):
            whole.add(chunk)
    return orjson.loads(whole.body())


def unstreamed(raw: dict[str, Any], dialect: OpenAIDialect = CHAT) -> Any:
    whole = OpenAIBodyWriter(dialect.format, a_call(request_id="req_1"))
    for chunk in dialect.read_answer(raw):
        whole.add(chunk)
    return orjson.loads(whole.body())


def relay(
    events: list[dict[str, Any]], *, include_usage: bool = False, dialect: OpenAIDialect = CHAT
) -> list[bytes]:
    """The data of the events that the client gets for these upstream ones."""
    out = OpenAIEventWriter(dialect.format, a_call(request_id="req_1", include_usage=include_usage))
    sent = b"".join(out.event(chunk) for event in events for chunk in dialect.read_event(event)) + out.end()
    return sse.EventReader().feed(sent)


def test_a_whole_answer_passes_through() -> None:
    raw = completion("Hello", service_tier="default")
    [choice] = raw["choices"]
    assert unstreamed(raw) == {
        **raw,
        "model": "m",
        "choices": [{**choice, "message": {**choice["message"], "refusal": None, "annotations": []}}],
        "usage": {
            **USAGE,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    ChatCompletion.model_validate(unstreamed(raw))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), min_size=1, max_size=8))
def test_a_streamed_answer_adds_up_to_the_whole_one(words: list[str]) -> None:
    events = [delta("", role="assistant"), *map(delta, words), delta(finish="stop"), usage_event()]
    assert collect(events) == unstreamed(completion("".join(words)))


def test_a_stream_without_role_or_content_is_a_message_still() -> None:
    body = collect([delta(finish="stop")])
    assert body["choices"][0]["message"] == {**NOTHING_SAID}
    assert "usage" not in body


def test_fields_that_may_not_be_null_are_left_out_where_a_server_writes_null() -> None:
    raw = completion("Hi")
    raw["choices"][0]["message"] |= {
        "tool_calls": None,
        "function_call": None,
        "audio": None,
        "annotations": None,
    }
    assert unstreamed(raw)["choices"][0]["message"] == {**NOTHING_SAID, "content": "Hi"}


def test_annotations_are_handed_on() -> None:
    found = [
        {"type": "url_citation", "url_citation": {"start_index": 0, "end_index": 2, "title": "t", "url": "u"}}
    ]
    raw = completion("Hi")
    raw["choices"][0]["message"]["annotations"] = found
    assert unstreamed(raw)["choices"][0]["message"]["annotations"] == found


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("chatcmpl-1", "chatcmpl-1"),
        ("gen-1", "gen-1"),  # OpenRouter's, which tells what an answer cost by it
        ("msg_1", "chatcmpl-req_1"),
        ("", "chatcmpl-req_1"),
        (None, "chatcmpl-req_1"),
        (7, "chatcmpl-req_1"),
    ],
)
def test_an_id_of_another_dialect_is_not_handed_on(theirs: Any, ours: str) -> None:
    assert unstreamed({**completion(), "id": theirs})["id"] == ours
    [event, _] = relay([{**delta("Hi"), "id": theirs}])
    assert orjson.loads(event)["id"] == ours


def test_a_refusal_in_pieces() -> None:
    events = [
        delta(None, role="assistant", refusal="I "),
        delta(None, refusal="can't."),
        delta(finish="stop"),
    ]
    assert collect(events)["choices"][0]["message"] == {
        **NOTHING_SAID,
        "refusal": "I can't.",
    }


def test_null_after_text_does_not_erase_it() -> None:
    events = [delta("Hi", refusal=None), delta(finish="stop")]
    events[1]["choices"][0]["delta"] = {"content": None}
    assert collect(events)["choices"][0]["message"]["content"] == "Hi"


def test_reasoning_in_pieces() -> None:
    events = [delta(reasoning_content="Hm"), delta(reasoning_content="m"), delta("42"), delta(finish="stop")]
    assert collect(events)["choices"][0]["message"] == {
        **NOTHING_SAID,
        "content": "42",
        "reasoning_content": "Hmm",
    }


def tool(index: int, arguments: str, *, id: str | None = None, name: str | None = None) -> dict[str, Any]:
    call: dict[str, Any] = {"index": index, "function": {"arguments": arguments}}
    if id is not None:
        call |= {"id": id, "type": "function"}
    if name is not None:
        call["function"]["name"] = name
    return call


def test_interleaved_tool_calls_in_pieces() -> None:
    events = [
        delta(role="assistant", content=None, tool_calls=[tool(0, "", id="call_a", name="f")]),
        delta(tool_calls=[tool(0, '{"x":')]),
        delta(tool_calls=[tool(1, '{"y"', id="call_b", name="g"), tool(0, " 1")]),
        delta(tool_calls=[tool(1, ": 2}")]),
        delta(tool_calls=[tool(0, "}")]),
        delta(finish="tool_calls"),
    ]
    before = copy.deepcopy(events)
    body = collect(events)
    assert body["choices"][0]["message"]["tool_calls"] == [
        {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "call_b", "type": "function", "function": {"name": "g", "arguments": '{"y": 2}'}},
    ]
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert events == before, "the pieces belong to whoever made them"
    ChatCompletion.model_validate(body)


@pytest.mark.parametrize("index", [None, "x", 0.0, {}, True])
def test_a_tool_call_whose_index_is_none_has_its_place(index: Any) -> None:
    def calls(*pieces: dict[str, Any]) -> dict[str, Any]:
        return delta(tool_calls=[{**piece, "index": index} for piece in pieces])

    named = calls(tool(0, '{"x":', id="call_a", name="f"), tool(1, "", id="call_b", name="g"))
    [chunk] = CHAT.read_event(calls(tool(0, " 1}"), tool(1, "{}")))
    assert chunk.delta is not None
    assert [call["index"] for call in chunk.delta["tool_calls"]] == [0, 1]
    said = collect([named, calls(tool(0, " 1}"), tool(1, "{}"))])["choices"][0]["message"]["tool_calls"]
    assert [call["function"]["arguments"] for call in said] == ['{"x": 1}', "{}"]


def test_empty_ids_and_names_in_later_pieces_do_not_erase_the_first() -> None:
    events = [
        delta(tool_calls=[tool(0, "{", id="call_a", name="f")]),
        delta(tool_calls=[tool(0, "}", id="", name="")]),
        delta(finish="tool_calls"),
    ]
    [call] = collect(events)["choices"][0]["message"]["tool_calls"]
    assert call == {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_tool_calls_of_a_whole_answer_get_an_index_when_streamed() -> None:
    raw = completion()
    calls = [{"id": str(i), "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in (1, 2)]
    raw["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": calls}
    [chunk] = openai_chat.read_answer(raw)
    out = openai_chat.event_choice(chunk)
    assert [call["index"] for call in out["delta"]["tool_calls"]] == [0, 1]
    assert unstreamed(raw)["choices"][0]["message"]["tool_calls"] == calls


def test_choices_in_any_order() -> None:
    events = [
        delta("b", index=1),
        delta("a", index=0),
        delta("B", index=1, finish="stop"),
        delta("A", index=0, finish="length"),
    ]
    body = collect(events)
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in body["choices"]] == [
        (0, "aA", "length"),
        (1, "bB", "stop"),
    ]


def test_several_choices_in_one_event() -> None:
    event = delta()
    event["choices"] = [delta("a", index=0, finish="stop")["choices"][0], delta("b", index=1)["choices"][0]]
    event["usage"] = USAGE
    chunks = [*openai_chat.read_event(event)]
    assert [(chunk.index, chunk.usage) for chunk in chunks] == [(0, None), (1, Usage(7, 3))]


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_usage_that_nobody_can_have_used_is_not_believed(name: str) -> None:
    event = delta("a")
    event["usage"] = {**USAGE, name: 2**62}
    (chunk,) = openai_chat.read_event(event)
    assert chunk.usage is None
    event["usage"] = {**USAGE, "completion_tokens_details": {"reasoning_tokens": 2**62}}
    (chunk,) = openai_chat.read_event(event)
    assert chunk.usage is None


def logprob(token: str) -> dict[str, Any]:
    return {"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": []}


def test_logprobs_follow_one_another() -> None:
    events = [delta("a"), delta("b"), delta("c"), delta(finish="stop")]
    for event, token in zip(events, "abc", strict=False):
        event["choices"][0]["logprobs"] = {"content": [logprob(token)], "refusal": None}
    body = collect(events)
    assert body["choices"][0]["logprobs"] == {"content": [*map(logprob, "abc")], "refusal": None}
    ChatCompletion.model_validate(body)


def test_logprobs_have_both_kinds_where_a_server_writes_one() -> None:
    told = {"content": [logprob("a")]}
    events = [delta("a"), delta(finish="stop")]
    events[0]["choices"][0]["logprobs"] = told
    assert collect(events)["choices"][0]["logprobs"] == {**told, "refusal": None}
    [first, *_] = relay(events)
    assert orjson.loads(first)["choices"][0]["logprobs"] == {**told, "refusal": None}


def test_the_envelope_is_the_upstreams_but_for_the_model_name() -> None:
    body = collect([delta("a", finish="stop")])
    assert (body["id"], body["created"], body["system_fingerprint"]) == (
        "chatcmpl-upstream",
        1_700_000_000,
        "fp_1",
    )
    assert (body["object"], body["model"]) == ("chat.completion", "m")


def test_without_an_envelope_the_gateway_makes_one() -> None:
    whole = OpenAIBodyWriter(CHAT.format, a_call(request_id="req_1"))
    whole.add(Chunk(delta={"content": "Hi"}, finish_reason="stop"))
    body = orjson.loads(whole.body())
    assert body["id"] == "chatcmpl-req_1"
    ChatCompletion.model_validate(body)


def test_the_padding_of_one_event_is_not_spread_over_all() -> None:
    events = [{**delta("a"), "obfuscation": "xxxx"}, {**delta("b", finish="stop"), "obfuscation": "y"}]
    assert "obfuscation" not in collect(events)
    assert all(b"obfuscation" not in data for data in relay(events))


def test_events_are_well_formed_to_the_official_parser() -> None:
    events = [delta("", role="assistant"), delta("Hi"), delta(finish="stop"), usage_event()]
    *chunks, done = relay(events)
    assert done == b"[DONE]"
    parsed = [ChatCompletionChunk.model_validate_json(data) for data in chunks]
    assert [chunk.choices[0].delta.content for chunk in parsed] == ["", "Hi", None]
    assert parsed[-1].choices[0].finish_reason == "stop"
    assert {chunk.id for chunk in parsed} == {"chatcmpl-upstream"}
    assert {chunk.model for chunk in parsed} == {"m"}
    assert {chunk.object for chunk in parsed} == {"chat.completion.chunk"}


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        # https://docs.x.ai/docs/key-information/consumption-and-rate-limits
        (
            {
                "prompt_tokens": 12,
                "completion_tokens": 2,
                "total_tokens": 331,
                "completion_tokens_details": {"reasoning_tokens": 317},
            },
            Usage(12, 319, reasoning=317),
        ),
        ({"prompt_tokens": 20, "completion_tokens": 198, "total_tokens": 623}, Usage(20, 603, reasoning=405)),
        (
            {
                "prompt_tokens": 21,
                "completion_tokens": 0,
                "total_tokens": 81,
                "completion_tokens_details": {"reasoning_tokens": 60},
            },
            Usage(21, 60, reasoning=60),
        ),
        ({"total_tokens": 9}, Usage(9, 0)),
        ({"prompt_tokens": 9, "total_tokens": 9}, Usage(9, 0)),
        ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 5}, Usage(9, 4)),
    ],
    ids=["xAI", "Gemini", "thoughts alone", "the total alone", "embeddings", "a total that is none"],
)
def test_thoughts_that_are_left_out_of_the_answers_tokens_count(told: dict[str, Any], usage: Usage) -> None:
    """They are billed like the rest; with nothing but the answer's own they would be free."""
    assert read_usage(told) == usage
    assert read_usage({**told, "total_tokens": 2**62}) is None


def test_usage_is_left_out_unless_asked_for() -> None:
    for data in relay([delta("Hi"), delta(finish="stop"), usage_event()])[:-1]:
        assert "usage" not in orjson.loads(data)


def test_usage_comes_last_with_no_choices_and_is_null_before() -> None:
    events = [delta("Hi"), delta(finish="stop"), usage_event(prompt_tokens_details={"cached_tokens": 4})]
    *chunks, last, done = relay(events, include_usage=True)
    assert done == b"[DONE]"
    assert all(orjson.loads(data)["usage"] is None for data in chunks)
    assert len(chunks) == 2
    usage = orjson.loads(last)
    assert usage["choices"] == []
    assert usage["usage"] == {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    ChatCompletionChunk.model_validate(usage)


def test_usage_on_the_last_choice_is_moved_behind_it() -> None:
    events = [delta("Hi"), {**delta(finish="stop"), "usage": USAGE}]
    *chunks, last, _ = relay(events, include_usage=True)
    assert [orjson.loads(data)["usage"] for data in chunks] == [None, None]
    assert orjson.loads(last)["usage"]["total_tokens"] == 10


def test_usage_that_nobody_counted_is_not_made_up() -> None:
    *chunks, done = relay([delta("Hi"), delta(finish="stop")], include_usage=True)
    assert len(chunks) == 2
    assert done == b"[DONE]"


def text(content: str, *, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": index, "text": content, "logprobs": None, "finish_reason": finish}
    return {"id": "cmpl-up", "object": "text_completion", "created": 1, "model": "u", "choices": [choice]}


def test_raw_completions_both_ways() -> None:
    events = [
        text("Once "),
        text("upon"),
        text("", finish="length"),
        {**text(""), "choices": [], "usage": USAGE},
    ]
    body = collect(events, COMPLETIONS)
    assert body["choices"] == [{"index": 0, "text": "Once upon", "logprobs": None, "finish_reason": "length"}]
    assert (body["id"], body["object"], body["model"]) == ("cmpl-up", "text_completion", "m")
    Completion.model_validate(body)
    assert body == unstreamed({**text("Once upon", finish="length"), "usage": USAGE}, COMPLETIONS)
    *chunks, _ = relay(events, dialect=COMPLETIONS)
    assert [orjson.loads(data)["choices"][0]["text"] for data in chunks] == ["Once ", "upon", ""]
    assert all(orjson.loads(data)["object"] == "text_completion" for data in chunks)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"choices": 5},
        {"choices": {}, "x": 1} | {"choices": {"a": 1}},
        {"choices": [None]},
        {"choices": ["a"]},
        {"choices": [{"index": None, "delta": {}}]},
        {"choices": [{"index": "0", "delta": {}}]},
        {"choices": [{"index": True, "delta": {}}]},
        {"choices": [{"index": 0, "delta": "Hi"}]},
        {"choices": [{"index": 0, "delta": ["Hi"]}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": 1}]},
        {"choices": [{"index": 0, "delta": {}, "logprobs": [1]}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": ["f"]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": {"index": 0}}}]},
    ],
    ids=repr,
)
def test_what_is_no_chunk_is_said_to_be_nonsense(raw: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, AttributeError)):
        list(openai_chat.read_event(raw))


json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text("ab", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "index",
                    "delta",
                    "content",
                    "finish_reason",
                    "logprobs",
                    "tool_calls",
                    "function",
                    "arguments",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(st.lists(json, min_size=1, max_size=3), json)
def test_whatever_gets_through_as_a_chunk_can_be_sent_on(choices: list[Any], usage: Any) -> None:
    raw = {"choices": choices, "usage": usage}
    try:
        chunks = list(openai_chat.read_event(raw))
    except (KeyError, TypeError, AttributeError):
        return
    out = OpenAIEventWriter(CHAT.format, a_call(request_id="req_1", include_usage=True))
    whole = OpenAIBodyWriter(CHAT.format, a_call(request_id="req_1"))
    for chunk in chunks:
        out.event(chunk)
        whole.add(chunk)
        assert chunk.usage is None or min(chunk.usage.prompt, chunk.usage.completion) >= 0
    orjson.loads(whole.body())


@pytest.mark.parametrize("choices", [[], None])
def test_an_event_with_usage_alone(choices: object) -> None:
    [chunk] = openai_chat.read_event({"choices": choices, "usage": USAGE})
    assert (chunk.delta, chunk.usage) == (None, Usage(7, 3))


def test_an_event_with_nothing_is_no_chunk() -> None:
    assert list(openai_chat.read_event({"choices": [], "prompt_filter_results": []})) == []


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        (None, None),
        ({}, None),
        ("7", None),
        ({"prompt_tokens": 7}, Usage(7, 0)),
        ({"prompt_tokens": None, "completion_tokens": 3}, Usage(0, 3)),
        ({"prompt_tokens": "7", "completion_tokens": -3}, None),
        ({"prompt_tokens": 7, "completion_tokens": True}, None),
        ({"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": None}, Usage(7, 3)),
        (
            {
                "prompt_tokens": 7,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
            Usage(7, 3, cached=5, reasoning=2),
        ),
    ],
    ids=repr,
)
def test_usage_is_read_with_care(raw: Any, usage: Usage | None) -> None:
    assert read_usage(raw) == usage


def test_a_field_of_one_event_stays_with_that_event() -> None:
    out = OpenAIEventWriter(CHAT.format, a_call(request_id="r", include_usage=True))
    first, second = (
        orjson.loads(out.event(Chunk(delta={"content": "a"}, envelope=envelope))[6:])
        for envelope in ({"id": "x", "prompt_filter_results": [1]}, {"id": "x", "timings": {"ms": 2}})
    )
    assert first["prompt_filter_results"] == [1]
    assert "prompt_filter_results" not in second
    assert second["timings"] == {"ms": 2}
    assert first["id"] == second["id"] == "x"
    assert first["usage"] is second["usage"] is None


def test_many_tool_calls_are_joined_in_time_that_grows_with_their_number() -> None:
    pieces = [tool(i, "{}", id=f"call_{i}", name="f") for i in range(20_000)]
    began = time.process_time()
    [choice] = unstreamed({**completion(""), "choices": [{"index": 0, "message": {"tool_calls": pieces}}]})[
        "choices"
    ]
    assert time.process_time() - began < 2
    assert [call["id"] for call in choice["message"]["tool_calls"]] == [f"call_{i}" for i in range(20_000)]


def test_a_tool_call_that_is_written_otherwise_is_read_as_it_is_meant() -> None:
    call = {"index": 0, "id": 5, "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    [chunk] = CHAT.read_event(delta(tool_calls=[call]))
    assert chunk.delta is not None
    [read] = chunk.delta["tool_calls"]
    assert (read["id"], read["function"]["arguments"]) == ("5", '{"x":1}')


@pytest.mark.parametrize("function", [5, "f", {"name": 5}])
def test_a_tool_call_that_is_none_is_no_event(function: Any) -> None:
    with pytest.raises(TypeError):
        list(CHAT.read_event(delta(tool_calls=[{"index": 0, "function": function}])))


pieces = st.builds(
    Chunk,
    st.integers(0, 1),
    st.builds(lambda text: {"content": text}, st.sampled_from(["a", "", "\x00", 'é"'])) | st.just({}),
    st.sampled_from([None, None, "stop"]),
    st.sampled_from([None, None, "end"]),
    st.sampled_from([None, None, {"content": []}]),
    envelope=st.sampled_from([{}, {"id": "\x00", "created": 1}, {"id": "\x00", "created": 1, "timings": 2}]),
)


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS])
@given(st.lists(pieces, min_size=1, max_size=8))
def test_each_event_is_what_it_would_be_as_the_first(dialect: OpenAIDialect, chunks: list[Chunk]) -> None:
    writer = dialect.event_writer(a_call())
    for chunk in chunks:
        first = dialect.event_writer(a_call())
        first.event(Chunk(envelope=chunks[0].envelope))
        given_, wanted = (orjson.loads(data[6:]) for data in (writer.event(chunk), first.event(chunk)))
        assert {**given_, "created": 0} == {**wanted, "created": 0}


def test_calls_that_come_with_the_end_are_sent_before_it() -> None:
    """OpenAI's clients take calls in the event that ends a choice for unfinished ones."""
    calls = [tool(0, '{"x": 1}', id="call_a", name="f")]
    event = {**delta(finish="tool_calls", tool_calls=calls), "timings": {"ms": 7}}
    called, ended = (orjson.loads(data) for data in relay([event])[:2])
    assert called["choices"][0]["delta"]["tool_calls"] == calls
    assert called["choices"][0]["finish_reason"] is None
    assert (ended["choices"][0]["delta"], ended["choices"][0]["finish_reason"]) == ({}, "tool_calls")
    assert ("timings" in called, ended["timings"]) == (False, {"ms": 7})
