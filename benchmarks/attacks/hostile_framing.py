"""A server whose answers never end or come too early, and a client whose chunks are none."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path

import orjson

from benchmarks.attacks.frame import ALICE, MALLORY, Gateway, Rig, must
from tests.fakes import DONE, completion, delta, head, reply, sse

POINT = "D.23"
TRIED = "trailers and chunk extensions without end; five times a 413 before 16 MB are read; a caller's malformed chunks"
HOLDS = "memory stays, each ends as an error of its own, the next request is answered at once; the malformed get 400"
MOST_MEMORY = 100 * 2**20
FLOOD_SECONDS = 8.0


class Server:
    """Does what the last message says."""

    def __init__(self) -> None:
        self.flooded = 0
        self.over = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                top = (await reader.readuntil(b"\r\n\r\n")).lower()
                size = int(top.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                if size > 2**20:
                    writer.write(reply({"error": {"message": "too large"}}, status=413)[0])
                    await self.over.wait()  # and reads no further
                    break
                body = orjson.loads(await reader.readexactly(size)) if size else {}
                word = body["messages"][-1]["content"] if body else ""
                if word in ("trailers", "extensions"):
                    await self._flood(writer, word)
                else:
                    writer.write(reply(completion())[0])
        writer.close()

    async def _flood(self, writer: asyncio.StreamWriter, word: str) -> None:
        event = sse(delta("Hello"))
        writer.write(head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        if word == "trailers":
            writer.write(b"%x\r\n%b\r\n0\r\n" % (len(DONE), DONE))
        line = b"x-trailer: " + b"y" * 4000 + b"\r\n" if word == "trailers" else b"1;" + b"y" * 4000
        while True:
            writer.write(line)
            self.flooded += len(line)
            await writer.drain()


async def attack(rig: Rig) -> str:
    server = Server()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        policy = rig.policy(backends={"up": {"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1"}})
        gateway = await rig.gateway(policy)
        must((await gateway.chat(ALICE)).status_code == 200, "the gateway does not answer")
        before = _memory(gateway)
        for word in ("trailers", "extensions"):
            with suppress(TimeoutError):
                async with asyncio.timeout(FLOOD_SECONDS):
                    await gateway.chat(MALLORY, word, stream=True)
            grown = _memory(gateway) - before
            must(grown < MOST_MEMORY, f"{word}: {grown / 2**20:.0f} MiB more memory")
        statuses = Counter[int]()
        for _ in range(5):
            statuses[(await gateway.chat(MALLORY, "x" * 2**24, timeout=60)).status_code] += 1
            # Anybody's next request, which may get the same connection.
            after = await gateway.chat(ALICE, timeout=30)
            must(after.status_code == 200, f"after an early 413 the next got {after.status_code}")
        must(all(400 <= status < 500 for status in statuses), f"early 413s came as {dict(statuses)}")
        for chunk in (b"zz\r\nhello\r\n", b"-5\r\nhello\r\n", b"5\r\nhello!!\r\n", b"ffffffffffffffffff\r\n"):
            said = await _chunked(gateway, chunk)
            must(said.startswith(b"HTTP/1.1 400 "), f"{chunk!r} was answered with {said[:60]!r}")
        must(await gateway.is_alive(), "the gateway answers nobody any more")
        server.over.set()
    told = ", ".join(map(str, statuses))
    floods = f"floods ended after {server.flooded / 2**20:.1f} MiB"
    return f"{floods}; early 413s told as {told}, 5 of 5 after them answered; 4 times 400"


async def _chunked(gateway: Gateway, chunk: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    top = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {MALLORY}\r\n"
    writer.write(
        f"{top}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n".encode() + chunk
    )
    try:
        async with asyncio.timeout(40):
            return await reader.readline()
    except (TimeoutError, ConnectionError) as error:
        return repr(error).encode()
    finally:
        writer.close()


def _memory(gateway: Gateway) -> int:
    """Bytes, of all workers."""
    statuses = [Path("/proc", str(pid), "status").read_text() for pid in gateway.workers]
    return sum(int(status.partition("VmRSS:")[2].split()[0]) * 1024 for status in statuses)
