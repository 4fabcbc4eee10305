"""A caller of a stream who waits hears something now and then, whatever the gateway waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import orjson
import pytest

from tests.fakes import Action, FakeUpstream, answer_events, reply, stream
from tests.serving import KEY, Gateway, a_policy, chat, serving

pytestmark = pytest.mark.anyio

BEAT = 0.05
CHAT = {"model": "up", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
MESSAGES = {**CHAT, "max_tokens": 9}
PATHS = {"/v1/chat/completions": CHAT, "/v1/messages": MESSAGES}
BEATS = {"/v1/chat/completions": ": waiting\n\n", "/v1/messages": 'event: ping\ndata: {"type":"ping"}\n\n'}
ERRORS = {"/v1/chat/completions": 'data: {"error"', "/v1/messages": "event: error\n"}


@pytest.fixture
async def gateway(tmp_path: Path, upstream: FakeUpstream) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", a_policy(upstream.base_url), heartbeat=BEAT) as running:
        yield running


async def asked(gateway: Gateway, path: str, body: dict[str, Any]) -> tuple[int, str]:
    response = await gateway.http.post(path, json=body)
    return response.status_code, response.text


@pytest.mark.parametrize("path", PATHS)
async def test_before_the_head_of_the_answer_and_between_its_words(
    gateway: Gateway, upstream: FakeUpstream, path: str
) -> None:
    role, first, *rest = answer_events("Hel", "lo")
    upstream.scripts = [(1.5, *stream(role, first, 1.5, *rest))]
    status, text = await asked(gateway, path, PATHS[path])
    before, hel, after = text.partition("Hel")
    assert status == 200
    assert hel and "lo" in after
    assert before.startswith(BEATS[path] * 2)
    assert BEATS[path] * 2 in after
    assert text.count(BEATS[path]) < 100  # once a beat, not all the time


@pytest.mark.parametrize("path", PATHS)
async def test_a_failure_after_it_is_told_in_the_stream(
    gateway: Gateway, upstream: FakeUpstream, path: str
) -> None:
    upstream.scripts = [(1.0, *reply({"error": {"message": "boom"}}, status=500))]
    status, text = await asked(gateway, path, PATHS[path])
    assert status == 200
    assert text.startswith(BEATS[path])
    assert text[len(BEATS[path]) * text.count(BEATS[path]) :].startswith(ERRORS[path])


async def test_a_failure_before_it_has_its_own_status(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply({"error": {"message": "boom"}}, status=500)]
    assert (await asked(gateway, "/v1/chat/completions", CHAT))[0] == 502


async def test_a_whole_answer_has_no_room_for_it(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [(0.3, *reply({"error": {"message": "boom"}}, status=500))]
    assert (await asked(gateway, "/v1/chat/completions", {**CHAT, "stream": False}))[0] == 502


async def test_a_client_that_leaves_meanwhile_stops_the_upstream(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.scripts = [(Action.HANG,)]
    async with gateway.http.stream("POST", "/v1/chat/completions", json=CHAT) as response:
        async for line in response.aiter_lines():
            assert line == ": waiting"
            break
    await asyncio.wait_for(upstream.requests[0].left.wait(), 300)


async def test_the_clients_that_are_in_use_pass_over_it(gateway: Gateway, upstream: FakeUpstream) -> None:
    slow = (0.3, *stream(*answer_events("Hello")))
    upstream.scripts = [slow, slow]
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY) as client:
        events = await client.chat.completions.create(
            model="up", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        words = [event.choices[0].delta.content or "" async for event in events if event.choices]
    assert "".join(words) == "Hello"
    async with (
        anthropic.AsyncAnthropic(base_url=gateway.url, auth_token=KEY, api_key=None) as client_,
        client_.messages.stream(
            model="up", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
        ) as message,
    ):
        assert await message.get_final_text() == "Hello"


async def test_it_can_be_turned_off(tmp_path: Path, upstream: FakeUpstream) -> None:
    upstream.scripts = [(0.3, *reply({"error": {"message": "boom"}}, status=500))]
    async with serving(tmp_path / "policies", a_policy(upstream.base_url), heartbeat=0) as gateway:
        assert (await asked(gateway, "/v1/chat/completions", CHAT))[0] == 502


@pytest.mark.parametrize("keep", [b"", b"connection: keep-alive\r\n"])
async def test_old_clients_read_events_until_the_connection_ends(gateway: Gateway, keep: bytes) -> None:
    """HTTP/1.0 knows of no chunks (RFC 9112, section 6.1): nginx asks so unless it is told otherwise."""
    body = orjson.dumps(chat(stream=True))
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.0\r\nauthorization: Bearer %b\r\n%bcontent-length: %d\r\n\r\n%b"
        % (KEY.encode(), keep, len(body), body)
    )
    head, _, events = (await reader.read()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower() and b"connection: close" in head.lower()
    assert events.startswith(b"data: {") and events.endswith(b"data: [DONE]\n\n")
    assert all(one.startswith(b"data: ") for one in events.split(b"\n\n")[:-1])
    writer.close()
