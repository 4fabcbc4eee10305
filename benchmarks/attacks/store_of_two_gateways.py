"""Two gateways on one Redis, each with a ledger of its own: the store loses what both have just spent."""

from __future__ import annotations

import asyncio

from redis import asyncio as redis

from benchmarks.attacks.frame import Rig, must
from benchmarks.attacks.frame.provider import spent
from benchmarks.attacks.store_loses_data import BUDGET, LOSSES, ask, budgets, data, fail_over
from tests.fakes import completion, reply

POINT = "30.7"
TRIED = (
    "two gateways of two workers each, `closed`, one Redis, ledgers of their own: both spend $0.42 of $1 in half a "
    "second, and at once FLUSHALL, SCRIPT FLUSH, killed and restarted empty, older data in its place, a late replica; "
    "then requests at both for 6 s"
)
HOLDS = "nobody spends more than $1, by both ledgers together, and can spend most of it"
EACH = 15
"""Requests at each gateway before the loss."""


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream(reply(completion()))
    server = rig.redis()
    tenants = [name.replace(" ", "-").lower() for name in LOSSES]
    policy = budgets(rig, upstream, server, tenants)
    gateways = [await rig.gateway(policy, "--workers", "2") for _ in range(2)]
    found = []
    for name, tenant in zip(LOSSES, tenants, strict=True):
        client = redis.Redis(port=server.port)
        old = await data(client)
        await asyncio.sleep(1.5)
        if LOSSES[name] is fail_over:
            old = await data(client)
        before = await asyncio.gather(*(ask(gateway, tenant, times=EACH) for gateway in gateways))
        await LOSSES[name](server, client, old)
        await client.aclose()
        after = await asyncio.gather(*(ask(gateway, tenant, seconds=6.0) for gateway in gateways))
        found.append(f"{name} {before}+{after}")
    await asyncio.sleep(0.5)
    costs = dict.fromkeys(tenants, 0.0)
    for gateway in gateways:
        for row in spent(gateway):
            costs[row["tenant"]] += row["cost_nanodollars"] / 1e9
    for tenant, dollars in costs.items():
        must(dollars <= BUDGET, f"{tenant} spent ${dollars:.3f} of ${BUDGET}: {', '.join(found)}")
        must(dollars >= 0.75 * BUDGET, f"{tenant} got no more than ${dollars:.3f} of ${BUDGET}")
    return "let in before and after: " + ", ".join(found)
