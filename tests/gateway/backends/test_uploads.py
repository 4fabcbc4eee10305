"""Bodies in parts, over every way to a server: as fast as it takes them, and no further than it wants them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from gateway.backends.client import Client
from gateway.backends.endpoint import Endpoint, Upload
from gateway.backends.transport import OutgoingTransport
from tests.fakes import FakeUpstream, reply

pytestmark = pytest.mark.anyio

PIECE = b"0123456789abcdef" * 4096


class Source:
    """Parts of an upload, and how many were taken."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken = 0
        self.upload = Upload(count * len(PIECE), self._parts)

    async def _parts(self) -> AsyncIterator[bytes]:
        for _ in range(self.count):
            self.taken += 1
            yield PIECE


async def send(client: Client, url: str, upload: Upload) -> tuple[int, bytes]:
    answer = await client.send(Endpoint("POST", url), {"x-request-id": "a"}, upload)
    try:
        return answer.status, b"".join([part async for part in answer])
    finally:
        await answer.aclose()


@pytest.mark.parametrize("way", ["straight", "transport", "tls"])
async def test_it_arrives_whole_and_again(
    upstream: FakeUpstream,
    tls_upstream: FakeUpstream,
    certificate: Path,
    way: str,
) -> None:
    server = tls_upstream if way == "tls" else upstream
    server.scripts = [reply(b"one"), reply(b"two")]
    given = OutgoingTransport() if way == "transport" else None
    client = Client(transport=given, verify=ssl.create_default_context(cafile=certificate))
    source = Source(40)
    try:
        assert await send(client, f"{server.base_url}/x", source.upload) == (200, b"one")
        assert await send(client, f"{server.base_url}/x", source.upload) == (200, b"two")
    finally:
        await client.aclose()
    for request in server.requests:
        assert request.body == 40 * PIECE
        assert request.headers["content-length"] == str(40 * len(PIECE))
        assert "transfer-encoding" not in request.headers


async def test_a_server_that_does_not_read_is_waited_for() -> None:
    """No more lies in memory than a connection's buffers hold."""
    may_read, done = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await may_read.wait()
        assert len(await reader.readexactly(length)) == length
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()
        done.set()

    server = await asyncio.start_server(partial(serve), "127.0.0.1", 0, limit=2**16)
    source, client = Source(2000), Client()  # 125 MiB
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        asking = asyncio.create_task(send(client, url, source.upload))
        taken = -1
        while taken != source.taken or taken < 1:
            taken = source.taken
            await asyncio.sleep(0.05)
        assert source.taken < 1000
        may_read.set()
        assert await asking == (200, b"ok")
        await done.wait()
    await client.aclose()


async def test_a_source_that_fails_leaves_no_connection_behind(upstream: FakeUpstream) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield PIECE
        raise OSError("the disk is gone")

    client = Client()
    with pytest.raises(OSError, match="the disk is gone"):
        await send(client, f"{upstream.base_url}/x", Upload(2 * len(PIECE), broken))
    upstream.scripts = [reply(b"fine")]
    assert await send(client, f"{upstream.base_url}/x", Source(1).upload) == (200, b"fine")
    await client.aclose()


async def test_a_server_that_drops_it_is_an_error() -> None:
    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    client = Client()
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        with pytest.raises(httpx.TransportError):
            await send(client, url, Source(2000).upload)
    await client.aclose()
