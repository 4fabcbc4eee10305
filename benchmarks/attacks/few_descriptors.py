"""Strangers open connections and say nothing, or ever so slowly: is there room for anybody else?"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import httpx

from benchmarks.attacks.frame import ALICE, Rig, must
from tests.fakes import completion, reply

POINT = "C.19"
TRIED = "300 silent or slow connections without a key, opened anew when lost, at a gateway of 256 descriptors"
HOLDS = "a tenant is answered all the while"
DESCRIPTORS = 256
STRANGERS = 300
ROUNDS = 40
ELSEWHERE = "127.0.0.2"
"""The tenant's address. At the strangers' own a connection has as long as they take to open 24 more, which on a busy
machine may be less than its first request takes: clients try again."""

SLOW_BODY = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n{"
BEGINNINGS = (b"", b"GET / HTTP/1.1\r\nx: ", SLOW_BODY)


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream(reply(completion()))
    few = ("sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh")
    gateway = await rig.gateway(rig.policy(upstream), wrapped=few)
    strangers = [asyncio.create_task(_stranger(gateway.port, BEGINNINGS[i % 3])) for i in range(STRANGERS)]
    await asyncio.sleep(2)
    answered = 0
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"authorization": f"Bearer {ALICE}", "connection": "close"}  # each over a connection of its own
    try:
        async with httpx.AsyncClient(
            base_url=gateway.http.base_url,
            transport=httpx.AsyncHTTPTransport(local_address=ELSEWHERE),
            headers=headers,
            timeout=60,
        ) as alice:
            for _ in range(ROUNDS):
                await asyncio.sleep(0.1)
                with suppress(httpx.TransportError):
                    answer = await alice.post("/v1/chat/completions", json=body)
                    answered += answer.status_code == 200
    finally:
        for stranger in strangers:
            stranger.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
    must(answered == ROUNDS, f"{ROUNDS - answered} of {ROUNDS} of the tenant's requests failed")
    complaints = sum("Too many open files" in line for line in gateway.lines)
    must(complaints == 0, "the gateway ran out of file descriptors")
    return f"{answered} of {ROUNDS} answered"


async def _stranger(port: int, beginning: bytes) -> None:
    loop = asyncio.get_running_loop()
    while True:
        with suppress(OSError), socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await loop.sock_sendall(sock, beginning)
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        if not await loop.sock_recv(sock, 4096):
                            break
                await loop.sock_sendall(sock, b"x" if beginning else b"")
        await asyncio.sleep(0.5)
