"""What an ASGI server other than our own lacks: the state of a connection, and whole responses in one message."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.server.cycle import CONNECTION_STATE, ConnectionState


async def serve(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """One request."""
    server = _Server(receive, send)
    scope[CONNECTION_STATE] = server.connection
    try:
        await app(scope, server.receive, server.send)
    finally:
        server.close()


class _Server:
    def __init__(self, receive: Receive, send: Send) -> None:
        self.connection = ConnectionState()
        self._receive = receive
        self._send = send
        self._watcher: asyncio.Task[None] | None = None

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            # All that can still come is the disconnect, and that only to who waits for it.
            self._watcher = asyncio.create_task(self._watch())
        return message

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.connection.disconnect()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and "body" in message:
            body = message.pop("body")
            await self._send(message)
            message = {"type": "http.response.body", "body": body}
        await self._send(message)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
