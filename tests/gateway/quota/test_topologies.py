"""Budgets where Redis fails over in the middle of traffic: a real cluster, and servers that real Sentinels watch."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from redis.crc import key_slot

from gateway.errors import Overloaded
from gateway.policy.schema import Policy
from gateway.quota import redis as module
from gateway.quota.groups import TIERS, group_of
from gateway.quota.limits import Amounts, Limit, Limits, calendar_groups
from gateway.quota.quotas import open_counters
from gateway.quota.spread import SpreadCounters
from gateway.quota.store_outage import FailoverCounters
from gateway.stores.redis_parts import TAGS, part_of
from gateway.stores.script import Command
from tests.redis_topologies import RedisCluster, RedisNode, SentinelSet

pytestmark = pytest.mark.anyio

BUDGET = 900
GATEWAYS = 3
Shared = FailoverCounters | SpreadCounters
Open = Callable[[str], Shared]


def budget(tenant: str, on_failure: str = "closed") -> Limits:
    each = (Limit("tenant", tenant, "dollars", "month", BUDGET),)
    return Limits(each, on_failure, group=tenant)  # type: ignore[arg-type]


def cost(amount: int) -> Amounts:
    return Amounts(1, 0, amount, 1)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like a server that is away."""
    monkeypatch.setattr(module, "TIMEOUT", 10.0)


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        def make(url: str) -> Shared:
            counters = open_counters(url)
            stack.push_async_callback(counters.aclose)
            return counters

        yield make


