"""A transport that is made when it is first asked: its library is large, and most gateways ask nobody but models."""

from __future__ import annotations

import asyncio
from importlib import import_module

import httpx


class LateTransport(httpx.AsyncBaseTransport):
    """``gateway.backends.transport``'s, from the first request on. Its modules are loaded in a thread, as that takes a
    tenth of a second."""

    def __init__(self) -> None:
        self._made: httpx.AsyncBaseTransport | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._made is None:
            module = await asyncio.to_thread(import_module, "gateway.backends.transport")
            self._made = self._made or module.AiohttpTransport()
        return await self._made.handle_async_request(request)

    async def aclose(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            await made.aclose()
