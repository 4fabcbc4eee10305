"""How much an answer may hold: each bound at its border, in both dialects, whole and streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import orjson
import pytest

from gateway import fair_turns
from gateway.backends import answer_limits, exchange
from gateway.backends.answer_limits import A_CHOICE, LOGPROBS, AnswerLimits, _values
from gateway.backends.anthropic import AnthropicBackend
from gateway.backends.openai import OpenAIBackend
from gateway.errors import UpstreamFailed
from gateway.policy.schema.limits import RequestLimits
from gateway.types import Backend, Chunk
from tests.fakes import (
    DONE,
    TARGET,
    USAGE,
    FakeUpstream,
    Script,
    a_call,
    answer_events,
    completion,
    delta,
    policy,
    reply,
    sse,
    stream,
)

pytestmark = pytest.mark.anyio

CHOICE = completion()["choices"][0]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BLOCK = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


@pytest.fixture
async def openai(upstream: FakeUpstream) -> AsyncIterator[Backend]:
    backend = OpenAIBackend("up", base_url=upstream.base_url, probe_url=upstream.base_url + "/models")
    yield backend
    await backend.aclose()


@pytest.fixture
async def anthropic(upstream: FakeUpstream) -> AsyncIterator[Backend]:
    backend = AnthropicBackend("up", base_url=upstream.base_url.removesuffix("/v1"), max_tokens=10)
    yield backend
    await backend.aclose()


async def ask(backend: Backend, limits: dict[str, int] | None = None, **request: Any) -> list[Chunk]:
    call = a_call(policy_=policy(limits=limits or {}), **request)
    async with aclosing(backend.stream(call, TARGET)) as chunks:
        return [chunk async for chunk in chunks]


async def refused(backend: Backend, limits: dict[str, int] | None = None, **request: Any) -> str:
    """What is told of an answer that holds too much."""
    with pytest.raises(UpstreamFailed) as caught:
        await ask(backend, limits, **request)
    assert (caught.value.code, caught.value.retryable) == ("upstream_malformed", True)
    assert caught.value.message.startswith("Backend 'up' sent ")
    return caught.value.message


def choices(count: int) -> Script:
    return reply(completion(choices=[{**CHOICE, "index": index} for index in range(count)]))


def streamed_choices(count: int) -> Script:
    events = [delta("a", index=index) for index in range(count)]
    return stream(
        *map(sse, events), *(sse(delta(index=index, finish="stop")) for index in range(count)), DONE
    )


def choices_of_one_event(count: int) -> Script:
    together = {
        **delta(),
        "choices": [{**delta("a", finish="stop")["choices"][0], "index": index} for index in range(count)],
    }
    return stream(sse(together), DONE)


@pytest.mark.parametrize("script", [choices, streamed_choices, choices_of_one_event])
@pytest.mark.parametrize(("n", "prompts"), [(1, 1), (3, 1), (2, 2)])
async def test_no_more_choices_than_were_asked_for(
    upstream: FakeUpstream, openai: Backend, script: Any, n: int, prompts: int
) -> None:
    asked: dict[str, Any] = {"n": n, "stream": script is not choices}
    if prompts > 1:
        asked["prompt"] = ["Once"] * prompts
    upstream.scripts = [script(n * prompts)]
    assert {chunk.index for chunk in await ask(openai, **asked)} == set(range(n * prompts))
    upstream.scripts = [script(n * prompts + 1)]
    told = await refused(openai, **asked)
    assert f"more answers than the {n * prompts} that it was asked for" in told
    assert "ask another model" in told


async def test_one_event_does_not_speak_twice_for_a_choice(upstream: FakeUpstream, openai: Backend) -> None:
    """Each would be a chunk on its way through all stages, as many as fit into an event."""
    upstream.scripts = [stream(sse({**delta(), "choices": delta("a")["choices"] * 2}), DONE)]
    assert "more answers than the 1" in await refused(openai)


async def test_a_choice_may_have_any_number(upstream: FakeUpstream, openai: Backend) -> None:
    upstream.scripts = [stream(sse(delta("a", index=7)), sse(delta(index=7, finish="stop")), DONE)]
    assert [chunk.index for chunk in await ask(openai)] == [7, 7]


async def test_no_more_vectors_than_texts(upstream: FakeUpstream, openai: Backend) -> None:
    vectors = [{"index": index, "embedding": [0.5, 1.0]} for index in range(3)]
    asked: dict[str, Any] = {"embeds": True, "stream": False}
    upstream.scripts = [reply({"data": vectors, "usage": USAGE})]
    assert len(await ask(openai, prompt=["a", "b", "c"], **asked)) == 3
    assert "more answers than the 2" in await refused(openai, prompt=["a", "b"], **asked)
    assert "more answers than the 1" in await refused(openai, prompt=[1, 2, 3], **asked)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            lambda count: reply(
                completion(
                    choices=[{**CHOICE, "message": {"role": "assistant", "tool_calls": [CALL] * count}}]
                )
            ),
            id="calls",
        ),
        pytest.param(
            lambda count: reply(
                completion(
                    choices=[{**CHOICE, "message": {"content": [{"type": "text", "text": "a"}] * count}}]
                )
            ),
            id="parts",
        ),
        pytest.param(
            lambda count: stream(
                *(sse(delta(tool_calls=[{**CALL, "index": index}])) for index in range(count)),
                sse(delta(finish="tool_calls")),
                DONE,
            ),
            id="streamed calls",
        ),
        pytest.param(
            lambda count: stream(
                sse(delta(tool_calls=[{**CALL, "index": 0}] * count)), sse(delta(finish="tool_calls")), DONE
            ),
            id="calls of one event",
        ),
    ],
)
async def test_calls_and_parts(upstream: FakeUpstream, openai: Backend, script: Any) -> None:
    streamed = b"event-stream" in script(1)[0]
    upstream.scripts = [script(5)]
    assert await ask(openai, {"answer_parts": 5}, stream=streamed)
    told = await refused(openai, {"answer_parts": 4}, stream=streamed)
    assert "more than 4 tool calls or parts" in told
    assert "raise 'limits.answer_parts'" in told


@pytest.mark.parametrize("streamed", [False, True])
async def test_blocks_of_a_message(upstream: FakeUpstream, anthropic: Backend, streamed: bool) -> None:
    events = [
        {"type": "message_start", "message": {**MESSAGE, "content": []}},
        *({"type": "content_block_start", "index": index, "content_block": BLOCK} for index in range(5)),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    whole = reply({**MESSAGE, "content": [BLOCK] * 5})
    upstream.scripts = [stream(*map(sse, events)) if streamed else whole]
    calls = [
        call
        for chunk in await ask(anthropic, {"answer_parts": 5}, stream=streamed)
        for call in (chunk.delta or {}).get("tool_calls") or ()
        if "id" in call
    ]
    assert len(calls) == 5
    assert "more than 4 tool calls or parts" in await refused(anthropic, {"answer_parts": 4}, stream=streamed)


@pytest.mark.parametrize("value", [{}, [], "a", [[]], {"a": "b"}, [1, 2, 3, 4]])
async def test_values_are_counted_before_they_are_parsed(
    upstream: FakeUpstream, openai: Backend, anthropic: Backend, value: Any
) -> None:
    many = [value] * 200
    upstream.scripts = [reply(completion(unknown=many))]
    assert f"more than {100 + A_CHOICE} values" in await refused(openai, {"answer_values": 100}, stream=False)
    assert await ask(openai, {"answer_values": 1000}, stream=False)
    upstream.scripts = [reply({**MESSAGE, "content": [{"type": "text", "text": "a"}], "unknown": many})]
    assert "raise 'limits.answer_values'" in await refused(anthropic, {"answer_values": 100}, stream=False)
    assert await ask(anthropic, {"answer_values": 1000}, stream=False)


async def test_values_of_one_event(upstream: FakeUpstream, openai: Backend, anthropic: Backend) -> None:
    many = [{"a": "b"}] * 2000
    upstream.scripts = [stream(sse({**delta("a"), "unknown": many}), *answer_events("b"))]
    assert f"an event of more than {100 + A_CHOICE} values" in await refused(openai, {"answer_values": 100})
    assert await ask(openai, {"answer_values": 100_000})
    upstream.scripts = [stream(sse({"type": "ping", "unknown": many}))]
    assert f"an event of more than {100 + A_CHOICE} values" in await refused(
        anthropic, {"answer_values": 100}
    )


async def test_logprobs_that_were_asked_for_are_many(upstream: FakeUpstream, openai: Backend) -> None:
    one = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
    upstream.scripts = [reply(completion(choices=[{**CHOICE, "logprobs": {"content": [one] * 100}}]))]
    count = _values(orjson.dumps([one] * 100))
    limits = {"answer_values": count // LOGPROBS + 10}
    assert await ask(openai, limits, stream=False, params={"logprobs": True})
    await refused(openai, limits, stream=False, params={"logprobs": False})


def test_what_real_answers_hold_is_far_from_the_bounds() -> None:
    """16,000 tokens with the twenty likeliest of each, and 2,048 vectors of 3,072 numbers."""
    likely = {"token": "abcd", "logprob": -1.234, "bytes": [97, 98, 99, 100]}
    tokens = orjson.dumps([{**likely, "top_logprobs": [likely] * 20}] * 100)
    call = a_call(params={"logprobs": True, "top_logprobs": 20})
    volume = AnswerLimits("up", call.request, RequestLimits())
    for _ in range(120):
        volume.read(tokens)
    volume = AnswerLimits("up", a_call(prompt=["a"] * 2048, embeds=True).request, RequestLimits())
    volume._size = -(2**40)  # bytes are another matter
    vector = orjson.dumps({"index": 0, "embedding": [0.5] * 3072})
    for _ in range(2048):
        volume.read(vector)


async def test_a_stream_has_an_end(
    upstream: FakeUpstream, openai: Backend, anthropic: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_limits, "MAX_STREAM", 1000)
    event = sse(delta("a" * 100))
    size = len(event) - len(b"data: \n\n")
    upstream.scripts = [stream(*[event] * (1000 // size), b"data: [DONE]\n\n")]
    assert await ask(openai)
    upstream.scripts = [stream(*[event] * (1000 // size + 1), b"data: [DONE]\n\n")]
    with pytest.raises(UpstreamFailed, match="Backend 'up' streamed an answer of over 1000 bytes"):
        await ask(openai)
    assert await ask(openai, n=2)
    assert await ask(openai, params={"logprobs": True})
    upstream.scripts = [stream(*[sse({"type": "ping"})] * 100)]
    with pytest.raises(UpstreamFailed, match="of over 1000 bytes"):
        await ask(anthropic)


EMPTY = {
    "comments": b": waiting\n\n",
    "blank lines": b"\n\n",
    "deltas": sse(delta("")),
    "roles": sse(delta(role="assistant")),
    "nonsense": b"data: {}\n\n",
    "no choices": sse({**delta(), "choices": []}),
}


@pytest.mark.parametrize("empty", EMPTY.values(), ids=EMPTY.keys())
async def test_events_without_content(upstream: FakeUpstream, openai: Backend, empty: bytes) -> None:
    upstream.scripts = [stream(empty * 10, *answer_events("Hello")[1:])]
    assert await ask(openai, {"empty_events": 10})
    upstream.scripts = [stream(empty * 11, *answer_events("Hello")[1:])]
    told = await refused(openai, {"empty_events": 10})
    assert "more than 10 events without content" in told
    assert "raise 'limits.empty_events'" in told


@pytest.mark.parametrize("empty", [b": waiting\n\n", sse({"type": "ping"}), b"data: {}\n\n"])
async def test_messages_without_content(upstream: FakeUpstream, anthropic: Backend, empty: bytes) -> None:
    upstream.scripts = [stream(empty * 11)]
    assert "more than 10 events without content" in await refused(anthropic, {"empty_events": 10})


async def test_what_came_before_is_passed_on(upstream: FakeUpstream, openai: Backend) -> None:
    upstream.scripts = [stream(sse(delta("Hello")), b"\n\n" * 11)]
    call = a_call(policy_=policy(limits={"empty_events": 10}))
    async with aclosing(openai.stream(call, TARGET)) as chunks:
        assert (await anext(chunks)).delta == {"content": "Hello"}
        with pytest.raises(UpstreamFailed, match="events without content"):
            await anext(chunks)


@pytest.mark.parametrize("flood", [b"data: {}\n\n", b":\n\n", sse(delta("a"))])
async def test_others_have_their_turn_while_much_is_read(
    upstream: FakeUpstream, openai: Backend, monkeypatch: pytest.MonkeyPatch, flood: bytes
) -> None:
    """By rounds of the loop, not by time."""
    monkeypatch.setattr(fair_turns, "TURN", -1.0)
    size = 2**18
    upstream.scripts = [stream(flood * (size // len(flood)), *answer_events("end"))]
    rounds, done = 0, False

    async def count() -> None:
        nonlocal rounds
        while not done:
            rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await ask(openai)
    done = True
    await counting
    assert rounds >= size // exchange.PIECE


async def test_chunks_of_a_whole_answer_take_turns_too(
    upstream: FakeUpstream, openai: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_turns, "TURN", -1.0)
    upstream.scripts = [choices(100)]
    loop, rounds = asyncio.get_running_loop(), 0

    def another() -> None:
        nonlocal rounds
        rounds += 1

    async with aclosing(openai.stream(a_call(stream=False, n=100), TARGET)) as chunks:
        async for _ in chunks:
            loop.call_soon(another)
    assert rounds == 100


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize("streamed", [False, True])
async def test_no_answer_is_nested_so_deep_that_nobody_can_walk_through_it(
    upstream: FakeUpstream, openai: Backend, streamed: bool
) -> None:
    def answer(levels: int) -> Script:
        # The answer, its choices, the choice, and its message lie around it.
        odd = nested(levels - 4)
        if streamed:
            event = json.dumps(delta("Hi", odd=odd)).encode()  # orjson writes no more than 254 levels
            return stream(sse(event), sse(delta(finish="stop")), DONE)
        message = {**CHOICE["message"], "odd": odd}
        return reply(json.dumps(completion(choices=[{**CHOICE, "message": message}])))

    upstream.scripts = [answer(250)]
    assert await ask(openai, stream=streamed)
    for levels in (251, 900):
        upstream.scripts = [answer(levels)]
        assert "nested more than 250 levels" in await refused(openai, stream=streamed)


async def test_no_message_of_anthropics_is_nested_so_deep(upstream: FakeUpstream, anthropic: Backend) -> None:
    # The message, its content, and the block lie around it.
    upstream.scripts = [reply({**MESSAGE, "content": [{**BLOCK, "input": nested(248)}]})]
    assert "nested more than 250 levels" in await refused(anthropic, stream=False)
