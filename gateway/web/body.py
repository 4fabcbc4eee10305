"""Reading a request's body, compressed or not, within a limit, and noticing that its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

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


def cancel_on_disconnect(scope: Scope) -> None:
    """From here on the request's task is cancelled when its client leaves; ``Dispatcher`` ends that.

    Called after the body has been read. Raises ``ClientDisconnected`` where the client has left before.
    """
    connection: ConnectionState = scope[CONNECTION_STATE]
    if connection.disconnected:
        raise ClientDisconnected
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("there is no task to cancel")
    connection.on_disconnect = task.cancel
