"""What clients see of a gateway that has no worker yet."""

from __future__ import annotations

import asyncio
import json
import socket

import httpx
import pytest

from gateway.process.listener import listen
from gateway.process.stand_in import MOST, standing_in

pytestmark = pytest.mark.anyio


@pytest.fixture
def listener() -> socket.socket:
    (found,) = listen("127.0.0.1", 0)
    return found


async def ask(
    listener: socket.socket, method: str = "GET", path: str = "/readyz", body: bytes = b""
) -> httpx.Response:
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=300
    ) as http:
        return await http.request(method, path, content=body)


async def test_it_answers_503_until_a_worker_serves(listener: socket.socket) -> None:
    started = False
    with listener:
        async with standing_in([listener], lambda: started) as standing:
            probe = await ask(listener)
            large = await ask(listener, "POST", "/v1/chat/completions", b"x" * 5_000_000)
            for answer in (probe, large):
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert answer.json()["error"]["code"] == "starting"
            started = True
            async with asyncio.timeout(300):
                await standing
            with listener.dup() as worker:
                _, writer = await asyncio.open_connection(*listener.getsockname())
                connection, _ = worker.accept()
                connection.close()
                writer.close()


async def test_its_connections_are_bounded(listener: socket.socket) -> None:
    with listener:
        async with standing_in([listener], lambda: False):
            silent = [await asyncio.open_connection(*listener.getsockname()) for _ in range(MOST)]
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            with pytest.raises(OSError):
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                if not await reader.read():
                    raise ConnectionResetError
            silent[0][1].write(b"GET / HTTP/1.1\r\n\r\n")
            head, _, body = (await silent[0][0].read()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert json.loads(body)["error"]["code"] == "starting"
            for _, other in (*silent, (reader, writer)):
                other.close()
