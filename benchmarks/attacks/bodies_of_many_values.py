"""Bodies of a million small values, valid and not: does anybody else wait?"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson

from benchmarks.attacks.frame import MALLORY, Rig, must

POINT = "A.2"
TRIED = "bodies of 9 MB of tiny messages, parts, tools, token ids and objects, one after the other"
HOLDS = "nobody else waits for more than a second"
SIZE = 9_000_000


async def attack(rig: Rig) -> str:
    gateway = await rig.gateway(rig.policy())
    user = {"role": "user", "content": "x"}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": [user] * (SIZE // 30)}),
        (
            "/v1/chat/completions",
            {"messages": [{**user, "content": [{"type": "text", "text": ""}] * (SIZE // 27)}]},
        ),
        ("/v1/chat/completions", {"messages": [user], "tools": [{}] * (SIZE // 3)}),
        ("/v1/chat/completions", {"messages": [user], "unknown": [[]] * (SIZE // 3)}),
        ("/v1/completions", {"prompt": [[1]] * (SIZE // 4)}),
        ("/v1/completions", {"prompt": [1.5] * (SIZE // 4)}),
    ]
    sent = [(path, orjson.dumps({"model": "m", **body})) for path, body in bodies]
    longest, done = 0.0, False

    async def wait() -> None:
        nonlocal longest
        while not done:
            began = time.monotonic()
            must(await gateway.is_alive(60), "the worker answers nobody any more")
            longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0.01)

    waiting = asyncio.create_task(wait())
    command = ["curl", "-s", "-o", "/dev/null", "-X", "POST", "--data-binary", "@-", "-H"]
    for path, body in sent:
        # From another process: to send it takes time of this one's loop.
        sender = await asyncio.create_subprocess_exec(
            *(*command, f"authorization: Bearer {MALLORY}", gateway.url + path), stdin=asyncio.subprocess.PIPE
        )
        await sender.communicate(body)
    done = True
    await waiting
    must(longest < 1.0, f"others waited for {longest:.1f} s")
    return f"others waited for {longest * 1000:.0f} ms at most"
