"""The least a Python proxy can do: bare ASGI in, aiohttp out, bytes passed on unread. What a gateway is measured by.

UPSTREAM=http://127.0.0.1:9000 uvicorn benchmarks.relay:app --loop uvloop --http httptools --no-access-log
"""

from __future__ import annotations

import os
from typing import Any

import aiohttp

UPSTREAM = os.environ.get("UPSTREAM", "http://127.0.0.1:9000")
_session: aiohttp.ClientSession | None = None


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    global _session
    if scope["type"] == "lifespan":
        await receive()
        _session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await _session.close()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    assert _session is not None
    headers = {"content-type": "application/json"}
    async with _session.post(UPSTREAM + scope["path"], data=body, headers=headers) as answer:
        kind = answer.headers.get("content-type", "application/json").encode()
        head = [(b"content-type", kind)]
        if answer.content_length is not None:
            head.append((b"content-length", b"%d" % answer.content_length))
        await send({"type": "http.response.start", "status": answer.status, "headers": head})
        async for part in answer.content.iter_any():
            await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
