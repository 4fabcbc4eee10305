"""Redis loses what was spent, or has what was so a while ago: is a budget there anew?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from redis import asyncio as redis

from benchmarks.attacks.frame import Rig, must
from benchmarks.attacks.frame.gateway import Gateway
from benchmarks.attacks.frame.provider import spent
from benchmarks.attacks.frame.rig import a_key
from tests.fakes import FakeUpstream, completion, reply
from tests.redis_server import RedisServer

POINT = "30.7"
TRIED = (
    "two workers, `closed`, Redis: all or half of $1 a day spent, and at once FLUSHALL, SCRIPT FLUSH, killed and "
    "restarted empty, older data in its place, a late replica; then requests for 6 s"
)
HOLDS = "nobody spends more than $1, by the ledger; who had half left can spend most of that"
BUDGET = 1.0

Data = dict[bytes, bytes]
Loss = Callable[[RedisServer, redis.Redis, Data], Awaitable[object]]


async def flush(server: RedisServer, client: redis.Redis, old: Data) -> None:
    await client.flushall()


async def flush_scripts(server: RedisServer, client: redis.Redis, old: Data) -> None:
    await client.script_flush()


async def restart(server: RedisServer, client: redis.Redis, old: Data) -> None:
    server.kill()
    server.start()


async def go_back(server: RedisServer, client: redis.Redis, old: Data) -> None:
    """As a replica that had fallen behind."""
    async with client.pipeline(transaction=True) as pipe:
        pipe.flushall()
        for key, value in old.items():
            pipe.restore(key, 60_000, value)
        await pipe.execute()


async def fail_over(server: RedisServer, client: redis.Redis, old: Data) -> None:
    """To a replica that was half a second behind, or so."""
    server.kill()
    server.start()
    await go_back(server, client, old)


LOSSES: dict[str, Loss] = {
    "FLUSHALL": flush,
    "SCRIPT FLUSH": flush_scripts,
    "restarted": restart,
    "older data": go_back,
    "replica": fail_over,
}


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream(reply(completion()))
    server = rig.redis()
    tenants = [f"{part}-{name}".replace(" ", "-").lower() for name in LOSSES for part in ("all", "half")]
    policy = budgets(rig, upstream, server, tenants)
    gateway = await rig.gateway(policy, "--workers", "2")
    found = []
    for name, lose in LOSSES.items():
        for part, most in (("all", 100), ("half", 15)):
            tenant = f"{part}-{name}".replace(" ", "-").lower()
            client = redis.Redis(port=server.port)
            old = await data(client)
            await asyncio.sleep(1.5)
            if lose is fail_over:
                old = await data(client)
            before = await ask(gateway, tenant, times=most)
            await lose(server, client, old)
            await client.aclose()
            after = await ask(gateway, tenant, seconds=6.0)
            found.append(f"{name} {before}+{after}")
    await asyncio.sleep(0.5)
    costs: dict[str, float] = {}
    for row in spent(gateway):
        costs[row["tenant"]] = costs.get(row["tenant"], 0.0) + row["cost_nanodollars"] / 1e9
    must(costs.keys() == set(tenants), f"the ledger has {sorted(costs)}")
    for tenant, dollars in costs.items():
        must(dollars <= BUDGET, f"{tenant} spent ${dollars:.3f} of ${BUDGET}: {', '.join(found)}")
        must(dollars >= 0.75 * BUDGET, f"{tenant} got no more than ${dollars:.3f} of ${BUDGET}")
    return "let in before and after: " + ", ".join(found)


def budgets(rig: Rig, upstream: FakeUpstream, server: RedisServer, tenants: list[str]) -> dict[str, Any]:
    """A policy by which each of ``tenants`` has one, of which a request takes three cents."""
    policy = rig.policy(
        upstream,
        store=server.url,
        on_store_failure="closed",
        prices={"upstream-model": {"input": 4000.0, "output": 0.0}},
        tenants={name: {"budget": {"usd_per_day": BUDGET}} for name in tenants},
    )
    policy["keys"] = [a_key(f"tg-{name}", name, tenant=name) for name in tenants]
    return policy


async def ask(gateway: Gateway, tenant: str, *, times: int = 1000, seconds: float = 60.0) -> int:
    """How many are let in, of so many at once, or one after the other for so long."""
    let_in, until = 0, asyncio.get_running_loop().time() + seconds
    for _ in range(times):
        answer: Any = await gateway.chat(f"tg-{tenant}", max_tokens=1)
        must(answer.status_code in (200, 429, 503), f"{answer.status_code}: {answer.text[:200]}")
        let_in += answer.status_code == 200
        if asyncio.get_running_loop().time() > until or (seconds == 60.0 and answer.status_code == 429):
            break
        if answer.status_code != 200:
            await asyncio.sleep(0.05)
    return let_in


async def data(client: redis.Redis) -> Data:
    found = {key: await client.dump(key) async for key in client.scan_iter()}
    return {key: value for key, value in found.items() if value is not None}
