"""A transport that is made when it is first asked."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from gateway.backends.late_transport import LateTransport
from tests.fakes import FakeUpstream, reply

pytestmark = pytest.mark.anyio


async def test_requests_that_come_at_once_are_answered_over_one(upstream: FakeUpstream) -> None:
    upstream.scripts = [reply({"hello": "there"})]
    transport = LateTransport()

    async def ask() -> bytes:
        request = httpx.Request("POST", upstream.base_url, content=b"{}")
        answer = await transport.handle_async_request(request)
        return await answer.aread()

    assert await asyncio.gather(ask(), ask(), ask()) == [b'{"hello":"there"}'] * 3
    await transport.aclose()


async def test_one_that_was_never_asked_is_closed() -> None:
    await LateTransport().aclose()
