"""A forward proxy, as one stands between a company's machines and the internet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from tests.fakes import head


class Proxy:
    """Forwards requests in absolute form, tunnels for CONNECT, and keeps the first line of each."""

    def __init__(self, refuse: int | None = None) -> None:
        self.asked: list[str] = []
        self.headers: list[str] = []
        self.port = 0
        self._refuse = refuse
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        other: asyncio.StreamWriter | None = None
        try:
            top = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, _, rest = top.partition("\r\n")
            self.asked.append(first)
            self.headers.append(rest.lower())
            if self._refuse:
                writer.write(head(self._refuse, {"content-length": "0"}))
                return
            method, target, version = first.split(" ")
            url = httpx.URL(f"//{target}" if method == "CONNECT" else target)
            far, other = await asyncio.open_connection(url.host, url.port)
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Established\r\n\r\n")
            else:
                other.write(f"{method} {url.raw_path.decode()} {version}\r\n{rest}".encode())
            await asyncio.gather(pump(reader, other), pump(far, writer))
        finally:
            for end in (writer, other):
                if end is not None:
                    end.close()


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(2**16):
            sink.write(data)