async def eventually(true: Callable[[], object]) -> None:
    async with asyncio.timeout(300):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def spend(gateway: Shared, limits: Limits, amount: int, times: int) -> int:
    """How much of it is let in, one after the other; each is settled a moment later."""
    spent = 0
    for _ in range(times):
        name = secrets.token_hex(8)
        try:
            admitted = (await gateway.reserve(name, limits, cost(amount))).admitted
        except Overloaded:
            admitted = False
        await asyncio.sleep(0.01)
        if admitted:
            gateway.settle(name, limits, cost(amount))
            spent += amount
    return spent


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_a_clusters_failover_renews_no_budget(
    redis_cluster: RedisCluster, opened: Open, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do tenants on other masters notice."""
    if how is signal.SIGSTOP:
        monkeypatch.setattr(module, "TIMEOUT", 1.0)
    mark = secrets.token_hex(4)
    tenants = [f"{mark}-{i}" for i in range(24)]
    gateways = [opened(redis_cluster.url) for _ in range(GATEWAYS)]
    for gateway in gateways:
        gateway.watch()
    await eventually(lambda: all(one.up == 1.0 and knows_all(one) for one in gateways))
    master = redis_cluster.master_of(key_slot(TAGS[0].encode()))
    on_it = [tag for tag in TAGS if redis_cluster.master_of(key_slot(tag.encode())) is master]
    hit = [tenant for tenant in tenants if part_of(tenant, TAGS) in on_it]
    assert 0 < len(hit) < len(tenants)

    spent = dict.fromkeys(tenants, 0)

    async def use(times: int) -> None:
        pairs = [(tenant, gateway) for tenant in tenants for gateway in gateways]
        found = await asyncio.gather(
            *(spend(gateway, budget(tenant), 20, times) for tenant, gateway in pairs)
        )
        for (tenant, _), amount in zip(pairs, found, strict=True):
            spent[tenant] += amount

    await use(5)
    assert set(spent.values()) == {300}
    using = asyncio.create_task(use(30))
    await asyncio.sleep(0.05)
    master.signal(how)
    await using
    await eventually(lambda: all(one.up == 1.0 for one in gateways))
    assert all(one.losses for one in gateways)
    await use(15)
    if how is signal.SIGSTOP:
        master.signal(signal.SIGCONT)
    else:
        master.kill()
    await asyncio.to_thread(redis_cluster.mend)
    assert all(BUDGET - 60 <= spent[tenant] <= BUDGET for tenant in tenants), spent
    if how is signal.SIGKILL:
        assert all(spent[tenant] == BUDGET for tenant in tenants if tenant not in hit), (
            "the others saw nothing"
        )


async def test_a_sentinels_failover_renews_no_budget(sentinel_set: SentinelSet, opened: Open) -> None:
    limits, failovers = budget(secrets.token_hex(4)), sentinel_set.failovers
    gateways = [opened(sentinel_set.url) for _ in range(GATEWAYS)]
    for gateway in gateways:
        gateway.watch()
    await eventually(lambda: all(knows_all(one) for one in gateways))
    spent = sum(await asyncio.gather(*(spend(one, limits, 20, 5) for one in gateways)))
    assert spent == 300
    using = asyncio.gather(*(spend(one, limits, 20, 30) for one in gateways))
    await asyncio.sleep(0.05)
    before: RedisNode = sentinel_set.master
    before.kill()
    spent += sum(await using)
    await eventually(lambda: all(one.up == 1.0 for one in gateways))
    assert sentinel_set.master is not before
    assert all(1 <= one.losses <= sentinel_set.failovers - failovers for one in gateways)
    spent += sum(await asyncio.gather(*(spend(one, limits, 20, 15) for one in gateways)))
    await asyncio.to_thread(sentinel_set.mend)
    assert BUDGET - 60 <= spent <= BUDGET


async def test_a_reservation_is_one_round_trip(
    redis_cluster: RedisCluster, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a settlement, to the one server that counts it; those under way at once share one."""
    monkeypatch.setattr(module, "RENEW_EVERY", 3600.0)
    limits, counters = budget(secrets.token_hex(4)), opened(redis_cluster.url)
    counters.watch()
    assert await spend(counters, limits, 1, 1) == 1
    await eventually(lambda: all(part._store._commands.renewed >= 0 for part in parts_of(counters)))
    part = part_of(limits.group, parts_of(counters))
    await eventually(lambda: not part._store._settlements and part._store._sending.done())  # type: ignore[union-attr]
    trips = []
    execute = part._store._run

    async def counted(commands: Sequence[Command], **how: bool) -> list[Any]:
        trips.append(len(commands))
        return await execute(commands, **how)

    monkeypatch.setattr(part._store, "_run", counted)
    calls = {node.port: evaluated(node) for node in redis_cluster.nodes}
    for i in range(5):
        assert (await counters.reserve(str(i), limits, cost(1))).admitted
    assert trips == [1] * 5
    await asyncio.gather(*(counters.reserve(f"more-{i}", limits, cost(1)) for i in range(20)))
    assert trips == [1] * 5 + [20]
    now = {node.port: evaluated(node) - calls[node.port] for node in redis_cluster.nodes}
    assert sorted(now.values()) == [0] * 5 + [25]


def evaluated(node: RedisNode) -> int:
    """How many scripts it has run, but for others' renewals."""
    stats = node.ask("INFO", "commandstats")
    assert isinstance(stats, dict)
    return int(stats.get("cmdstat_evalsha", {"calls": 0})["calls"])


async def test_a_moved_slot_is_followed(redis_cluster: RedisCluster, opened: Open) -> None:
    """As the operator's tools move slots to another master: what they hold goes with them."""
    limits = budget(f"moved-{secrets.token_hex(4)}")
    counters = opened(redis_cluster.url)
    assert await spend(counters, limits, 100, 3) == 300
    slot = key_slot(part_of(limits.group, TAGS).encode())
    source = redis_cluster.master_of(slot)
    target = next(node for node in map(redis_cluster.master_of, (100, 8000, 16000)) if node is not source)
    await asyncio.to_thread(redis_cluster.move, slot, source, target)
    try:
        found = 0
        async with asyncio.timeout(300):
            while found < 600:
                found += await spend(counters, limits, 100, 1)
        assert await spend(counters, limits, 100, 3) == 0
    finally:
        await asyncio.to_thread(redis_cluster.move, slot, target, source)


def knows_all(counters: Shared) -> bool:
    return all(part._store.known.gateways >= GATEWAYS for part in parts_of(counters))


def parts_of(counters: Shared) -> tuple[FailoverCounters, ...]:
    return counters._parts if isinstance(counters, SpreadCounters) else (counters,)


def test_what_shares_a_limit_shares_a_part() -> None:
    tiers = {"free": {"budget": {"usd_per_day": 1}}, "pro": {"priority": 1}}
    keys = [
        {"id": "a", "sha256": "0" * 64, "tenant": "two-tiers", "tier": "free"},
        {"id": "b", "sha256": "1" * 64, "tenant": "two-tiers", "tier": "pro", "budget": {"usd_per_month": 1}},
        {"id": "c", "sha256": "2" * 64, "tenant": "alone", "budget": {"usd_per_month": 1}},
    ]
    tenants = {"free-one": {"tier": "free", "budget": {"usd_per_day": 2}}, "pro-one": {"tier": "pro"}}
    fake = {
        "backends": {"b": {"kind": "fake", "script": [{"reply": "x"}]}},
        "models": {"m": {"targets": [{"backend": "b", "model": "m"}]}},
    }
    policy = Policy.model_validate({"version": 1, **fake, "tiers": tiers, "keys": keys, "tenants": tenants})
    assert [group_of(policy, name, None) for name in ("free-one", "pro-one", "alone", "unknown")] == [
        *(TIERS, "pro-one", "alone", "unknown")
    ]
    assert {group_of(policy, "two-tiers", tier) for tier in ("free", "pro", None)} == {TIERS}
    assert calendar_groups(policy) == {
        "key:b:dollars:month": TIERS,
        "key:c:dollars:month": "alone",
        "tenant:free-one:dollars:day": TIERS,
        "tier:free:dollars:day": TIERS,
    }
