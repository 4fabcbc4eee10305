"""A server that answers once too often: does the surplus go to the next caller?"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import orjson

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must
from tests.fakes import completion

POINT = "D.22"
TRIED = "1,200 rounds at an upstream that sends a second answer 0 to 5 ms after each, by two tenants in turns"
HOLDS = "nobody gets another's answer"
ROUNDS = 1200
LATEST = 0.005


async def attack(rig: Rig) -> str:
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        backend = {"kind": "openai", "base_url": f"http://127.0.0.1:{port}/v1"}
        gateway = await rig.gateway(rig.policy(backends={"up": backend}))
        crossed = failed = 0
        for number in range(ROUNDS):
            question = f"question {number}"
            answer = await gateway.chat((ALICE, MALLORY)[number % 2], question)
            if answer.status_code != 200:
                failed += 1
            elif answer.json()["choices"][0]["message"]["content"] != question:
                crossed += 1
            await asyncio.sleep(random.uniform(0, LATEST))
    must(crossed == 0, f"{crossed} of {ROUNDS} got another's answer")
    must(failed == 0, f"{failed} of {ROUNDS} failed")
    return f"0 of {ROUNDS} crossed, none failed"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            asked = await reader.readexactly(int(size or 0))
            question = orjson.loads(asked)["messages"][-1]["content"] if asked else "a probe"
            await asyncio.sleep(random.uniform(0, LATEST / 2))
            writer.write(said(question))
            asyncio.get_running_loop().call_later(
                random.uniform(0, LATEST), writer.write, said(f"surplus of {question}")
            )


def said(text: str) -> bytes:
    body = orjson.dumps(completion(text, id=f"chatcmpl-{random.getrandbits(64):x}"))
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )
