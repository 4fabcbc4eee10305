"""What answers while no worker does yet: 503, at once. The port is bound from the first moment, so that two gateways
cannot share it; connections would wait there until a worker has started, and for ever where none can."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import orjson

from gateway.errors import Overloaded
from gateway.process.listener import BACKLOG
from gateway.server.lingering import Lingering

MOST = 512
"""Connections at once: further ones are closed without an answer."""
_LONGEST_HEAD = 64 * 2**10
_PATIENCE = 10.0
"""Seconds for a request's head to come, and for its client to read the answer."""
_LOOK_EVERY = 0.02
_RETRY_AFTER = 1


def _answer() -> bytes:
    message = "The gateway is starting. Try again in a moment."
    body = orjson.dumps(Overloaded(message, code="starting").body())
    head = (
        *(
            "HTTP/1.1 503 Service Unavailable",
            "content-type: application/json",
            f"content-length: {len(body)}",
        ),
        *(f"retry-after: {_RETRY_AFTER}", "connection: close"),
    )
    return "\r\n".join((*head, "", "")).encode() + body


class StandIn(asyncio.Protocol):
    """One connection."""

    def __init__(self, open_ones: set[asyncio.Transport]) -> None:
        self._open = open_ones
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._open) >= MOST:
            transport.abort()
            return
        self._open.add(transport)
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, transport.abort)

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" in self._head or len(self._head) > _LONGEST_HEAD:
            self._transport.write(_answer())
            Lingering(self._transport, self, seconds=_PATIENCE, most=64 * 2**20)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport in self._open:
            self._open.discard(self._transport)
            self._timer.cancel()


@asynccontextmanager
async def standing_in(
    listeners: Sequence[socket.socket], started: Callable[[], bool]
) -> AsyncIterator[asyncio.Task[None]]:
    """Answers on ``listeners`` until ``started`` says that a worker does, when the task ends, or the block does."""
    task = asyncio.create_task(_stand_in(listeners, started))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _stand_in(listeners: Sequence[socket.socket], started: Callable[[], bool]) -> None:
    loop = asyncio.get_running_loop()
    open_ones: set[asyncio.Transport] = set()
    # A socket of its own for each: the listeners stay open for the workers.
    servers = [
        await loop.create_server(lambda: StandIn(open_ones), sock=listener.dup(), backlog=BACKLOG)
        for listener in listeners
    ]
    try:
        while not started():  # noqa: ASYNC110 -- a worker tells by a file
            await asyncio.sleep(_LOOK_EVERY)
    finally:
        for server in servers:
            server.close()
