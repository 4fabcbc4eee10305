"""Clients that do not read, or read a little now and then: do they keep their places at a backend?"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress

import orjson

from benchmarks.attacks.frame import MALLORY, Rig, must
from tests.fakes import answer_events, stream

POINT = "C.15"
TRIED = (
    "one tenant takes all 4 places with long streams, and reads nothing, or 100 bytes a second (total: 8s)"
)
HOLDS = "the upstreams are closed, and the places free, within write time-out or total"
PLACES = 4
TOTAL = 8.0
WRITE_TIMEOUT = 4.0


async def attack(rig: Rig) -> str:
    told = []
    for reads in (0, 100):
        upstream = await rig.upstream(stream(*answer_events(*["x" * 2**16] * 600)))
        model = {
            "targets": [{"backend": "up", "model": "upstream-model"}],
            "timeouts": {"first_token": "4s", "idle": "4s", "total": f"{TOTAL:g}s"},
        }
        backend = {"kind": "openai", "base_url": upstream.base_url, "max_concurrency": PLACES}
        policy = rig.policy(
            backends={"up": backend},
            models={"m": model},
            tiers={"default": {"max_wait": "30s"}},
        )
        gateway = await rig.gateway(policy, TOLLGATE_WRITE_TIMEOUT=str(WRITE_TIMEOUT))
        readers = [_reader(gateway.port) for _ in range(PLACES)]
        reading = asyncio.create_task(_read(readers, reads))
        await upstream.arrived(PLACES)
        began = time.monotonic()
        try:
            async with asyncio.timeout(TOTAL + 10):
                await asyncio.gather(*(request.left.wait() for request in upstream.requests[:PLACES]))
        except TimeoutError:
            held = sum(not request.left.is_set() for request in upstream.requests[:PLACES])
            must(
                held == 0,
                f"reading {reads} bytes a second, {held} of {PLACES} are held after {TOTAL + 10:g} s",
            )
        finally:
            reading.cancel()
            for sock in readers:
                sock.close()
        told.append(f"{reads} bytes/s: free after {time.monotonic() - began:.1f} s")
    return "; ".join(told)


def _reader(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    body = orjson.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {MALLORY}\r\n"
    sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    sock.setblocking(False)
    return sock


async def _read(readers: list[socket.socket], size: int) -> None:
    while size:
        for sock in readers:
            with suppress(OSError):
                sock.recv(size)
        await asyncio.sleep(1)
