"""What we write, as Anthropic's own SDK reads it over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import anthropic
import orjson
import pytest

from gateway.errors import Overloaded, RateLimited, UnknownModel
from gateway.types import Chunk, Usage
from gateway.wire.anthropic.body_to_request import read_request
from gateway.wire.anthropic.chunks_to_events import AnthropicEventWriter
from gateway.wire.anthropic.chunks_to_message import AnthropicBodyWriter
from gateway.wire.anthropic.errors import error_body
from tests.fakes import FakeUpstream, a_call, reply, stream

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {
    "model": "m",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hi"}],
}
CHUNKS = [
    Chunk(delta={"role": "assistant", "reasoning_content": "Hm."}),
    Chunk(delta={"content": "I'll "}),
    Chunk(delta={"content": "look."}),
    Chunk(
        delta={
            "tool_calls": [
                {
                    "index": 0,
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": ""},
                }
            ]
        }
    ),
    Chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": '{"location": "Par'}}]}),
    Chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": 'is"}'}}]}),
    Chunk(delta={}, finish_reason="tool_calls"),
    Chunk(usage=Usage(prompt=20, completion=9, cached=12)),
]


@pytest.fixture
async def client(upstream: FakeUpstream) -> AsyncIterator[anthropic.AsyncAnthropic]:
    base_url = upstream.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="tg-key", max_retries=0) as client:
        yield client


def as_events(chunks: Sequence[Chunk]) -> list[bytes]:
    events = AnthropicEventWriter(a_call(request_id="req_1"))
    return [events.comment("3rd in line"), *filter(None, map(events.event, chunks)), events.end()]


def check(message: anthropic.types.Message) -> None:
    assert [block.to_dict() for block in message.content] == [
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "I'll look.", "citations": None},
        {
            "type": "tool_use",
            "id": "toolu_1",
            "name": "get_weather",
            "input": {"location": "Paris"},
            "caller": {"type": "direct"},
        },
    ]
    assert (message.id, message.model, message.stop_reason) == ("msg_req_1", "m", "tool_use")
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (8, 12, 9)


async def test_a_stream(upstream: FakeUpstream, client: anthropic.AsyncAnthropic) -> None:
    upstream.scripts = [stream(*as_events(CHUNKS))]
    async with client.messages.stream(**ASK) as answer:
        assert [text async for text in answer.text_stream] == ["I'll ", "look."]
        check(await answer.get_final_message())
    [asked] = upstream.requests
    assert asked.path == "/v1/messages"
    assert asked.headers["authorization"] == "Bearer tg-key"
    request = read_request(asked.body)
    assert (request.stream, request.messages) == (True, ({"role": "user", "content": "Hi"},))


async def test_a_whole_message(upstream: FakeUpstream, client: anthropic.AsyncAnthropic) -> None:
    whole = AnthropicBodyWriter(a_call(request_id="req_1"))
    for chunk in CHUNKS:
        whole.add(chunk)
    upstream.scripts = [reply(whole.body())]
    message = await client.messages.create(**ASK)
    check(message)
    # And what the SDK makes of it for the next turn is what we read.
    history = [*ASK["messages"], message.to_param()]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "15 degrees"}
    await client.messages.create(
        **{**ASK, "messages": [*history, {"role": "user", "content": [result]}]},
        tools=[{"name": "get_weather", "input_schema": {"type": "object"}}],
    )
    assert read_request(upstream.requests[1].body).messages == (
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "I'll look.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"location":"Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "15 degrees"},
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnknownModel("There is no such model.", param="model"), anthropic.NotFoundError),
        (RateLimited("Too many."), anthropic.RateLimitError),
        (Overloaded("Too busy."), anthropic.InternalServerError),
    ],
)
async def test_errors(
    upstream: FakeUpstream,
    client: anthropic.AsyncAnthropic,
    error: Any,
    kind: type[anthropic.APIStatusError],
) -> None:
    upstream.scripts = [reply(error_body(error, "req_1"), status=error.status)]
    with pytest.raises(kind) as caught:
        await client.messages.create(**ASK)
    assert caught.value.status_code == error.status
    assert caught.value.body == orjson.loads(error_body(error, "req_1"))


async def test_an_error_within_a_stream(upstream: FakeUpstream, client: anthropic.AsyncAnthropic) -> None:
    events = AnthropicEventWriter(a_call())
    upstream.scripts = [stream(events.event(CHUNKS[1]), events.error(Overloaded("Too busy.")))]
    said = []
    with pytest.raises(anthropic.APIStatusError, match="Too busy"):
        async with client.messages.stream(**ASK) as answer:
            async for text in answer.text_stream:
                said.append(text)  # noqa: PERF401
    assert said == ["I'll "]
