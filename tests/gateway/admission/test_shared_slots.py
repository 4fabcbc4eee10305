"""Slots that several workers share: each worker is a ``Pools`` of its own on the same folder."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gateway.admission.fair_queue import QueueTerms
from gateway.admission.pool import Pool
from gateway.admission.pools import Pools
from gateway.admission.slot_lease import SlotLease
from tests.fakes import policy

LIMIT = 8


def workers(folder: Path, count: int, limit: int = LIMIT) -> list[Pool]:
    return [a_worker(folder, number, count, limit) for number in range(1, count + 1)]


def a_worker(folder: Path, number: int, count: int, limit: int = LIMIT) -> Pool:
    pools = Pools(count, number, folder=folder)
    pool = pools.of("up")
    pool.limit(pools.worker_share(limit), None, in_all=limit)
    return pool


def take(pool: Pool, count: int = 1, answers: int = 1) -> list[SlotLease]:
    return [pool.acquire("t", QueueTerms(), "a", 1, answers) for _ in range(count)]


def granted(leases: list[SlotLease]) -> int:
    return sum(lease.is_granted for lease in leases)


def test_one_worker_may_use_what_the_others_do_not(tmp_path: Path) -> None:
    busy, idle, *_ = workers(tmp_path, 4)
    assert granted(take(busy, 20)) == LIMIT
    assert granted(take(idle)) == 0


def test_a_worker_that_waits_gets_its_share_as_slots_become_free(tmp_path: Path) -> None:
    busy, late = workers(tmp_path, 2)
    first, second = take(busy, 20), take(late, 20)
    for _ in range(10):
        running = [lease for lease in (*first, *second) if lease.is_granted and not lease._released]
        assert len(running) <= LIMIT
        running[0].release()
        busy.grant_next()
        late.grant_next()
    in_use = [sum(lease.is_granted and not lease._released for lease in some) for some in (first, second)]
    assert in_use == [LIMIT // 2, LIMIT // 2]


def test_fewer_slots_than_workers_are_not_exceeded(tmp_path: Path) -> None:
    leases = [lease for pool in workers(tmp_path, 4, limit=1) for lease in take(pool)]
    assert granted(leases) == 1


def test_a_request_for_more_answers_than_the_limit_runs_alone(tmp_path: Path) -> None:
    first, second = workers(tmp_path, 2)
    (small,), (large,) = take(first), take(second, answers=LIMIT + 1)
    assert (small.is_granted, large.is_granted) == (True, False)
    small.release()
    second.grant_next()
    assert large.is_granted
    assert granted(take(first)) == 0


def test_the_limit_holds_whatever_happens_in_which_order(tmp_path: Path) -> None:
    rng = random.Random(18)
    pools = workers(tmp_path, 3)
    live: list[SlotLease] = []
    for _ in range(3000):
        if rng.random() < 0.5 and len(live) < 60:
            live += take(rng.choice(pools), answers=rng.randint(1, 3))
        elif live:
            live.pop(rng.randrange(len(live))).release()
        rng.choice(pools).grant_next()
        assert sum(pool.in_flight for pool in pools) <= LIMIT
    for lease in live:
        lease.release()
    assert [pool.in_flight for pool in pools] == [0, 0, 0]
    assert granted(take(pools[0], LIMIT)) == LIMIT


def test_slots_of_a_worker_that_died_come_back_when_it_starts_again(tmp_path: Path) -> None:
    dead, other = workers(tmp_path, 2)
    assert granted(take(dead, LIMIT)) == LIMIT
    waiting = take(other)
    assert granted(waiting) == 0
    again = a_worker(tmp_path, 1, 2)
    other.grant_next()
    assert granted(waiting) == 1 and again.in_flight == 0


def test_a_limit_that_is_lifted_and_set_again_counts_what_is_in_flight(tmp_path: Path) -> None:
    pool, other = workers(tmp_path, 2)
    take(pool, 6)
    pool.limit(None, None)
    assert granted(take(pool, 1)) == 1
    pool.limit(4, None, in_all=LIMIT)
    assert granted(take(other, 4)) == 1


@pytest.mark.anyio
async def test_a_slot_that_another_worker_frees_wakes_the_one_that_waits(tmp_path: Path) -> None:
    backend = {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "max_concurrency": 1}
    rules = policy(backends={"up": backend})
    both = [Pools(2, number, folder=tmp_path) for number in (1, 2)]
    for pools in both:
        pools.update(rules)
    first, second = (pools.of("up") for pools in both)
    (running,), (waiting,) = take(first), take(second)
    task = asyncio.create_task(waiting.wait(300))
    await asyncio.sleep(0)
    running.release()
    assert await task
