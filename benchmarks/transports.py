"""Which HTTP client should forward requests upstream? Requests/s and relayed chunks/s of each candidate.

    python -m benchmarks.transports [--requests 4000] [--repeats 5] [--json FILE]

One process answers (a static chat completion, or a stream of 200 server-sent events), this one asks with 32 calls
in flight. All candidates take turns within every repeat; the table shows medians and the ratio to bare aiohttp.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import httpx

from benchmarks.processes import ended_in_order
from gateway.backends.client import Client
from gateway.backends.endpoint import Endpoint
from gateway.backends.transport import OutgoingTransport

CHUNKS = 200
CHAT = b'{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"}}]}'
EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
)
ASK = b'{"model":"m","messages":[{"role":"user","content":"Hello"}]}'
HEADERS = {"content-type": "application/json", "authorization": "Bearer k"}


class StaticServer(asyncio.Protocol):
    """Answers every request alike, as cheaply as Python can, so that the client is what is measured."""

    one = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(CHAT),
        CHAT,
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    many = head + b"".join(b"%x\r\n%s\r\n" % (len(EVENT), EVENT) for _ in range(CHUNKS)) + b"0\r\n\r\n"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.seen = b""

    def data_received(self, data: bytes) -> None:
        self.seen += data
        while self.seen.count(ASK):
            before, _, self.seen = self.seen.partition(ASK)
            self.transport.write(self.many if b"/stream" in before else self.one)  # type: ignore[attr-defined]


def serve(sock: socket.socket) -> None:
    import uvloop

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(StaticServer, sock=sock)
        await server.serve_forever()

    uvloop.run(main())


Ask = Callable[[str], Awaitable[int]]


async def ask_transport(transport: httpx.AsyncBaseTransport, base: str) -> Ask:
    urls: dict[str, httpx.URL] = {}

    async def ask(path: str) -> int:
        url = urls.get(path) or urls.setdefault(path, httpx.URL(base + path))
        response = await transport.handle_async_request(
            httpx.Request("POST", url, headers=HEADERS, content=ASK)
        )
        size = 0
        try:
            async for part in response.stream:  # type: ignore[union-attr]
                size += len(part)
        finally:
            await response.aclose()
        return size

    return ask


async def ask_ours(client: Client, base: str) -> Ask:
    endpoints = {path: Endpoint("POST", base + path) for path in ("/chat", "/stream")}

    async def ask(path: str) -> int:
        answer = await client.send(endpoints[path], HEADERS, ASK)
        size = 0
        async for part in answer:
            size += len(part)
        return size

    return ask


async def ask_client(client: httpx.AsyncClient, base: str) -> Ask:
    async def ask(path: str) -> int:
        size = 0
        async with client.stream("POST", base + path, headers=HEADERS, content=ASK) as response:
            async for part in response.aiter_raw():
                size += len(part)
        return size

    return ask


async def ask_aiohttp(session: aiohttp.ClientSession, base: str) -> Ask:
    async def ask(path: str) -> int:
        size = 0
        async with session.post(base + path, data=ASK, headers=HEADERS) as response:
            async for part in response.content.iter_any():
                size += len(part)
        return size

    return ask


async def rate(ask: Ask, path: str, requests: int) -> float:
    left = iter(range(requests))

    async def worker() -> None:
        for _ in left:
            if not await ask(path):
                raise RuntimeError("an empty answer")

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(32)))
    return requests / (time.perf_counter() - start)


async def measure(base: str, requests: int, repeats: int) -> dict[str, dict[str, float]]:
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
    straight = Client()
    ours, default = OutgoingTransport(), httpx.AsyncHTTPTransport(limits=limits)
    over_ours, over_default = (
        httpx.AsyncClient(transport=OutgoingTransport()),
        httpx.AsyncClient(limits=limits),
    )
    candidates: dict[str, Ask] = {
        "aiohttp alone (no httpx types)": await ask_aiohttp(session, base),
        "gateway.backends.http1": await ask_ours(straight, base),
        "gateway.backends.transport (other than models' servers)": await ask_transport(ours, base),
        "httpx default transport, direct": await ask_transport(default, base),
        "httpx.AsyncClient, default transport": await ask_client(over_default, base),
        "httpx.AsyncClient, our transport": await ask_client(over_ours, base),
    }
    closables = [
        session.close,
        straight.aclose,
        ours.aclose,
        default.aclose,
        over_ours.aclose,
        over_default.aclose,
    ]
    try:
        from httpx_aiohttp import AiohttpTransport as Packaged
    except ImportError:
        print("httpx-aiohttp is not installed: its row is left out")
    else:
        other = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        packaged = Packaged(client=other)
        closables.append(other.close)
        candidates["httpx-aiohttp's transport, direct"] = await ask_transport(packaged, base)
    samples: dict[str, dict[str, list[float]]] = {name: {"requests": [], "chunks": []} for name in candidates}
    for ask in candidates.values():
        await rate(ask, "/chat", 100)
    for _ in range(repeats):
        for name, ask in candidates.items():
            samples[name]["requests"].append(await rate(ask, "/chat", requests))
            samples[name]["chunks"].append(CHUNKS * await rate(ask, "/stream", requests // 8))
    for closable in closables:
        await closable()
    return {
        name: {kind: statistics.median(values) for kind, values in kinds.items()}
        for name, kinds in samples.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sock = socket.create_server(("127.0.0.1", 0))
    server = multiprocessing.get_context("fork").Process(target=serve, args=(sock,), daemon=True)
    with ended_in_order():
        server.start()
        try:
            import uvloop

            base = f"http://127.0.0.1:{sock.getsockname()[1]}"
            table = uvloop.run(measure(base, options.requests, options.repeats))
        finally:
            server.terminate()
    limit = table["aiohttp alone (no httpx types)"]
    print(f"{'client':44} {'requests/s':>11} {'ratio':>6} {'chunks/s':>11} {'ratio':>6}")
    for name, row in table.items():
        shares = [row[kind] / limit[kind] for kind in ("requests", "chunks")]
        print(f"{name:44} {row['requests']:11,.0f} {shares[0]:6.2f} {row['chunks']:11,.0f} {shares[1]:6.2f}")
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
