"""Sending bodies, and errors in their callers' dialects, over bare ASGI."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from starlette.types import Send

from gateway.errors import GatewayError, MethodNotAllowed

Headers = list[tuple[bytes, bytes]]


async def send_body(
    send: Send,
    body: bytes,
    *,
    status: int = 200,
    headers: Iterable[tuple[bytes, bytes]] = (),
    kind: bytes = b"application/json",
) -> None:
    """In one message, as our own server takes it; for others ``another_server`` makes two of it."""
    fields = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields, "body": body})


def encoded(headers: Mapping[str, str]) -> Headers:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


async def send_error(send: Send, error: GatewayError, body: bytes, told: Mapping[str, str]) -> None:
    """``body`` is the error, rendered in the caller's dialect; ``told`` are headers besides its own."""
    headers = encoded(told)
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after))))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allow.encode()))
    await send_body(send, body, status=error.status, headers=headers)
