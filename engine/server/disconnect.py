"""Reading a body, and noticing that the client has disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive

from engine.errors import BodyTooLarge

_DISCARD = 4
"""Multiple of the limit that is read and discarded, so that the client gets to read the response."""


class ClientDisconnected(Exception):
    """The client closed the connection."""


async def read_body(receive: Receive, headers: dict[bytes, bytes], limit: int) -> bytes:
    """Raises ``BodyTooLarge`` or ``ClientDisconnected``."""
    declared = headers.get(b"content-length", b"")
    too_large = declared.isdigit() and int(declared) > limit
    if too_large and int(declared) > limit * _DISCARD:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        too_large = too_large or size > limit
        if size > limit * _DISCARD:
            raise _too_large(limit)
        if too_large:
            parts.clear()
        else:
            parts.append(part)
        if not message.get("more_body", False):
            break
    if too_large:
        raise _too_large(limit)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs ``work``, and cancels it when the client disconnects: then raises ``ClientDisconnected``. The body must
    have been read."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait({task, watch})
    if task.cancelled():
        raise ClientDisconnected
    task.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than the {limit} bytes that this server accepts.")
