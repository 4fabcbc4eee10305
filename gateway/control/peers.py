"""The workers of one gateway, asking one another: what each counts, has queued and keeps for itself.

Each serves a Unix socket in a folder that only the gateway's user can open. A connection carries one request, a line of
JSON, and one response. Nothing is asked, and nothing costs anything, while nobody looks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from gateway.control.unix_socket import listen, usable

TIMEOUT = 2.0
"""Seconds that a worker may take to answer; one that takes longer is left out."""
MAX_LINE = 16 * 2**20

Handler = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]

log = logging.getLogger(__name__)


class Peers:
    """``folder`` None: this is the only worker. ``handlers``, to be set, answer by what a request asks to ``do``."""

    def __init__(self, folder: Path | None, worker: int) -> None:
        self.handlers: Mapping[str, Handler] = {}
        self._folder = folder
        self._name = f"{worker}.sock"
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Peers:
        if self._folder is not None:
            try:
                sock = await asyncio.to_thread(listen, self._folder / self._name)
                self._server = await asyncio.start_unix_server(self._serve, sock=sock, limit=MAX_LINE)
            except OSError as error:
                log.warning("other workers cannot ask this one: %s", error.strerror or error)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.close()

    async def ask(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The answers of all workers, this one's first; of those that answer."""
        others = await asyncio.to_thread(self._others)
        own, *found = await asyncio.gather(self._handle(request), *(_ask(one, request) for one in others))
        return [own, *(answer for answer in found if answer is not None)]

    def _others(self) -> list[Path]:
        if self._folder is None:
            return []
        return sorted(path for path in self._folder.glob("*.sock") if path.name != self._name)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                request = orjson.loads(await reader.readline())
                writer.write(orjson.dumps(await self._handle(request)) + b"\n")
                await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # the other is gone
        finally:
            writer.close()

    async def _handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        handler = self.handlers.get(str(request.get("do")))
        return await handler(request) if handler is not None else {}


async def _ask(path: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    with suppress(OSError, ValueError, TimeoutError):
        async with asyncio.timeout(TIMEOUT):
            with usable(path) as address:
                reader, writer = await asyncio.open_unix_connection(address, limit=MAX_LINE)
            try:
                writer.write(orjson.dumps(request) + b"\n")
                answer = orjson.loads(await reader.readline())
                return answer if isinstance(answer, dict) else None
            finally:
                writer.close()
    return None
