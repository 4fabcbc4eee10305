"""Who begins an answer that another key reads along hangs up: is what it may still cost held until its end?"""

from __future__ import annotations

import asyncio

from benchmarks.attacks.frame import MALLORY, Gateway, Rig, must
from benchmarks.attacks.frame.provider import PRICE, Provider

POINT = "B.8"
TRIED = "mallory asks twice for an answer of $0.16 on $0.20 a day, leaves the first, and asks for another of $0.16"
HOLDS = "by the upstream's own books no more than $0.20 is spent"

BUDGET = 0.2
TOKENS = 16_000


async def attack(rig: Rig) -> str:
    async with Provider(lambda asked: TOKENS, silent=3.0) as upstream:
        gateway = await rig.gateway(
            rig.policy(
                upstream,
                prices={"upstream-model": PRICE},
                tenants={"mallory": {"budget": {"usd_per_day": BUDGET}}},
                caches={"exact": {"ttl": "1h"}},
            )
        )
        first = asyncio.create_task(_ask(gateway, "A long story."))
        await upstream.arrived()
        second = asyncio.create_task(_ask(gateway, "A long story."))
        await asyncio.sleep(0.5)
        first.cancel()
        await asyncio.wait([first])
        await asyncio.sleep(0.5)
        statuses = await asyncio.gather(second, _ask(gateway, "Another."))
        spent = upstream.nanodollars() / 1e9
        must(spent <= BUDGET, f"${spent:.2f} were spent")
        must(statuses[0] == 200, f"who read along got {statuses[0]}")
        return f"${spent:.2f} spent, the third was refused with {statuses[1]}"


async def _ask(gateway: Gateway, content: str) -> int:
    return (await gateway.chat(MALLORY, content, max_tokens=TOKENS, stream=True)).status_code
