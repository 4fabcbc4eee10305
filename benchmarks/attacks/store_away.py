"""Redis stands still, and a budget that is spent there is asked for again, at every gateway."""

from __future__ import annotations

import asyncio
import signal

from benchmarks.attacks.frame import ALICE, MALLORY, Rig, must
from tests.fakes import completion, reply

POINT = "B.11"
TRIED = "a budget spent at one gateway, Redis stopped, then 20 requests at each of two gateways that share it"
HOLDS = "none of them is let in, and another tenant is"


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream(reply(completion()))
    server = rig.redis()
    policy = rig.policy(
        upstream,
        store=server.url,
        prices={"upstream-model": {"input": 1000.0, "output": 1000.0}},
        tenants={
            "mallory": {"budget": {"usd_per_month": 0.08}},
            "alice": {"quotas": {"concurrent_requests": 9}},
        },
    )
    one, other = [await rig.gateway(policy) for _ in range(2)]
    before = 0
    while (await one.chat(MALLORY, max_tokens=10)).status_code == 200:
        before += 1
        must(before < 50, "the budget is never spent")
    await asyncio.sleep(2)  # what processes know of each other is a second old at most
    if server.process is not None:
        server.process.send_signal(signal.SIGSTOP)
    answers = [await gateway.chat(MALLORY, max_tokens=10) for gateway in (one, other) for _ in range(20)]
    let_in = sum(answer.status_code == 200 for answer in answers)
    neighbour = await other.chat(ALICE)
    must(let_in == 0, f"{let_in} of 40 were let in")
    must(neighbour.status_code == 200, f"the other tenant got {neighbour.status_code}")
    return f"{before} let in until it was spent, 0 of 40 afterwards"
