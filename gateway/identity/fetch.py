"""One bounded request to an issuer of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx

from gateway.identity.jwks import MAX_BYTES

TIMEOUT = 10.0
"""Seconds that a request may take, its answer included."""


class NotFetched(Exception):
    """The message says why, with the server as its subject."""


async def fetch(
    transport: httpx.AsyncBaseTransport,
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    """What a server answers. Follows no redirect, and reads no more than ``MAX_BYTES``.

    Raises ``NotFetched`` for any other answer, and ``httpx.HTTPError``, ``OSError`` or ``TimeoutError`` for none.
    """
    request = httpx.Request(
        method,
        url,
        headers={
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": "tollgate",
            **(headers or {}),
        },
        content=body or None,
        extensions={"timeout": {"connect": 5.0, "read": 5.0}},
    )
    async with asyncio.timeout(TIMEOUT):
        response = await transport.handle_async_request(request)
        try:
            if response.status_code != 200:
                raise NotFetched(f"its server answered with status {response.status_code}")
            document = bytearray()
            async for part in response.aiter_raw():
                document += part
                if len(document) > MAX_BYTES:
                    raise NotFetched(f"its answer is larger than {MAX_BYTES} bytes")
        finally:
            await response.aclose()
    return bytes(document)
