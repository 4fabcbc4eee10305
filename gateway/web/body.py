"""Reading a request's body, compressed or not, within a limit, and noticing that its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

from starlette.types import Receive, Scope

from gateway.errors import BodyTooLarge
from gateway.server.cycle import CONNECTION_STATE, ConnectionState
from gateway.server.headers import RequestHeaders
from gateway.web.content_coding import Inflater, coding_of


class ClientDisconnected(Exception):
    """The connection was closed before the answer was complete."""


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


async def read_body(headers: RequestHeaders, receive: Receive, limit: int) -> bytes:
    """The whole body, decompressed, without a byte order mark.

    Raises ``ClientDisconnected``; ``BodyTooLarge`` past ``limit`` bytes, as sent (at once if declared so) or
    decompressed; ``UnsupportedCoding``; and ``BadRequest`` for one that cannot be decompressed.
    """
    if b"content-encoding" in headers:
        whole = b"".join([piece async for piece in body_pieces(headers, receive, limit)])
        return whole.removeprefix(_BYTE_ORDER_MARK)
    _check_declared(headers, limit)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise _too_large(limit)
        more = message.get("more_body", False)
    return b"".join(parts).removeprefix(_BYTE_ORDER_MARK)


async def body_pieces(headers: RequestHeaders, receive: Receive, limit: int) -> AsyncIterator[bytes]:
    """The body as it arrives, decompressed. Raises as ``read_body`` does."""
    _check_declared(headers, limit)
    coding = coding_of(headers)
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


def declared_length(headers: RequestHeaders) -> int | None:
    """``content-length``; None where it has none that can be read."""
    declared = headers.get(b"content-length", b"")
    return int(declared) if declared.isdigit() else None


def _check_declared(headers: RequestHeaders, limit: int) -> None:
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"The request body is larger than this gateway accepts ({limit} bytes). Send less at once."
    )


class WhileConnected:
    """``with WhileConnected(scope, receive):`` cancels its block and raises ``ClientDisconnected``.

    Enter it after the body has been read: from then on the only message left to receive is the disconnect.
    """

    __slots__ = ("_connection", "_disconnected", "_receive", "_task", "_watcher")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._connection: ConnectionState | None = scope.get(CONNECTION_STATE)
        self._receive = receive
        self._disconnected = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("WhileConnected needs a task to cancel")
        self._task = task
        connection = self._connection
        if connection is None:
            self._watcher = asyncio.create_task(self._watch())
        elif connection.disconnected:
            raise ClientDisconnected
        else:
            connection.on_disconnect = self._disconnect

    async def _watch(self) -> None:
        """On servers other than ours there is only ASGI's own way."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._disconnect()

    def _disconnect(self) -> None:
        self._disconnected = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is None:
            self._watcher.cancel()
        else:
            self._connection.on_disconnect = None
        if self._disconnected and isinstance(error, asyncio.CancelledError) and self._task.uncancel() == 0:
            raise ClientDisconnected from None
