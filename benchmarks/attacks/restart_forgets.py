"""Counters in memory, a spent budget, and the worker killed: does the one in its place know?"""

from __future__ import annotations

import asyncio
import os
import signal

from benchmarks.attacks.frame import MALLORY, Rig, must
from tests.fakes import completion, reply

POINT = "B.12"
TRIED = "store: memory, a budget spent, the worker killed (SIGKILL), then 20 requests to the one in its place"
HOLDS = "none of them is let in"


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream(reply(completion()))
    policy = rig.policy(
        upstream,
        prices={"upstream-model": {"input": 1000.0, "output": 1000.0}},
        tenants={"mallory": {"budget": {"usd_per_month": 0.08}}},
    )
    gateway = await rig.gateway(policy)
    before = 0
    while (await gateway.chat(MALLORY, max_tokens=10)).status_code == 200:
        before += 1
        must(before < 50, "the budget is never spent")
    await asyncio.sleep(1)  # the ledger is written every tenth of a second
    for worker in gateway.workers:
        os.kill(worker, signal.SIGKILL)
    async with asyncio.timeout(60):
        while not await gateway.is_alive():  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    answers = [await gateway.chat(MALLORY, max_tokens=10) for _ in range(20)]
    let_in = sum(answer.status_code == 200 for answer in answers)
    must(let_in == 0, f"{let_in} of 20 were let in")
    return f"{before} let in until it was spent, 0 of 20 afterwards"
