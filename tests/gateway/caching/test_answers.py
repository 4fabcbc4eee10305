"""An answer that is given again says what was said the first time, in every dialect, streamed or not."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caching.answers import LONGEST_PIECE, Recording, unpack
from gateway.types import Call, Chunk, Usage
from gateway.wire.anthropic.dialect import AnthropicDialect
from gateway.wire.dialect import Dialect
from gateway.wire.openai.dialect import CHAT, COMPLETIONS
from tests.fakes import CANDIDATE, a_call

DIALECTS: dict[str, Dialect] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "messages": AnthropicDialect(),
}


def said(*chunks: Chunk) -> Recording:
    recording = Recording()
    for chunk in chunks:
        recording.add(chunk)
    return recording


def again(recording: Recording, *, stream: bool) -> list[Chunk]:
    answer = unpack(recording.pack(CANDIDATE, 5.0))
    assert answer is not None
    assert (answer.stored, answer.model, answer.backend, answer.target_model) == (
        5.0,
        "m",
        "up",
        "upstream-model",
    )
    return list(answer.chunks(stream=stream))


def whole(dialect: Dialect, call: Call, chunks: list[Chunk]) -> Any:
    writer = dialect.body_writer(call)
    for chunk in chunks:
        writer.add(chunk)
    body = orjson.loads(writer.body())
    return {name: value for name, value in body.items() if name not in ("id", "created")}


def events(dialect: Dialect, call: Call, chunks: list[Chunk]) -> list[Any]:
    writer = dialect.event_writer(call)
    data = b"".join([writer.event(chunk) for chunk in chunks]) + writer.end()
    lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: ") and b"[DONE]" not in line]
    return [orjson.loads(line) for line in lines]


def text(content: str, **more: Any) -> Chunk:
    return Chunk(delta={"content": content}, **more)


ENVELOPE = {"id": "c1", "created": 1, "system_fingerprint": "fp"}
STREAMED = [
    Chunk(delta={"role": "assistant", "content": ""}, envelope=ENVELOPE),
    text("Hel", envelope=ENVELOPE, logprobs={"content": [{"token": "Hel"}]}),
    text("lo", envelope=ENVELOPE, logprobs={"content": [{"token": "lo"}]}),
    Chunk(delta={}, finish_reason="stop", envelope=ENVELOPE),
    Chunk(usage=Usage(3, 2, cached=1, reasoning=1), envelope=ENVELOPE),
]
AT_ONCE = [
    Chunk(
        delta={"role": "assistant", "content": "Hello", "refusal": None, "annotations": []},
        finish_reason="stop",
        usage=Usage(3, 2),
        envelope=ENVELOPE,
    )
]


def tool(index: int, arguments: str, **more: Any) -> Chunk:
    return Chunk(
        delta={
            "tool_calls": [
                {"index": index, **more, "function": {**more.pop("f", {}), "arguments": arguments}}
            ]
        }
    )


TOOLS = [
    Chunk(delta={"role": "assistant", "content": None}),
    Chunk(delta={"reasoning_content": "Let me "}),
    Chunk(delta={"reasoning_content": "see."}),
    text("I will "),
    text("look."),
    Chunk(
        delta={
            "tool_calls": [
                {"index": 0, "id": "t0", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        }
    ),
    tool(0, '{"a":'),
    tool(0, "1}"),
    Chunk(
        delta={
            "tool_calls": [
                {"index": 1, "id": "t1", "type": "function", "function": {"name": "g", "arguments": "{"}}
            ]
        }
    ),
    tool(1, "}"),
    Chunk(delta={}, finish_reason="tool_calls", usage=Usage(3, 2)),
]
CHOICES = [
    Chunk(index=0, delta={"role": "assistant", "content": "a"}),
    Chunk(index=1, delta={"role": "assistant", "content": "x"}),
    Chunk(index=0, delta={"content": "b"}),
    Chunk(index=1, delta={"content": "y"}),
    Chunk(index=0, delta={"content": "c"}),
    Chunk(index=0, delta={}, finish_reason="stop"),
    Chunk(index=1, delta={}, finish_reason="length", usage=Usage(1, 5)),
]
OWN_FIELDS = [
    text("a", envelope={"id": "msg_1", "service_tier": "default"}),
    text("b", envelope={"id": "msg_1", "service_tier": "default"}),
    Chunk(delta={}, finish_reason="stop", envelope={"stop_sequence": "END"}),
    Chunk(usage=Usage(1, 2), envelope={"timings": {"ms": 3}}),
]
ANSWERS = {
    "streamed": STREAMED,
    "at once": AT_ONCE,
    "tools": TOOLS,
    "choices": CHOICES,
    "own fields": OWN_FIELDS,
}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_whole_answer_has_the_same_body(name: str, dialect: str, stream: bool) -> None:
    dialect, call = DIALECTS[dialect], a_call(stream=False)
    assert whole(dialect, call, again(said(*ANSWERS[name]), stream=stream)) == whole(
        dialect, call, ANSWERS[name]
    )


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ANSWERS)
def test_a_stream_says_the_same(name: str, dialect: str) -> None:
    """What a client puts together from the events is what it would have put together the first time."""
    dialect, call = DIALECTS[dialect], a_call(include_usage=True)
    first, second = (
        joined(events(dialect, call, list(chunks)))
        for chunks in (ANSWERS[name], again(said(*ANSWERS[name]), stream=True))
    )
    assert first == second


def joined(events: list[Any]) -> Any:
    """As a client of OpenAI's or Anthropic's reads a stream."""
    told: dict[Any, Any] = {}
    for event in events:
        for choice in event.get("choices", ()):
            mine = told.setdefault(choice["index"], {"reason": None, "logprobs": []})
            mine["reason"] = choice["finish_reason"] or mine["reason"]
            mine["logprobs"] += (choice.get("logprobs") or {}).get("content", [])
            for name, value in {"text": choice.get("text"), **choice.get("delta", {})}.items():
                if name == "tool_calls":
                    for piece in value:
                        one = mine.setdefault(("tool", piece["index"]), {"arguments": ""})
                        one.update({k: v for k, v in piece.items() if k != "function"})
                        one["name"] = piece["function"].get("name") or one.get("name")
                        one["arguments"] += piece["function"]["arguments"]
                elif isinstance(value, str) and name != "role":
                    mine[name] = mine.get(name, "") + value
                elif value:
                    mine[name] = value
        if event.get("usage") and "choices" in event:
            told["usage"] = event["usage"]
        if "type" in event:
            kind = event["type"]
            if kind == "content_block_start":
                told["block", event["index"]] = [event["content_block"], ""]
            elif kind == "content_block_delta":
                told["block", event["index"]][1] += next(
                    value for name, value in event["delta"].items() if name != "type"
                )
            elif kind == "message_delta":
                told["end"] = {name: value for name, value in event.items() if name != "type"}
    return told


def test_a_stream_begins_with_the_role_and_ends_with_the_usage() -> None:
    chunks = again(said(*AT_ONCE), stream=True)
    assert chunks[0].delta == {"role": "assistant"}
    assert chunks[-1].delta == {} and chunks[-1].finish_reason == "stop"
    assert chunks[-1].usage == Usage(3, 2)
    assert all(chunk.usage is None and chunk.finish_reason is None for chunk in chunks[:-1])
    assert [chunk.more for chunk in chunks] == [True] * (len(chunks) - 1) + [False]


def test_it_has_no_id_of_the_first_ones() -> None:
    for chunk in again(said(*STREAMED), stream=True):
        assert "id" not in chunk.envelope and "created" not in chunk.envelope
        assert chunk.envelope.get("system_fingerprint") == "fp"


def test_pieces_of_one_text_are_joined() -> None:
    recording = said(*(text("word ") for _ in range(1000)), Chunk(delta={}, finish_reason="stop"))
    assert len(again(recording, stream=False)) == 1
    pieces = [chunk.delta["content"] for chunk in again(recording, stream=True) if chunk.delta]
    assert "".join(pieces) == "word " * 1000
    assert max(map(len, pieces)) <= LONGEST_PIECE


def test_nothing_that_was_recorded_is_changed() -> None:
    chunks = [text("a"), text("b"), Chunk(delta={}, finish_reason="stop")]
    recording = said(*chunks)
    again(recording, stream=True)
    assert [chunk.delta for chunk in chunks] == [{"content": "a"}, {"content": "b"}, {}]


def test_what_a_stage_above_writes_into_a_chunk_is_not_recorded() -> None:
    chunk = text("[EMAIL_1]")
    recording = said(chunk, Chunk(delta={}, finish_reason="stop"))
    chunk.delta = {"content": "jane@example.com"}
    assert again(recording, stream=False)[0].delta == {"content": "[EMAIL_1]"}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["content", "reasoning_content", "refusal", "role", "other"]),
            st.text(max_size=5),
            st.integers(0, 1),
        ),
        max_size=30,
    ),
    st.booleans(),
)
def test_any_answer_comes_out_as_it_went_in(pieces: list[tuple[str, str, int]], stream: bool) -> None:
    chunks = [Chunk(index=index, delta={name: value}) for name, value, index in pieces]
    chunks += [Chunk(index=index, delta={}, finish_reason="stop") for index in (0, 1)]
    dialect, call = DIALECTS["chat"], a_call(stream=False)
    recording = said(*chunks)
    assert whole(dialect, call, again(recording, stream=stream)) == whole(dialect, call, chunks)
    # So do the pieces that somebody gets who comes in at any point, with those that follow.
    for at in range(len(chunks) + 1):
        late = [*said(*chunks[:at]).chunks(), *chunks[at:]]
        assert whole(dialect, call, late) == whole(dialect, call, chunks)


@pytest.mark.parametrize(
    ("chunks", "n", "good"),
    [
        ([text("a"), Chunk(delta={}, finish_reason="stop")], 1, True),
        ([text("a"), Chunk(delta={}, finish_reason="length")], 1, True),
        ([text("a")], 1, False),
        ([], 1, False),
        ([text("a"), Chunk(delta={}, finish_reason="content_filter")], 1, False),
        ([text("a"), Chunk(delta={}, finish_reason="eos_token")], 1, True),
        ([text("a"), Chunk(delta={}, finish_reason="abort")], 1, False),
        ([text("a"), Chunk(delta={}, finish_reason="error")], 1, False),
        ([text("a"), Chunk(delta={}, finish_reason="stop", revocation={"revoked": True})], 1, False),
        ([text("a", finish_reason="stop")], 2, False),
        ([text("a", finish_reason="stop"), Chunk(index=1, delta={"content": "b"})], 2, False),
        (CHOICES, 2, True),
        (CHOICES[:-1], 2, False),
    ],
)
def test_what_is_whole(chunks: list[Chunk], n: int, good: bool) -> None:
    assert said(*chunks).is_whole(a_call(n=n).request) is good


def test_the_probabilities_of_a_long_answer_are_joined_in_time_that_grows_with_it_only() -> None:
    chunks = [text("a", logprobs={"content": [i], "refusal": None}) for i in range(20_000)]
    recording = said(*chunks, Chunk(delta={}, logprobs={"content": None, "refusal": None}))
    began = time.process_time()
    (chunk,) = recording.chunks()
    assert time.process_time() - began < 0.5  # 10 ms, and seconds where the list is written anew for each
    assert chunk.logprobs == {"content": list(range(20_000)), "refusal": None}
    assert chunks[0].logprobs == {"content": [0], "refusal": None}


def test_choices_of_several_prompts_and_embeddings() -> None:
    each = [Chunk(index=i, delta={"content": "x"}, finish_reason="stop") for i in range(4)]
    assert said(*each).is_whole(a_call(prompt=["a", "b"], n=2).request)
    assert not said(*each).is_whole(a_call(prompt=[1, 2], n=2).request)
    vectors = [
        Chunk(index=i, delta={"embedding": [0.1]}, finish_reason="stop", more=i == 0) for i in range(2)
    ]
    assert said(*vectors).is_whole(a_call(prompt=["a", "b"], embeds=True).request)
    assert [chunk.delta for chunk in again(said(*vectors), stream=False)] == [{"embedding": [0.1]}] * 2


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"[1,[],null,[]]", b"[1,[1,2,3],null,[[1]]]", b"\xff"])
def test_what_is_no_answer(data: bytes) -> None:
    assert unpack(data) is None


def test_native_fields_of_the_beginning_and_of_the_end_are_both_kept() -> None:
    head = {"message": {"container": None}, "usage": {"input_tokens": 3}}
    recording = said(
        Chunk(delta={"role": "assistant", "content": "a"}, envelope={"native": head}),
        Chunk(delta={}, finish_reason="stop", envelope={"native": {"delta": {"stop_reason": "end_turn"}}}),
    )
    (chunk,) = recording.chunks()
    assert chunk.envelope == {"native": {**head, "delta": {"stop_reason": "end_turn"}}}
