"""Answers collected from streams: the same as if they had come whole, and in as little room."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.backends.stream_collector import CollectedAnswer, StreamCollector
from gateway.types import Call, ChatRequest, Chunk, Chunks, Usage
from gateway.wire.openai.dialect import CHAT
from tests.fakes import a_call

pytestmark = pytest.mark.anyio

WRITTEN = {"first_token": "1s"}


def body(chunks: Iterator[Chunk] | list[Chunk]) -> dict[str, Any]:
    whole = CHAT.body_writer(a_call())
    for chunk in chunks:
        whole.add(chunk)
    told = {**orjson.loads(whole.body()), "created": 0}
    for message in (choice["message"] for choice in told["choices"]):
        if not message["content"] and (message.get("tool_calls") or message["refusal"]):
            message["content"] = None
    return told


def copies(chunks: list[Chunk]) -> list[Chunk]:
    """Joining changes what it is given."""
    return [
        Chunk(
            one.index,
            orjson.loads(orjson.dumps(one.delta)),
            one.finish_reason,
            logprobs=orjson.loads(orjson.dumps(one.logprobs)),
            usage=one.usage,
            envelope=dict(one.envelope),
        )
        for one in chunks
    ]


words = st.sampled_from(["", "a", " b", "ß", "\n"])
tool = st.fixed_dictionaries(
    {"index": st.integers(0, 1), "function": st.fixed_dictionaries({"arguments": words})}
)
named = st.fixed_dictionaries(
    {
        "index": st.integers(0, 1),
        "id": words,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": words, "arguments": words}),
    }
)
deltas = st.one_of(
    st.none(),
    st.fixed_dictionaries({}, optional={"role": st.just("assistant"), "content": words, "x": words}),
    st.fixed_dictionaries({"content": words | st.none()}),
    st.fixed_dictionaries({"reasoning_content": words}),
    st.fixed_dictionaries({"refusal": words}),
    st.fixed_dictionaries({"tool_calls": st.lists(tool | named, min_size=1, max_size=2)}),
)
logprobs = st.none() | st.builds(
    lambda value: {"content": [{"token": "a", "logprob": value}], "refusal": None}, st.floats(-9, 0)
)
pieces = st.builds(
    Chunk,
    index=st.integers(0, 1),
    delta=deltas,
    logprobs=logprobs,
    finish_reason=st.sampled_from([None, None, None, "stop"]),
    usage=st.none() | st.builds(Usage, st.integers(0, 9), st.integers(0, 9)),
    envelope=st.sampled_from([{}, {"id": "x", "created": 1}, {"id": "x", "created": 1, "timings": {"n": 1}}]),
)


@given(chunks=st.lists(pieces, max_size=12))
def test_the_answer_is_the_same(chunks: list[Chunk]) -> None:
    answer = CollectedAnswer("up")
    answer.add(copies(chunks))
    given = answer.chunks()
    assert body(copies(given)) == body(copies(chunks))
    assert [chunk.more for chunk in given] == [True] * (len(given) - 1) + [False] * bool(given)
    assert [chunk.usage for chunk in given if chunk.usage] == [answer.usage] * bool(answer.usage and given)


def test_ten_thousand_pieces_are_a_few() -> None:
    answer = CollectedAnswer("up")
    for number in range(10_000):
        kind = "reasoning_content" if number < 5_000 else "content"
        answer.add([Chunk(delta={kind: "x"}, envelope={"id": "1"}, usage=Usage(1, number))])
    for _ in range(10_000):
        answer.add([Chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": "1"}}]})])
    answer.add([Chunk(delta={}, finish_reason="stop")])
    chunks = answer.chunks()
    assert len(chunks) == 3
    assert chunks[-1].usage == Usage(1, 9_999)


@pytest.mark.parametrize(
    ("applies", "timeouts", "request_"),
    [
        (True, {"first_token": "1s"}, {}),
        (True, {"idle": "1s"}, {"prompt": "x"}),
        (False, {"total": "1s"}, {}),
        (False, WRITTEN, {"stream": True}),
        (False, WRITTEN, {"prompt": ["x"], "embeds": True}),
        (False, WRITTEN, {"prompt": "x", "params": {"best_of": 2}}),
        (False, WRITTEN, {"params": {"modalities": ["text", "audio"], "audio": {"format": "wav"}}}),
        (True, WRITTEN, {"params": {"modalities": ["text"]}}),
    ],
)
def test_when_a_stream_is_asked_for(
    applies: bool, timeouts: dict[str, str], request_: dict[str, Any]
) -> None:
    call = a_call(timeouts=timeouts, **{"stream": False, **request_})
    assert StreamCollector("up", enabled=True).applies(call, call.request, "m") is applies
    assert not StreamCollector("up", enabled=False).applies(call, call.request, "m")


class Server:
    """Refuses streams with ``error``; without one they do not tell the usage."""

    def __init__(self, error: errors.GatewayError | None = None) -> None:
        self.error = error
        self.asked: list[bool] = []

    async def __call__(self, request: ChatRequest) -> Chunks:
        self.asked.append(request.stream)
        if self.error is not None and request.stream:
            raise self.error
        yield Chunk(
            delta={"content": "Hi"}, finish_reason="stop", usage=None if request.stream else Usage(1, 1)
        )


async def twice(server: Server) -> tuple[Call, list[Chunk]]:
    collecting, call = StreamCollector("up", enabled=True), a_call(timeouts=WRITTEN, stream=False)
    for _ in range(2):
        if collecting.applies(call, call.request, "m"):
            chunks = [chunk async for chunk in collecting.ask(call.request, "m", server)]
    return call, chunks


def rejected(message: str, param: str | None = None) -> errors.Rejected:
    return errors.Rejected(message, status=400, type=None, param=param, code="unsupported_value")


@pytest.mark.parametrize(
    "error",
    [
        rejected("Your organization must be verified to stream this model.", "stream"),
        rejected("Extra inputs are not permitted", "stream_options"),
        rejected("streaming is not supported here"),
    ],
)
async def test_a_server_that_does_not_stream_is_asked_for_the_whole_then_and_later(
    error: errors.GatewayError,
) -> None:
    server = Server(error)
    _, chunks = await twice(server)
    assert server.asked == [True, False]
    assert chunks[-1].usage == Usage(1, 1)


async def test_one_whose_streams_tell_no_usage_is_asked_for_the_whole_later() -> None:
    server = Server()
    await twice(server)
    assert server.asked == [True]


@pytest.mark.parametrize("error", [rejected("no such field: seed", "seed"), errors.UpstreamTimeout("late")])
async def test_other_errors_are_errors(error: errors.GatewayError) -> None:
    server = Server(error)
    with pytest.raises(type(error)):
        await twice(server)
    assert server.asked == [True]


@pytest.mark.parametrize(
    "piece",
    [
        Chunk(delta={"content": "x" * 2**20}),
        Chunk(delta={"content": ""}, logprobs={"content": [{"token": "x" * 2**20}]}),
        Chunk(delta={"x": "x" * 2**20}),
        Chunk(usage=Usage(1, 1), envelope={"x": "x" * 2**20}),
    ],
    ids=["text", "logprobs", "other", "news"],
)
async def test_it_holds_no_more_than_a_whole_answer_may_have(piece: Chunk) -> None:
    async def endless(request: ChatRequest) -> Chunks:
        for number in itertools.count():
            yield replace(piece, envelope={f"x{number}": text for text in piece.envelope.values()})

    collecting, call = StreamCollector("up", enabled=True), a_call(timeouts=WRITTEN, stream=False)
    with pytest.raises(errors.UpstreamFailed, match="over 67108864 bytes"):
        async for _ in collecting.ask(call.request, "m", endless):
            pass


async def test_what_had_come_of_an_answer_that_breaks_off_is_told_to_who_counts() -> None:
    async def breaks_off(request: ChatRequest) -> Chunks:
        for _ in range(1000):
            yield Chunk(delta={"content": "word "})
        raise errors.UpstreamTimeout("silent")

    collecting, call = StreamCollector("up", enabled=True), a_call(timeouts=WRITTEN, stream=False)
    with pytest.raises(errors.UpstreamTimeout) as caught:
        async for _ in collecting.ask(call.request, "m", breaks_off):
            pass
    assert body(copies([*caught.value.unread]))["choices"][0]["message"]["content"] == "word " * 1000
