"""One tenant fills a backend's queue: is another refused, who has next to nothing in it?"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must
from tests.fakes import completion, reply

POINT = "30.2"
TRIED = "80 connections of one tenant's before a backend of 4 places whose line has 40 (of 100 ms each)"
HOLDS = "alice is answered each time, with a deadline and without one"
PLACES, LINE, FLOOD, SECONDS = 4, 40, 80, 6.0


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream((0.1, *reply(completion())))
    policy = rig.policy(
        backends={"up": {"kind": "openai", "base_url": upstream.base_url, "max_concurrency": PLACES}},
        tiers={"default": {"max_queue": LINE}},
    )
    gateway = await rig.gateway(policy, "--workers", "1")

    async def flood() -> None:
        while True:
            await gateway.chat(MALLORY, "Hi")

    flooding = [asyncio.create_task(flood()) for _ in range(FLOOD)]
    told: Counter[int] = Counter()
    worst = 0.0
    try:
        await asyncio.sleep(2)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            began = time.monotonic()
            headers = {"x-tollgate-deadline": "20s"} if told.total() % 2 else {}
            body = {"model": "m", "messages": [{"role": "user", "content": f"Hi {told.total()}"}]}
            told[(await gateway.post(ALICE, body, headers=headers)).status_code] += 1
            worst = max(worst, time.monotonic() - began)
    finally:
        for task in flooding:
            task.cancel()
        await asyncio.gather(*flooding, return_exceptions=True)
    refused = told.total() - told[200]
    must(not refused, f"{refused} of alice's {told.total()} requests were refused: {dict(told)}")
    return f"all {told[200]} of alice's requests answered, {worst:.2f} s at most"
