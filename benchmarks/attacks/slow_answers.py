"""One tenant's slow answers: do they take the places of another's at a backend whose limit nobody states?"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress

import orjson

from benchmarks.attacks.frame import ALICE, MALLORY, Gateway, Rig, must
from tests.fakes import Action, FakeUpstream, Script, answer_events, completion, reply, stream

POINT = "30.2"
TRIED = "20 quick answers, then 48 streams of one tenant's that think for 3 s and stay open; 40 more that nobody reads"
HOLDS = "alice's requests, to another model of that backend and to the same, wait for none of them"
SLOW, UNREAD, WARM = 48, 40, 20
THINKS, SECONDS = 3.0, 1.0
"""Seconds: of thought before a slow stream's first token, and that alice waits at most. Hers take milliseconds."""


class Thinking(FakeUpstream):
    """``slow`` says of a message whether its answer is long in coming, and stays open."""

    def next_script(self) -> Script:
        asked = self.requests[-1].json()
        text = asked["messages"][-1]["content"]
        if "riddle" in text:
            return stream(THINKS, *answer_events("Hm")[:-3], Action.HANG)
        if "book" in text:
            return stream(THINKS, *answer_events(*["x" * 2**18] * 40)[:-3], Action.HANG)
        if asked.get("stream"):
            return stream(0.005, *answer_events("Hello"))
        return (0.005, *reply(completion()))


async def attack(rig: Rig) -> str:
    async with Thinking() as upstream:
        models = {"thinker": {"targets": [{"backend": "up", "model": "thinker"}]}}
        gateway = await rig.gateway(
            rig.policy(upstream, models=models, tiers={"default": {"max_wait": "60s"}})
        )
        for _ in range(WARM):
            await gateway.chat(MALLORY, "Quick", "thinker", stream=True)
        held: list[asyncio.Task[None]] = []
        sockets: list[socket.socket] = []
        try:
            held += [asyncio.create_task(_hold(gateway, "A riddle")) for _ in range(SLOW)]
            worst = await _slowest(gateway, THINKS + 4)
            must(worst <= SECONDS, f"beside {SLOW} slow streams alice waits {worst:.1f} s")
            told = f"{worst:.2f} s beside {SLOW} slow streams"
            sockets += [_unread(gateway.port) for _ in range(UNREAD)]
            worst = await _slowest(gateway, THINKS + 4)
            must(worst <= SECONDS, f"beside {UNREAD} clients that do not read alice waits {worst:.1f} s")
        finally:
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            for sock in sockets:
                sock.close()
    return f"alice waits {told} at most, {worst:.2f} s beside {UNREAD} clients that do not read"


async def _hold(gateway: Gateway, text: str) -> None:
    body = {"model": "thinker", "stream": True, "messages": [{"role": "user", "content": text}]}
    headers = {"authorization": f"Bearer {MALLORY}"}
    async with gateway.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        with suppress(Exception):
            async for _ in answer.aiter_raw():
                pass


async def _slowest(gateway: Gateway, seconds: float) -> float:
    """The longest that alice has waited for an answer, of so many seconds' requests; one begun is seen to its end."""
    worst, end = 0.0, time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        number += 1
        began = time.monotonic()
        model, streamed = ("thinker", "m")[number % 2], bool(number % 4 < 2)
        answer = await gateway.chat(ALICE, f"Hi {number}", model, stream=streamed)
        must(answer.status_code == 200, f"alice got {answer.status_code}: {answer.text[:150]}")
        worst = max(worst, time.monotonic() - began)
        await asyncio.sleep(0.02)
    return worst


def _unread(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    messages = [{"role": "user", "content": "A book"}]
    body = orjson.dumps({"model": "thinker", "stream": True, "messages": messages})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {MALLORY}\r\n"
    sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    sock.setblocking(False)
    return sock
