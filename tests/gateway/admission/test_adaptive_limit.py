"""A backend that names no limit: what the gateway learns of it, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator

from gateway.admission.adaptive_limit import MAX_LIMIT, MIN_LIMIT, SAMPLES, AdaptiveLimit
from gateway.types import Call, Chunk, Usage
from tests.gateway.admission.test_queue import Gate, Model
from tests.gateway.admission.virtual_time import in_virtual_time


class Server(Model):
    """Works at ``slots`` requests at once; the others wait in its own line, first come first served."""

    def __init__(self, slots: int, *, seconds: float = 0.5, first: float = 0.1) -> None:
        super().__init__(first=first)
        self.slots = asyncio.Semaphore(slots)
        self.seconds = seconds
        self.waiting = 0
        self.served: dict[str, int] = {}

    async def __call__(self, call: Call) -> AsyncGenerator[Chunk, None]:
        self.running += 1
        self.waiting += 1
        try:
            async with self.slots:
                self.waiting -= 1
                chance = self.chance.uniform(0.7, 1.4)
                await asyncio.sleep(self.first * chance)
                yield Chunk(delta={"content": "x"})
                await asyncio.sleep(self.seconds * chance)
                yield Chunk(delta={}, finish_reason="stop", usage=Usage(10, 10))
                tier = call.principal.tier
                self.served[tier] = self.served.get(tier, 0) + 1
        finally:
            self.running -= 1


async def flood(gate: Gate, tiers: dict[str, int], seconds: float) -> None:
    """So many clients of each tier, who ask again and again."""

    async def client(tier: str) -> None:
        await asyncio.sleep(random.Random(tier).random() / 10)
        while True:
            await gate.answer(gate.call(tier))

    clients = [asyncio.create_task(client(tier)) for tier, number in tiers.items() for _ in range(number)]
    await asyncio.sleep(seconds)
    for task in clients:
        task.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


@in_virtual_time
async def test_a_line_at_the_backend_becomes_one_of_ours_which_is_shared() -> None:
    server = Server(slots=10)
    tiers = {"enterprise": {"priority": 2, "weight": 8, "max_wait": "1h"}, "free": {"max_wait": "1h"}}
    gate = Gate(limits={}, tiers=tiers, model=server)
    await flood(gate, {"enterprise": 5}, 5)  # this much it bears
    assert gate.pools.of("up").slots == MAX_LIMIT
    flooding = asyncio.create_task(flood(gate, {"enterprise": 75, "free": 75}, 90))
    await asyncio.sleep(30)
    before = dict(server.served)
    lines = []
    for _ in range(50):
        await asyncio.sleep(1)
        lines.append(server.waiting)
    since = {tier: server.served[tier] - before.get(tier, 0) for tier in tiers}
    await flooding
    assert sorted(lines)[25] <= 20, "of the 140 that wait, few do so at the backend"
    assert sum(since.values()) > 0.85 * 50 * 10 / 0.63, "and it is as busy as before"
    assert since["enterprise"] > 2.5 * since["free"], "who waits for long counts more"
    assert since["free"] > 0


@in_virtual_time
async def test_what_takes_all_that_comes_is_not_limited() -> None:
    gate = Gate(limits={}, model=Server(slots=1000))
    await flood(gate, {"pro": 100}, 10)
    assert gate.pools.of("up").slots == MAX_LIMIT


@in_virtual_time
async def test_a_line_of_milliseconds_is_none() -> None:
    gate = Gate(limits={}, model=Server(slots=1, first=0.0005, seconds=0.0005))
    await flood(gate, {"pro": 1}, 1)
    await flood(gate, {"pro": 64}, 5)
    assert gate.pools.of("up").slots == MAX_LIMIT


@in_virtual_time
async def test_what_is_slow_for_reasons_of_its_own_is_let_alone() -> None:
    server = Server(slots=1000)
    gate = Gate(limits={}, model=server)
    await flood(gate, {"pro": 40}, 10)
    server.first = 1.0
    await flood(gate, {"pro": 40}, 60)
    slots = gate.pools.of("up").slots
    assert slots is not None
    assert slots >= 40


@in_virtual_time
async def test_who_takes_long_is_no_reason_to_keep_others_out_for_ever() -> None:
    gate = Gate(limits={}, tiers={"pro": {"max_wait": "1h"}}, model=Server(slots=3))
    await flood(gate, {"pro": 2}, 5)
    await flood(gate, {"pro": 100}, 60)
    pool = gate.pools.of("up")
    low = pool.slots
    assert low is not None
    assert low < 50
    gate.model = Server(slots=1000, first=10_000.0)  # thinks for hours
    gate.handler = gate.around(gate.model)
    await flood(gate, {"pro": 100}, 300)
    assert pool.slots is not None
    assert pool.slots >= 100


def test_a_limit_follows_from_requests_that_were_sent_under_it() -> None:
    now = [0.0]
    adaptive = AdaptiveLimit(lambda: now[0])
    for _ in range(SAMPLES):
        adaptive.learn("a", 1.0, 0.0, 20)
    now[0] = 10.0
    changed = [adaptive.learn("a", 4.0, 5.0, 20) for _ in range(SAMPLES)]
    assert changed[-1]
    assert not any(changed[:-1])
    assert adaptive.limit == 10
    now[0] = 11.0
    assert not any(adaptive.learn("a", 4.0, 5.0, 20) for _ in range(50)), "they were sent before"
    for at in range(12, 40):
        now[0] = float(at)
        for _ in range(SAMPLES):
            adaptive.learn("a", 1.0, now[0] - 0.5, adaptive.limit)
    assert adaptive.limit > 50
    assert MIN_LIMIT < adaptive.limit <= MAX_LIMIT
