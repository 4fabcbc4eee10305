"""Reading a request's body, compressed or not, within a limit, and noticing that its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from starlette.types import Receive, Scope

from gateway.errors import BodyTooLarge
from gateway.server.cycle import CONNECTION_STATE, ConnectionState
from gateway.web.content_coding import Inflater, coding_of


class ClientDisconnected(Exception):
    """The connection was closed before the answer was complete."""


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, decompressed, without a byte order mark.

    Raises ``ClientDisconnected``; ``BodyTooLarge`` past ``limit`` bytes, as sent (at once if declared so) or
    decompressed; ``UnsupportedCoding``; and ``BadRequest`` for one that cannot be decompressed.
    """
    if any(name == b"content-encoding" for name, _ in scope["headers"]):
        whole = b"".join([piece async for piece in body_pieces(scope, receive, limit)])
        return whole.removeprefix(_BYTE_ORDER_MARK)
    _check_declared(scope, limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            whole = b"".join(parts) if len(parts) != 1 else parts[0]
            return whole.removeprefix(_BYTE_ORDER_MARK)


async def body_pieces(scope: Scope, receive: Receive, limit: int) -> AsyncIterator[bytes]:
    """The body as it arrives, decompressed. Raises as ``read_body`` does."""
    _check_declared(scope, limit)
    coding = coding_of(scope["headers"])
    inflater = None if coding is None else Inflater(coding)
    size = inflated = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        if inflater is None:
            yield part
        else:
            for piece in inflater.feed(part):
                inflated += len(piece)
                if inflated > limit:
                    raise _too_large(limit)
                yield piece
                await asyncio.sleep(0)
    if inflater is not None:
        inflater.end()


def declared_length(scope: Scope) -> int | None:
    """``content-length``; None where it has none that can be read."""
    declared = dict(scope["headers"]).get(b"content-length", b"")
    return int(declared) if declared.isdigit() else None


def _check_declared(scope: Scope, limit: int) -> None:
    if (declared_length(scope) or 0) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The request body is larger than this gateway accepts ({limit} bytes). Send less at once."
    )


class WhileConnected:
    """``async with WhileConnected(scope, receive):`` cancels its block and raises ``ClientDisconnected``.

    Enter it after the body has been read: from then on the only message left to receive is the disconnect.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._connection: ConnectionState | None = scope.get(CONNECTION_STATE)
        self._receive = receive
        self._disconnected = False
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("WhileConnected needs a task to cancel")
        self._task = task
        if self._connection is None:
            self._watcher = asyncio.create_task(self._watch())
        elif self._connection.disconnected:
            raise ClientDisconnected
        else:
            self._connection.on_disconnect = self._disconnect

    async def _watch(self) -> None:
        """On servers other than ours there is only ASGI's own way."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._disconnect()

    def _disconnect(self) -> None:
        self._disconnected = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.on_disconnect = None
        if self._watcher is not None:
            self._watcher.cancel()
        if self._disconnected and isinstance(error, asyncio.CancelledError) and self._task.uncancel() == 0:
            raise ClientDisconnected from None
