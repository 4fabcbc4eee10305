"""The load generator and its static server, against each other without a proxy."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.load import CHUNKS, LENGTHS, SIZED, TRICKLED, Static, ask, question
from benchmarks.workloads import WORKLOADS

pytestmark = pytest.mark.anyio


async def run(model: str, connections: int, requests: int, *, stream: bool = False) -> dict[str, float | str]:
    server = await asyncio.get_running_loop().create_server(Static, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await ask(port, connections, requests, stream, [], question(model, stream=stream, size=100))


async def test_every_answer_is_counted_once() -> None:
    found = await run("static", 4, 50)
    assert (found["requests"], found["failed"]) == (50, 0)
    found = await run("static", 4, 10, stream=True)
    # The role and the end are events with a delta, too.
    assert (found["requests"], found["failed"], found["chunks"]) == (10, 0, 10 * (CHUNKS + 2))


async def test_trickled_chunks_come_one_by_one() -> None:
    count, seconds = TRICKLED[b'"model":"trickled"']
    found = await run("trickled", 2, 2, stream=True)
    assert (found["failed"], found["chunks"]) == (0, 2 * (count + 1))
    assert float(found["seconds"]) > count * seconds * 0.9


async def test_a_failure_is_counted_and_shown() -> None:
    class Failing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nbusy")  # type: ignore[attr-defined]

    async with await asyncio.get_running_loop().create_server(Failing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        found = await ask(port, 1, 2, False, [], question("static", stream=False))
    assert found["failed"] == 2 and "busy" in str(found["failure"])


def test_answers_have_their_length() -> None:
    for model, length in LENGTHS.items():
        assert len(SIZED[model].partition(b"\r\n\r\n")[2]) == length


def test_workloads_have_names_of_their_own() -> None:
    assert len({work.name for work in WORKLOADS}) == len(WORKLOADS)
