"""Workers with counters of their own read the ledger when they start: is spending shown that nobody spent?"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from benchmarks.attacks.frame import ALICE, Gateway, Rig, must
from benchmarks.attacks.frame.rig import a_key
from tests.fakes import completion, reply

POINT = "30.9"
TRIED = (
    "two workers, `store: memory`: spending, a reload, each worker killed in turn, and spending in between"
)
HOLDS = "`GET /admin/api/tenants` shows of the day's and the month's budget what the ledger has, a tier's too"

OPS = {"authorization": "Bearer tg-ops-1"}
TIMES = 20


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream(reply(completion()))
    budget = {"budget": {"usd_per_day": 100.0, "usd_per_month": 100.0}}
    policy = rig.policy(
        upstream,
        prices={"upstream-model": {"input": 1000.0, "output": 1000.0}},
        tenants={"alice": {"tier": "pro", **budget}},
        tiers={"pro": budget},
        admin={"enabled": True},
    )
    policy["keys"].append(a_key("tg-ops-1", "ops", tenant="ops", scopes=["admin"]))
    gateway = await rig.gateway(policy, "--workers", "2")
    shown = [await _spend(gateway)]
    gateway.write({**policy, "metrics": {"max_tenants": 50}})
    await asyncio.sleep(3)
    shown.append(await _spend(gateway))
    for pid in gateway.workers:
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while pid in gateway.workers or len(gateway.workers) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        shown.append(await _spend(gateway))
    return "as it is: " + ", ".join(f"${dollars:.3f}" for dollars in shown)


async def _spend(gateway: Gateway) -> float:
    """At once, over connections of which either worker accepts some. Returns what is shown."""
    for answer in await asyncio.gather(*(gateway.chat(ALICE) for _ in range(TIMES))):
        must(answer.status_code == 200, f"{answer.status_code}: {answer.text[:200]}")
    real, used = 0.0, [1.0]
    for _ in range(10):
        told: Any = (await gateway.http.get("/admin/api/tenants", headers=OPS)).json()
        alice = next(one for one in told["tenants"] if one["name"] == "alice")
        real, used = alice["month_usd"], [one["used"] for one in alice["limits"]]
        if all(abs(one - real) < 1e-6 for one in used):
            break
        await asyncio.sleep(0.5)
    else:
        must(False, f"shown as used: {used}; the ledger has {real}")
    return real
