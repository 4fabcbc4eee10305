"""Turns at a model, and what they come to for a tenant beside another that asks for everything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sidecar.api import TENANT, SidecarBusy
from gateway.sidecar.batcher import Batcher, text_cost
from gateway.sidecar.fair_thread import FairThread
from gateway.sidecar.tenant_queue import TenantQueue


def test_costs_are_shared_evenly_while_both_wait() -> None:
    queue: TenantQueue[str] = TenantQueue()
    for number in range(20):
        queue.push("a", f"a{number}", 10)
    for number in range(20):
        queue.push("b", f"b{number}", 1)
    served = [queue.pop() for _ in range(22)]
    assert sum(name.startswith("b") for name in served) >= 18
    assert [name for name in served if name[0] == "b"] == sorted(
        (name for name in served if name[0] == "b"), key=lambda name: int(name[1:])
    )


def test_who_comes_new_need_not_wait_for_a_long_line() -> None:
    queue: TenantQueue[str] = TenantQueue()
    for number in range(100):
        queue.push("a", f"a{number}", 5)
    for _ in range(10):
        queue.pop()
    queue.push("b", "b", 5)
    assert "b" in [queue.pop(), queue.pop()]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.sampled_from(["push", "pop", "out"])))
)
def test_nobody_is_lost(steps: list[tuple[str, int, str]]) -> None:
    queue: TenantQueue[int] = TenantQueue()
    waiting: dict[int, str] = {}
    for number, (tenant, cost, what) in enumerate(steps):
        if what == "push":
            queue.push(tenant, number, cost)
            waiting[number] = tenant
        elif what == "pop" and waiting:
            head = queue.head()
            assert queue.pop() == head
            del waiting[head]
        elif (gone := queue.evict(tenant, 1)) is not None:
            assert waiting.pop(gone) != tenant
        assert len(queue) == len(waiting)
        for name in "abc":
            assert queue.length(name) == sum(one == name for one in waiting.values())
    assert sorted(queue.pop() for _ in range(len(queue))) == sorted(waiting)
    with pytest.raises(IndexError):
        queue.pop()


class Model:
    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()

    def __call__(self, texts: Sequence[str]) -> list[str]:
        self.batches.append(list(texts))
        self.gate.wait(60)
        return [text.upper() for text in texts]


async def asked(batcher: Batcher[str, str], tenant: str, *texts: str) -> list[str]:
    TENANT.set(tenant)
    return await batcher.get(texts)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_a_batcher_serves_tenants_in_turn_and_shares_nothing_between_them() -> None:
    model = Model()
    with ThreadPoolExecutor(1) as executor:
        batcher = Batcher(model, executor, cost=text_cost, max_batch=2, max_queue=100, max_cost=50)
        tasks = [asyncio.create_task(asked(batcher, "a", "first"))]
        await settled()
        tasks += [asyncio.create_task(asked(batcher, "a", f"{n:020}")) for n in range(20)]
        await settled()
        tasks.append(asyncio.create_task(asked(batcher, "b", "mine")))
        tasks.append(asyncio.create_task(asked(batcher, "b", "first")))
        await settled()
        model.gate.set()
        await asyncio.gather(*tasks)
        await batcher.aclose()
    place = next(n for n, batch in enumerate(model.batches) if "mine" in batch)
    assert place <= 2, "one batch of the other's at most, after that which was under way"
    assert sum(batch.count("first") for batch in model.batches) == 2, (
        "whether another asked the same is not told"
    )


@pytest.mark.anyio
async def test_a_full_queue_has_room_for_those_who_have_less_in_it() -> None:
    model = Model()
    with ThreadPoolExecutor(1) as executor:
        batcher = Batcher(model, executor, cost=text_cost, max_batch=1, max_queue=6)
        flood = [asyncio.create_task(asked(batcher, "a", f"a{n}")) for n in range(9)]
        await settled()
        mine = [asyncio.create_task(asked(batcher, "b", f"b{n}")) for n in range(9)]
        await settled()
        assert len(batcher) == 6
        model.gate.set()
        got = await asyncio.gather(*flood, *mine, return_exceptions=True)
        await batcher.aclose()
    served = [one for one in got if isinstance(one, list)]
    assert all(isinstance(one, list | SidecarBusy) for one in got)
    assert sum(one[0][0] == "A" for one in served) >= 3 and sum(one[0][0] == "B" for one in served) == 3


@pytest.mark.anyio
async def test_a_lane_serves_tenants_in_turn() -> None:
    lane, gate, order = FairThread("test", 100), threading.Event(), list[str]()

    def work(name: str) -> None:
        order.append(name)
        gate.wait(60)

    async def run(tenant: str, name: str) -> None:
        TENANT.set(tenant)
        await lane.run(1, work, name)

    tasks = [asyncio.create_task(run("a", f"a{n}")) for n in range(9)]
    await settled()
    tasks.append(asyncio.create_task(run("b", "b")))
    gone = asyncio.create_task(run("b", "gone"))
    await settled()
    gone.cancel()
    await settled()
    gate.set()
    await asyncio.gather(*tasks)
    assert order.index("b") <= 2 and "gone" not in order and len(order) == 10
    assert lane.waiting == 0 and not lane._busy
    lane.thread.shutdown()


@pytest.mark.anyio
async def test_a_lane_is_bounded_for_whoever_has_most_in_it() -> None:
    lane, gate = FairThread("test", 4), threading.Event()

    async def run(tenant: str) -> str:
        TENANT.set(tenant)
        return await lane.run(1, lambda: str(gate.wait(60)))

    flood = [asyncio.create_task(run("a")) for _ in range(6)]
    await settled()
    mine = asyncio.create_task(run("b"))
    await settled()
    gate.set()
    got = await asyncio.gather(*flood, mine, return_exceptions=True)
    assert got[-1] == "True"
    assert sum(isinstance(one, SidecarBusy) for one in got) == 3
    assert lane.waiting == 0
    lane.thread.shutdown()
