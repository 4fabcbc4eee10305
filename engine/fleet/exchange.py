"""One HTTP exchange with a model's process, over its Unix socket: a connection each; to leave is to close it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import cast

import httptools

_MOST_BUFFERED = 2**18
"""Bytes that a slow reader may leave here; then the process is not read, and slows down itself."""

Headers = list[tuple[bytes, bytes]]


class MemberGone(Exception):
    """The process has ended, or was never there: what of the answer is missing does not come."""

    def __init__(self, why: str, *, certain: bool = False) -> None:
        """``certain``: it said so itself; not that a connection ended."""
        super().__init__(why)
        self.certain = certain


class Exchange(asyncio.Protocol):
    """Begin one with ``ask``, then ``head``, then ``body``; close it in any case."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._came = asyncio.Event()
        self._has_head = False
        self._ended = False
        self._lost = False

    @classmethod
    async def ask(
        cls, socket: Path, line: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> Exchange:
        """``line``: such as ``POST /v1/completions``. Raises ``MemberGone``."""
        loop = asyncio.get_running_loop()
        try:
            _, exchange = await loop.create_unix_connection(cls, str(socket))
        except OSError as error:
            raise MemberGone(str(error)) from None
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        exchange._send(
            b"%s HTTP/1.1\r\nhost: engine\r\nconnection: close\r\ncontent-length: %d\r\n%s\r\n"
            % (line, len(body), head)
            + body
        )
        return exchange

    async def head(self) -> None:
        """Waits for ``status`` and ``headers``. Raises ``MemberGone``."""
        while not self._has_head:
            await self._more()

    async def body(self) -> AsyncIterator[bytes]:
        """What has come, as it comes. Raises ``MemberGone``."""
        while True:
            if self._parts:
                data = b"".join(self._parts)
                self._parts.clear()
                self._buffered = 0
                if self._paused and self._transport is not None:
                    self._paused = False
                    self._transport.resume_reading()
                yield data
            elif self._ended:
                return
            else:
                await self._more()

    async def whole(self) -> bytes:
        """Raises ``MemberGone``."""
        await self.head()
        return b"".join([part async for part in self.body()])

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    async def _more(self) -> None:
        if self._lost and not self._ended:
            raise MemberGone("the connection ended in the middle of an answer")
        self._came.clear()
        await self._came.wait()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._lost = True
            self.close()
        if self._buffered > _MOST_BUFFERED and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._came.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._came.set()

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._has_head = True

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        self._buffered += len(data)

    def on_message_complete(self) -> None:
        self._ended = True


def is_farewell(status: int, body: bytes) -> bool:
    """Whether an answer says that its engine process has ended, or is about to."""
    return status == 503 and (b'"engine_died"' in body or b'"shutting_down"' in body)


async def ask_json(socket: Path, line: bytes, body: bytes = b"") -> tuple[int, bytes]:
    """Status and body of a short exchange. Raises ``MemberGone``."""
    exchange = await Exchange.ask(socket, line, [(b"content-type", b"application/json")], body)
    try:
        return exchange.status or await _status(exchange), await exchange.whole()
    finally:
        exchange.close()


async def _status(exchange: Exchange) -> int:
    await exchange.head()
    return exchange.status
