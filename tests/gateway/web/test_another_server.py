"""A server that knows nothing of ours: its disconnects cancel, and it gets two messages where ours gets one."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from gateway.web import another_server
from gateway.web.body import cancel_on_disconnect, read_body
from gateway.web.sending import send_body

pytestmark = pytest.mark.anyio


class Client:
    """Of such a server."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.sent: list[Message] = []
        self._parts = [b"he", b"llo"]

    async def receive(self) -> Message:
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)


async def test_a_whole_response_is_two_messages() -> None:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        await send_body(send, await read_body({}, receive, 100))

    client = Client()
    await another_server.serve(echo, {"type": "http"}, client.receive, client.send)
    head = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"5")],
    }
    assert client.sent == [head, {"type": "http.response.body", "body": b"hello"}]


async def test_a_client_that_leaves_cancels_its_request() -> None:
    begun = asyncio.Event()

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body({}, receive, 100)
        cancel_on_disconnect(scope)
        begun.set()
        await asyncio.sleep(60)

    client = Client()
    serving = asyncio.create_task(another_server.serve(wait, {"type": "http"}, client.receive, client.send))
    await begun.wait()
    client.left.set()
    with pytest.raises(asyncio.CancelledError):
        await serving
