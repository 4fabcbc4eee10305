"""A learnt limit is shared: what one tenant holds of it beyond its share keeps no other out."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from math import log
from typing import Any

import pytest

from gateway.admission.adaptive_limit import MAX_LIMIT, MIN_LIMIT, AdaptiveLimit
from gateway.admission.fair_queue import QueueTerms
from gateway.admission.fair_shares import FairShares, Flow
from gateway.admission.pool import Pool
from gateway.admission.slot_lease import SlotLease
from gateway.errors import Overloaded
from gateway.types import Call, Chunk, Chunks, Usage
from tests.gateway.admission.test_adaptive_limit import Server
from tests.gateway.admission.test_queue import Gate, Model
from tests.gateway.admission.virtual_time import in_virtual_time

TIERS = {"default": {"max_wait": "1h"}}


class Thinking(Model):
    """Answers in 5 ms; mallory, once she has begun to think, after 3 s and without an end."""

    def __init__(self) -> None:
        super().__init__(first=0.005, tokens=1)
        self.thinking = False

    async def __call__(self, call: Call) -> Chunks:
        if not self.thinking or call.principal.tenant != "mallory":
            async for chunk in super().__call__(call):
                yield chunk
            return
        await asyncio.sleep(3)
        yield Chunk(delta={"content": "x"})
        await asyncio.Event().wait()


async def beside_slow_streams(gate: Gate, count: int, *, of: str = "mallory") -> list[asyncio.Task[Any]]:
    model = gate.model
    assert isinstance(model, Thinking)
    for _ in range(30):
        await gate.answer(gate.call(tenant=of, stream=True))
    model.thinking = True
    return [gate.start(gate.call(tenant=of, stream=True)) for _ in range(count)]


async def ended(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@in_virtual_time
async def test_slow_streams_of_one_tenant_keep_no_other_waiting() -> None:
    gate = Gate(limits={}, tiers=TIERS, model=Thinking())
    held = await beside_slow_streams(gate, 48)
    await asyncio.sleep(3.5)
    slots = gate.pools.of("up").slots
    assert slots is not None
    assert slots < 48, "her answers alone look like a queue"
    for _ in range(100):
        call = gate.call(tenant="alice", stream=True)
        await gate.answer(call)
        assert call.receipt.notes["queue"]["waited"] == 0
    assert gate.pools.of("up").slots >= 48, "and another's say that there is none"  # type: ignore[operator]
    await ended(held)
    assert gate.is_empty()


@in_virtual_time
async def test_half_of_what_is_learnt_remains_beside_one_who_gives_nothing_back() -> None:
    gate = Gate(limits={}, tiers=TIERS, model=Thinking())
    held = await beside_slow_streams(gate, 48)
    await asyncio.sleep(3.5)
    pool = gate.pools.of("up")
    assert pool.slots == 24
    alices = [gate.start(gate.call(tenant="alice", stream=True)) for _ in range(20)]
    await asyncio.sleep(0)
    assert pool.in_flight == 48 + 12
    more = [gate.start(gate.call(tenant="mallory", stream=True)) for _ in range(5)]
    await asyncio.gather(*alices)
    assert not any(task.done() for task in more)
    await ended(held + more)
    assert gate.is_empty()


@in_virtual_time
async def test_who_has_a_share_is_neither_shed_nor_refused() -> None:
    tiers = {"default": {"max_wait": "1s", "max_queue": 1, "on_saturation": {"action": "shed"}}}
    gate = Gate(limits={}, tiers=tiers, model=Thinking())
    held = await beside_slow_streams(gate, 48)
    await asyncio.sleep(3.5)
    with pytest.raises(Overloaded):
        await gate.answer(gate.call(tenant="mallory", stream=True))
    await gate.answer(gate.call(tenant="alice", stream=True))
    pools = gate.pools
    assert not pools.has_capacity("up", 1)
    assert not pools.has_capacity("up", 1, ("default", "mallory", 1.0))
    assert pools.has_capacity("up", 1, ("default", "alice", 1.0))
    assert pools.saturation("up", ("default", "mallory", 1.0)) == 1
    assert pools.saturation("up", ("default", "alice", 1.0)) == 0.5
    await ended(held)


@in_virtual_time
async def test_who_has_a_share_and_a_deadline_does_not_need_room_in_the_line() -> None:
    gate = Gate(limits={}, tiers={"default": {"max_queue": 1}}, model=Thinking())
    held = await beside_slow_streams(gate, 48)
    await asyncio.sleep(3.5)
    held += [gate.start(gate.call(tenant=name, stream=True)) for name in ("mallory", "bob") * 2]
    await asyncio.sleep(0)
    await gate.answer(gate.call(tenant="alice", stream=True, allowed=60))
    await ended(held)


@in_virtual_time
async def test_a_backend_that_all_of_them_overload_is_still_protected() -> None:
    server = Server(slots=10)
    gate = Gate(limits={}, tiers=TIERS, model=server)
    served: Counter[str] = Counter()

    async def client(tenant: str) -> None:
        await asyncio.sleep(random.Random(tenant).random() / 10)
        while True:
            await gate.answer(gate.call(tenant=tenant, stream=True))
            served[tenant] += 1

    async def flood(seconds: float, **clients: int) -> None:
        tasks = [asyncio.create_task(client(name)) for name, count in clients.items() for _ in range(count)]
        await asyncio.sleep(seconds)
        await ended(tasks)

    await flood(5, mallory=3, alice=2)
    flooding = asyncio.create_task(flood(90, mallory=120, alice=30, bob=5))
    await asyncio.sleep(30)
    before, lines = served.copy(), []
    for _ in range(50):
        await asyncio.sleep(1)
        lines.append(server.waiting)
    since = served - before
    await flooding
    assert sorted(lines)[25] <= 20, "of the 145 that wait, few do so at the backend"
    assert since.total() > 0.85 * 50 * 10 / 0.63, "and it is as busy as it can be"
    assert min(since.values()) > 0.6 * max(since.values())


def test_shares_follow_weights_and_add_up_to_the_limit() -> None:
    class Held:
        def __init__(self, tier: str, tenant: str, weight: float, slots: int) -> None:
            self.flow, self.unfinished = Flow(tier, tenant, weight), slots

    shares = FairShares([Held("pro", "a", 3, 50), Held("pro", "b", 3, 1), Held("free", "c", 1, 9)])

    def most(tier: str, tenant: str, weight: float) -> int:
        flow = Flow(tier, tenant, weight)
        return max(n for n in range(100) if shares.allow(flow, n, limit=40, in_flight=1000))

    assert (most("pro", "b", 3), most("free", "c", 1)) == (15 - 1, 10 - 9)
    assert most("pro", "d", 3) == 10
    assert most("free", "d", 1) == 5
    assert most("vip", "d", 4) == 20
    assert shares.utilization(Flow("pro", "b", 3), 40) == (15 + 1 + 9) / 40
    assert shares.utilization(Flow("free", "d", 1), 40) == (15 + 1 + 5) / 40
    shares.add(Flow("free", "c", 1), -9)
    assert most("pro", "b", 3) == 20 - 1
    assert shares.allow(Flow("free", "c", 0.001), 1, limit=40, in_flight=79), "one always"
    assert not shares.allow(Flow("free", "c", 0.001), 1, limit=40, in_flight=80)


@pytest.mark.parametrize("seed", range(30))
def test_nobody_below_its_share_waits_and_what_is_in_flight_is_bounded(seed: int) -> None:
    chance = random.Random(seed)
    pool = Pool("up", clock=lambda: 0.0)
    pool.limit(None, None, adaptive=True)
    limit = pool._slots = chance.choice([4, 7, 24])
    leases: list[SlotLease] = []
    names = [("pro", f"t{n}", 3.0) for n in range(3)] + [("free", f"t{n}", 1.0) for n in range(30)]
    for _ in range(600):
        if chance.random() < 0.6 or not leases:
            tier, tenant, weight = names[min(int(chance.expovariate(0.15)), len(names) - 1)]
            answers = chance.choice([1, 1, 1, 3])
            leases.append(pool.acquire(tier, QueueTerms(weight), tenant, chance.randrange(1, 50), answers))
        elif chance.random() < 0.3:
            chance.choice(leases).release_one()
        else:
            lease = leases.pop(chance.randrange(len(leases)))
            lease.release()
        held = FairShares(pool.leases)
        assert sum(lease.unfinished for lease in pool.leases) == pool.in_flight
        assert pool.in_flight <= max(2 * limit + 2, limit * (2 + log(limit)))
        for waiter in pool.queue.heads(0.0):
            lease = waiter.item
            assert not held.allow(lease.flow, lease.answers, limit=limit, in_flight=pool.in_flight)
            assert not pool.fits(lease.tokens, lease.answers) or pool.queue.head(0.0) is not waiter
    for lease in leases:
        lease.release()
    assert (pool.load, pool.queue.size, pool.tokens_in_flight) == (0, 0, 0)


def test_the_least_delayed_tenant_decides() -> None:
    now = [0.0]
    adaptive = AdaptiveLimit(lambda: now[0])
    for tenant in ("mallory", "alice"):
        for _ in range(10):
            adaptive.learn(tenant, 1.0, 0.0, 20, tenant, quick=True)
    for at in range(1, 50):
        now[0] = float(at)
        for tenant, seconds in (("mallory", 30.0), ("alice", 1.0)):
            adaptive.learn(tenant, seconds, now[0], 20, tenant)
    assert adaptive.limit == MAX_LIMIT
    for at in range(50, 100):
        now[0] = float(at)
        for tenant in ("mallory", "alice"):
            adaptive.learn(tenant, 30.0, now[0], 20, tenant)
        if adaptive.limit < 20:
            return
    pytest.fail("both are delayed")


def test_what_was_first_seen_in_a_queue_does_not_say_that_there_is_none() -> None:
    now = [0.0]
    adaptive = AdaptiveLimit(lambda: now[0])
    for _ in range(10):
        adaptive.learn("known", 1.0, 0.0, 20, "mallory")
    now[0] = 1.0
    for number in range(20):
        adaptive.learn("known", 30.0, 1.0, 40, "mallory")
        adaptive.learn(f"new {number % 4}", 30.0, 1.0, 40, "bob")
    assert MIN_LIMIT < adaptive.limit <= 20


@in_virtual_time
async def test_an_effort_is_a_kind_of_its_own() -> None:
    class Reasoning(Model):
        async def __call__(self, call: Call) -> Chunks:
            await asyncio.sleep(9 if call.request.params.get("reasoning_effort") == "high" else 0.1)
            yield Chunk(delta={"content": "x"})
            yield Chunk(delta={}, finish_reason="stop", usage=Usage(1, 1))

    gate = Gate(limits={}, tiers=TIERS, model=Reasoning())
    for effort in ("low", "high"):
        for _ in range(4):
            calls = [gate.call(stream=True, params={"reasoning_effort": effort}) for _ in range(20)]
            with suppress(Overloaded):
                await asyncio.gather(*(gate.answer(call) for call in calls))
    assert gate.pools.of("up").slots == MAX_LIMIT
