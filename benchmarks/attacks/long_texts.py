"""One tenant's long texts for the small models: do another's short ones wait behind them?"""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.attacks.frame import ALICE, MALLORY, Gateway, Rig, must, skip

POINT = "C.20"
TRIED = "8 requests of 30,000 characters under way all the time, read by two guards' models; short ones of alice's"
HOLDS = "alice's median is no more than three times what it is without them, and 30 ms"
ROUNDS, FLOOD, TIMES = 40, 8, 3
NOISE = 0.03
"""Seconds: of a machine that others use, too, and that computes the long texts meanwhile."""


async def attack(rig: Rig) -> str:
    guard = {"on": ["input"], "action": "block", "checks": ["model"], "threshold": 0.999, "timeout": "60s"}
    try:
        guards = {"toxicity": guard, "injection": guard}
        gateway = await rig.gateway(rig.policy(guards=guards), HF_HUB_OFFLINE="1")
    except RuntimeError as error:
        skip(f"the small models are not here ({str(error).strip().splitlines()[-1][:100]})")
    before = await _median(gateway)
    read = 0

    async def flood(number: int) -> None:
        nonlocal read
        while True:
            # What was read lately is not read again.
            text = f"{number} {time.monotonic()}: "
            text += "Where does the river begin, and what does it pass on its way? " * 480
            answer = await gateway.chat(MALLORY, text)
            must(answer.status_code == 200, f"a long text got {answer.status_code}: {answer.text[:150]}")
            read += 1

    floods = [asyncio.create_task(flood(number)) for number in range(FLOOD)]
    await asyncio.sleep(2)
    beside = await _median(gateway)
    async with asyncio.timeout(60):
        while not read:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    for one in floods:
        one.cancel()
    for ended in await asyncio.gather(*floods, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    await asyncio.sleep(2)
    # The machine may have got busier, or calmer.
    alone = max(before, await _median(gateway))
    told = f"p50 {alone * 1000:.0f} ms alone, {beside * 1000:.0f} ms beside the long texts"
    must(beside <= TIMES * alone + NOISE, told)
    return told


async def _median(gateway: Gateway) -> float:
    times = []
    for number in range(ROUNDS):
        began = time.monotonic()
        answer = await gateway.chat(ALICE, f"River number {number} at {began}?")
        must(answer.status_code == 200, f"alice got {answer.status_code}: {answer.text[:150]}")
        times.append(time.monotonic() - began)
    return statistics.median(times)
