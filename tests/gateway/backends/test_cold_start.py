"""Requests that come while no server is there, through a real gateway."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gateway.policy.schema import Policy
from tests.fakes import Action, FakeUpstream, answer_events, completion, reply, stream
from tests.ports import free_port
from tests.serving import OPERATOR, a_policy, chat, serving

pytestmark = pytest.mark.anyio


def policy(port: int, **more: Any) -> dict[str, Any]:
    found = a_policy(f"http://127.0.0.1:{port}/v1")
    up = {"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1", **more}
    found["backends"] = {"up": up}
    found["models"] = {"up": {"targets": [{"backend": "up", "model": "m"}], "retry": {"attempts": 1}}}
    return found


async def test_those_who_wait_are_answered_once_the_server_is_there(tmp_path: Path) -> None:
    upstream = FakeUpstream(reply(completion("awake")))
    upstream.port = free_port()
    async with serving(tmp_path, policy(upstream.port, cold_start="280s")) as gateway:
        whole = asyncio.ensure_future(gateway.http.post("/v1/chat/completions", json=chat("up")))
        await in_flight(gateway, 1)
        body = chat("up", stream=True)
        async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            assert response.status_code == 200
            told = await anext(line async for line in lines if line.startswith(": starting"))
            assert told == ": starting position=2"
            assert (await gateway.http.get("/readyz", headers=OPERATOR)).status_code == 200
            upstream.scripts = [reply(completion("awake")), stream(*answer_events("awake", "too"))]
            await upstream.start()
            rest = [line async for line in lines]
        assert "data: [DONE]" in rest and any("awake" in line for line in rest)
        assert (await whole).json()["choices"][0]["message"]["content"] == "awake"
        assert len(upstream.requests) == 2
        await in_flight(gateway, 0)
    await upstream.stop()


async def in_flight(gateway: Any, count: int) -> None:
    name = 'tollgate_backend_requests_in_flight{backend="up"}'
    async with asyncio.timeout(300):
        while (await gateway.metrics()).get(name, 0) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_server_that_does_not_come_is_an_error_at_last(tmp_path: Path) -> None:
    async with serving(tmp_path, policy(free_port(), cold_start="1500ms")) as gateway:
        for body in (chat("up"), chat("up", stream=True)):
            answer = await gateway.http.post("/v1/chat/completions", json=body)
            assert "Backend 'up' cannot be reached" in answer.text


async def test_a_server_that_cannot_be_trusted_is_not_waited_for(tmp_path: Path, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with FakeUpstream(tls=context) as upstream:
        found = policy(upstream.port, cold_start="280s")
        found["backends"]["up"]["base_url"] = f"https://127.0.0.1:{upstream.port}/v1"
        async with serving(tmp_path, found) as gateway, asyncio.timeout(270):
            answer = await gateway.http.post("/v1/chat/completions", json=chat("up"))
            assert answer.status_code == 503 and "cannot be reached" in answer.text


@pytest.mark.parametrize("kind", ["openai", "engine"])
def test_replicas_stand_in_for_each_other_instead(kind: str) -> None:
    given = {"kind": kind, "replicas": ["http://127.0.0.1:1"], "cold_start": "5m"}
    with pytest.raises(ValidationError, match="cold_start or replicas that are written down, not both"):
        Policy.model_validate({"version": 1, "backends": {"up": given}, "models": {}})


@pytest.mark.parametrize(
    "script",
    [reply({"error": {"message": "busy"}}, status=503), (Action.ABORT,)],
    ids=["refuses", "drops"],
)
async def test_what_reached_a_server_is_not_sent_again(tmp_path: Path, script: Any) -> None:
    async with (
        FakeUpstream(script) as upstream,
        serving(tmp_path, policy(upstream.port, cold_start="280s")) as gateway,
    ):
        for body in (chat("up"), chat("up", stream=True)):
            assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code >= 500
        assert len(upstream.requests) == 2


async def test_who_leaves_waits_no_longer(tmp_path: Path) -> None:
    async with serving(tmp_path, policy(free_port(), cold_start="280s")) as gateway:
        asked = [
            asyncio.ensure_future(gateway.http.post("/v1/chat/completions", json=body))
            for body in (chat("up"), chat("up", stream=True))
        ]
        await in_flight(gateway, 2)
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await in_flight(gateway, 0)
