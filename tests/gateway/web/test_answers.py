"""Answers as a client gets them: with the official SDK, by hand, slowly, and not to the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
from openai import APIError, AsyncOpenAI, OpenAI

from gateway.server.connection import Connection
from tests.fakes import (
    DONE,
    USAGE,
    Action,
    FakeUpstream,
    answer_events,
    completion,
    delta,
    reply,
    sse,
    stream,
    usage_event,
    within,
)
from tests.serving import KEY, Gateway, RawConnection, a_policy, chat, request, serving

pytestmark = pytest.mark.anyio

ASK: Any = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def client(gateway: Gateway) -> AsyncOpenAI:
    http = httpx.AsyncClient(verify=False, trust_env=False)
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0, http_client=http)


# The official SDK


async def test_sdk_whole(client: AsyncOpenAI) -> None:
    async with client:
        answer = await client.chat.completions.create(model="fake", **ASK)
    assert answer.choices[0].message.content == "one two three"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "fake"
    assert answer.object == "chat.completion"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        1,
        3,
        4,
    )


async def test_sdk_stream(client: AsyncOpenAI) -> None:
    async with client:
        options: Any = {"include_usage": True}
        events = await client.chat.completions.create(
            model="fake", stream=True, stream_options=options, **ASK
        )
        chunks = [chunk async for chunk in events]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "one two three"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 4
    assert len({chunk.id for chunk in chunks}) == 1


async def test_sdk_in_threads(gateway: Gateway) -> None:
    def talk() -> tuple[str, str, str]:
        http = httpx.Client(verify=False, trust_env=False)
        with OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0, http_client=http) as client:
            whole = client.chat.completions.create(model="fake", **ASK).choices[0].message.content
            events = client.chat.completions.create(model="fake", stream=True, **ASK)
            streamed = "".join(event.choices[0].delta.content or "" for event in events)
            raw = client.completions.create(model="fake", prompt="Once").choices[0].text
            return whole or "", streamed, raw

    assert await asyncio.to_thread(talk) == ("one two three",) * 3


async def test_sdk_raw_completions(client: AsyncOpenAI) -> None:
    async with client:
        whole = await client.completions.create(model="fake", prompt="Once", n=2, max_tokens=2)
        assert [choice.text for choice in whole.choices] == ["one two", "one two"]
        assert whole.choices[0].finish_reason == "length"
        assert whole.object == "text_completion"
        events = await client.completions.create(model="fake", prompt="Once", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in events]) == "one two three"


async def test_sdk_errors(client: AsyncOpenAI) -> None:
    async with client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="fake", temperature=9, **ASK)
        assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.chat.completions.create(model="nonsense", **ASK)
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="tg-wrong").models.list()
        with pytest.raises(openai.InternalServerError, match="the script says no"):
            await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "fail"}])


async def test_sdk_sees_a_cut_stream_as_an_error(client: AsyncOpenAI) -> None:
    messages: Any = [{"role": "user", "content": "cut"}]
    heard = ""
    async with client:
        events = await client.chat.completions.create(model="fake", stream=True, messages=messages)
        with pytest.raises(APIError, match="broke off"):
            async for event in events:
                heard += event.choices[0].delta.content or ""
        assert heard == "one two"
        with pytest.raises(openai.InternalServerError) as whole:
            await client.chat.completions.create(model="fake", messages=messages)
        assert (whole.value.status_code, whole.value.code) == (502, "upstream_cut")


async def test_sdk_tools_and_logprobs_pass_through(client: AsyncOpenAI, upstream: FakeUpstream) -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x"'}}
    more = {"index": 0, "function": {"arguments": ": 1}"}}
    final = delta(finish="tool_calls")
    final["choices"][0]["logprobs"] = {
        "content": [{"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}]
    }
    upstream.scripts = [stream(*map(sse, (delta(tool_calls=[call]), delta(tool_calls=[more]), final)), DONE)]
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    async with client:
        answer = await client.chat.completions.create(model="up", tools=tools, logprobs=True, seed=7, **ASK)
    assert answer.choices[0].message.tool_calls is not None
    [got] = answer.choices[0].message.tool_calls
    assert (got.id, got.function.name, got.function.arguments) == ("call_1", "f", '{"x": 1}')  # type: ignore[union-attr]
    assert answer.choices[0].logprobs is not None
    assert upstream.requests[0].json() == {
        **ASK,
        "model": "upstream-model",
        "stream": False,
        "tools": tools,
        "logprobs": True,
        "seed": 7,
    }


# What the wire carries


async def test_the_headers_of_answers(gateway: Gateway) -> None:
    whole = await gateway.http.post("/v1/chat/completions", json=chat())
    assert whole.headers["x-tollgate-model"] == "fake"
    assert whole.headers["content-type"] == "application/json"
    streamed = await gateway.http.post("/v1/chat/completions", json=chat(stream=True))
    assert streamed.headers["x-tollgate-model"] == "fake"
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert streamed.headers["cache-control"] == "no-cache"
    assert streamed.headers["x-request-id"].startswith("req_")


async def test_nothing_of_the_client_reaches_the_upstream_but_its_request(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    response = await gateway.http.post(
        "/v1/chat/completions",
        json=chat("up", user="ann"),
        headers={"x-secret": "s", "cookie": "a=b", "openai-organization": "org", "traceparent": trace},
    )
    [received] = upstream.requests
    assert set(received.headers) == {
        "host",
        "accept-encoding",
        "user-agent",
        "authorization",
        "content-type",
        "content-length",
        "traceparent",
        "x-request-id",
    }
    assert received.headers["authorization"] == "Bearer sk-upstream-secret"
    assert received.headers["x-request-id"] == response.headers["x-request-id"]
    assert received.headers["traceparent"].startswith(trace[:36])
    assert received.headers["traceparent"] != trace
    assert received.json()["user"] == "ann"
    assert KEY.encode() not in received.body + repr(received.headers).encode()


async def test_chunks_are_relayed_as_they_come(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [stream(sse(delta("first")), 0.4, *answer_events("last"))]
    async with RawConnection(gateway.port) as wire:
        wire.post(chat("up", stream=True))
        async with within(0.3):
            await wire.head()
            chunks = wire.chunks()
            assert b'"first"' in await anext(chunks)
        rest = b"".join([chunk async for chunk in chunks])
    assert b'"last"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_an_error_before_the_first_chunk_is_an_http_error(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.scripts = [
        reply("", status=429, headers={"retry-after": "7"}),
        stream(sse({"error": {"message": "no luck"}})),
        stream(DONE),
    ]
    first, second, third = [
        await gateway.http.post("/v1/chat/completions", json=chat("up", stream=True)) for _ in range(3)
    ]
    assert (first.status_code, first.headers["retry-after"]) == (429, "7")
    assert first.json()["error"]["type"] == "rate_limit_error"
    assert (second.status_code, third.status_code) == (502, 502)
    assert "no luck" in second.json()["error"]["message"]


async def test_an_error_after_the_first_chunk_is_an_event_and_no_done(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.scripts = [(*stream(sse(delta("Hel")), whole=False), Action.CLOSE)]
    async with RawConnection(gateway.port) as wire:
        wire.post(chat("up", stream=True))
        answer = await wire.answer()
        assert answer.status == 200
        *_, last = answer.body.removesuffix(b"\n\n").split(b"\n\n")
        assert orjson.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_cut"
        assert b"[DONE]" not in answer.body
        wire.post(chat())
        assert (await wire.answer()).status == 200, "the client's connection is none the worse"


async def test_nobody_at_the_backend(gateway: Gateway) -> None:
    response = await gateway.http.post("/v1/chat/completions", json=chat("down"))
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "upstream_unavailable"


# Clients that leave, and slow ones


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
async def test_hanging_up_before_the_first_token_stops_the_upstream(
    gateway: Gateway, upstream: FakeUpstream, streamed: bool
) -> None:
    upstream.scripts = [(Action.HANG,)]
    async with RawConnection(gateway.port) as wire:
        wire.post(chat("up", stream=streamed))
        received = await upstream.arrived()
    async with within(0.3):
        await asyncio.wait_for(received.left.wait(), 300)
    metrics = await gateway.metrics()
    assert metrics['tollgate_requests_total{backend="up",model="up",status="499"}'] == 1
    assert metrics['tollgate_requests_in_flight{model="up",state="waiting"}'] == 0
    assert metrics['tollgate_http_requests_total{route="/v1/chat/completions",status="499"}'] == 1


async def test_hanging_up_in_the_middle_stops_the_upstream(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [(*stream(sse(delta("a")), whole=False), Action.HANG), reply(completion())]
    async with RawConnection(gateway.port) as wire:
        wire.post(chat("up", stream=True))
        _, headers = await wire.head()
        await anext(wire.chunks())
    async with within(0.3):
        await asyncio.wait_for(upstream.requests[0].left.wait(), 300)
    receipt = (await gateway.http.get(f"/v1/requests/{headers['x-request-id']}")).json()
    assert receipt["stages"]["trace"]["status"] == 499
    assert receipt["stages"]["meter"]["error"] == "client_left"
    assert (await gateway.http.post("/v1/chat/completions", json=chat("up"))).status_code == 200


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
async def test_a_client_that_ends_its_sending_reads_on(gateway: Gateway, streamed: bool) -> None:
    async with RawConnection(gateway.port) as wire:
        wire.post(chat("slow", stream=streamed))
        wire.writer.write_eof()
        heard = (await asyncio.wait_for(wire.reader.read(), 300)).partition(b"HTTP/1.1 200 OK\r\n")[2]
    assert b"connection: close" in heard
    assert heard.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") if streamed else b'"a b c d"' in heard
    metrics = await gateway.metrics()
    assert metrics['tollgate_http_requests_total{route="/v1/chat/completions",status="200"}'] == 1


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
async def test_a_client_that_ends_its_sending_and_then_leaves_stops_the_upstream(
    gateway: Gateway, upstream: FakeUpstream, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.half_close.KEEPALIVE", 0.05)
    start = stream(sse(delta("a")), whole=False) if streamed else ()
    upstream.scripts = [(*start, Action.HANG)]
    async with RawConnection(gateway.port) as wire:
        wire.post(chat("up", stream=streamed))
        wire.writer.write_eof()
        received = await upstream.arrived()
        if streamed:
            while b'"a"' not in await wire.reader.read(2**16):
                pass
        await asyncio.sleep(0.1)
        assert not received.left.is_set()
    await asyncio.wait_for(received.left.wait(), 300)


async def test_hanging_up_while_sending_the_body_reaches_nobody(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    async with RawConnection(gateway.port) as wire:
        wire.send(
            request("POST", "/v1/chat/completions").replace(b"content-length: 0", b"content-length: 900")
        )
        wire.send(b'{"model": "up"')
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.05)
    assert upstream.requests == []
    assert (await gateway.metrics())[
        'tollgate_http_requests_total{route="/v1/chat/completions",status="499"}'
    ] == 1


async def test_a_slow_reader_slows_the_upstream_and_loses_nothing(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    words = [f"{number:06}" + "x" * 2**18 for number in range(160)]
    upstream.scripts = [stream(*answer_events(*words, usage=False))]
    async with RawConnection(gateway.port, receive_buffer=2**16) as wire:
        wire.post(chat("up", stream=True))
        await wire.head()
        received = await upstream.arrived()
        await asyncio.sleep(0.3)
        assert not received.finished.is_set(), "40 MB fit into no socket's buffers"
        heard = b"".join([chunk async for chunk in wire.chunks()])
    events = [orjson.loads(line[6:]) for line in heard.split(b"\n\n") if line.startswith(b"data: {")]
    assert [event["choices"][0]["delta"].get("content") for event in events[1:-1]] == words
    assert heard.endswith(b"[DONE]\n\n")


async def test_a_slow_reader_that_leaves_stops_the_upstream(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [stream(*answer_events(*["x" * 2**18] * 160, usage=False))]
    async with RawConnection(gateway.port, receive_buffer=2**16) as wire:
        wire.post(chat("up", stream=True))
        await wire.head()
        received = await upstream.arrived()
        await asyncio.sleep(0.2)
        assert not received.finished.is_set()
    async with within(0.5):
        await asyncio.wait_for(received.left.wait(), 300)
    assert (await gateway.metrics())['tollgate_requests_total{backend="up",model="up",status="499"}'] == 1


@pytest.mark.parametrize("by", ["total", "deadline"])
async def test_the_whole_time_counts_for_a_client_that_does_not_read(
    upstream: FakeUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Nobody waits for the model's server meanwhile, whose limits so mean nothing."""
    monkeypatch.setattr(Connection, "write_timeout", 3600.0)
    upstream.scripts = [stream(*answer_events(*["x" * 2**18] * 160, usage=False))]
    policy = a_policy(upstream.base_url)
    policy["models"]["up"]["timeouts"] = {"total": "500ms" if by == "total" else "1h"}
    async with (
        serving(tmp_path / "policies", policy) as gateway,
        RawConnection(gateway.port, receive_buffer=2**12) as wire,
    ):
        wire.post(chat("up", stream=True), **({"x_tollgate_deadline": "500ms"} if by == "deadline" else {}))
        received = await upstream.arrived()
        await asyncio.wait_for(received.left.wait(), 300)


async def test_many_at_once(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [stream(*answer_events("a", "b", "c"))]
    bodies = [chat("up" if i % 2 else "fake", stream=i % 3 == 0) for i in range(60)]
    answers = await asyncio.gather(*(gateway.http.post("/v1/chat/completions", json=body) for body in bodies))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["x-request-id"] for answer in answers}) == 60
    metrics = await gateway.metrics()
    assert metrics['tollgate_requests_total{backend="up",model="up",status="200"}'] == 30
    assert metrics['tollgate_tokens_total{direction="out",model="fake",purpose="answer"}'] == 90
    assert upstream.connections <= 30


async def test_usage_event_reaches_the_meter_though_the_client_did_not_ask(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.scripts = [stream(*map(sse, (delta("a"), delta(finish="stop"), usage_event())), DONE)]
    response = await gateway.http.post("/v1/chat/completions", json=chat("up", stream=True))
    assert b"usage" not in response.content
    metrics = await gateway.metrics()
    assert (
        metrics['tollgate_tokens_total{direction="in",model="up",purpose="answer"}'] == USAGE["prompt_tokens"]
    )
