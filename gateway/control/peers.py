"""The workers of one gateway, asking one another: what each counts, has queued and keeps for itself.

Each serves a Unix socket in a folder that only the gateway's user can open. A connection carries one request, a line of
JSON, and one response: a line of JSON, and the contents (``BLOBS``) that belong to it, of any length. Nothing is asked,
and nothing costs anything, while nobody looks for what this worker does not have.
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
BLOBS = "blobs"
"""In an answer: a list of bytes, or None for what is not there."""
_LENGTHS = "lengths"

Handler = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]

log = logging.getLogger(__name__)


class Peers:
    """``folder`` None: this is the only worker. ``handlers``, to be set, answer by what a request asks to ``do``."""

    def __init__(self, folder: Path | None, worker: int) -> None:
        self.handlers: Mapping[str, Handler] = {}
        self._folder = folder
        self._name = f"{worker}.sock"
        self._server: asyncio.Server | None = None

    @property
    def alone(self) -> bool:
        return self._folder is None

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
        own, *found = await asyncio.gather(self._handle(request), *(_asked(one, request) for one in others))
        return [own, *(answer for answer in found if answer is not None)]

    async def ask_others(self, request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The answers of all other workers that run. Raises ``TimeoutError`` where one of them does not answer."""
        if self._folder is None:
            return []
        others = await asyncio.to_thread(self._others)
        found = await asyncio.gather(*(_ask(one, request) for one in others))
        return [answer for answer in found if answer is not None]

    def _others(self) -> list[Path]:
        if self._folder is None:
            return []
        return sorted(path for path in self._folder.glob("*.sock") if path.name != self._name)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                request = orjson.loads(await reader.readline())
                answer = await self._handle(request)
                blobs = answer.pop(BLOBS, ())
                lengths = [None if blob is None else len(blob) for blob in blobs]
                writer.write(orjson.dumps({**answer, _LENGTHS: lengths} if blobs else answer) + b"\n")
                for blob in blobs:
                    writer.write(blob or b"")
                    await writer.drain()
                await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass  # the other is gone
        finally:
            writer.close()

    async def _handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        handler = self.handlers.get(str(request.get("do")))
        return await handler(request) if handler is not None else {}


async def _asked(path: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    with suppress(TimeoutError):
        return await _ask(path, request)
    return None


async def _ask(path: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """None where nobody listens any more. Raises ``TimeoutError``."""
    try:
        async with asyncio.timeout(TIMEOUT):
            with usable(path) as address:
                reader, writer = await asyncio.open_unix_connection(address, limit=MAX_LINE)
            try:
                writer.write(orjson.dumps(request) + b"\n")
                return await _answer(reader)
            finally:
                writer.close()
    except TimeoutError:
        raise
    except (OSError, ValueError, EOFError):
        return None


async def _answer(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    answer = orjson.loads(await reader.readline())
    if not isinstance(answer, dict):
        return None
    lengths = answer.pop(_LENGTHS, None)
    if lengths is not None:
        answer[BLOBS] = [None if length is None else await reader.readexactly(length) for length in lengths]
    return answer
