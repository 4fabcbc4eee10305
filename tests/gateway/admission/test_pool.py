from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.fair_queue import QueueTerms
from gateway.admission.pool import ENOUGH, Pool
from gateway.admission.pools import Pools
from gateway.admission.slot_lease import SlotLease
from gateway.engine_load import EngineLoad
from tests.fakes import policy

PLAIN = QueueTerms()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_pool(slots: int | None = None, tokens: int | None = None, clock: Clock | None = None) -> Pool:
    pool = Pool("up", clock=clock or Clock())
    pool.limit(slots, tokens)
    return pool


def take(
    pool: Pool, tokens: int = 1, *, tier: str = "t", terms: QueueTerms = PLAIN, tenant: str = "a"
) -> SlotLease:
    return pool.acquire(tier, terms, tenant, tokens)


def test_without_limits_everything_passes_and_is_counted() -> None:
    pool = a_pool()
    slots = [take(pool, 10**6) for _ in range(100)]
    assert all(lease.is_granted for lease in slots)
    assert (pool.load, pool.saturation, pool.has_capacity(10**9)) == (100, 0.0, True)
    for lease in slots:
        lease.release()
    assert (pool.load, pool.tokens_in_flight) == (0, 0)


def test_places_are_given_in_turn() -> None:
    pool = a_pool(slots=2)
    first, second, third, fourth = (take(pool) for _ in range(4))
    assert [lease.is_granted for lease in (first, second, third, fourth)] == [True, True, False, False]
    assert [lease.position for lease in (second, third, fourth)] == [0, 1, 2]
    assert (pool.load, pool.saturation, pool.has_capacity(1)) == (4, 1.0, False)
    second.release()
    assert third.is_granted
    assert not fourth.is_granted
    assert fourth.position == 1


def test_releasing_twice_frees_one_place() -> None:
    pool = a_pool(slots=1)
    first, second, third = (take(pool) for _ in range(3))
    first.release()
    first.release()
    assert second.is_granted
    assert not third.is_granted


def test_who_leaves_the_line_is_passed_over() -> None:
    pool = a_pool(slots=1)
    first, second, third = (take(pool) for _ in range(3))
    second.release()
    first.release()
    assert not second.is_granted
    assert third.is_granted
    third.release()
    assert (pool.load, pool.tokens_in_flight) == (0, 0)


def test_tokens_are_limited_and_the_first_in_line_is_waited_for() -> None:
    pool = a_pool(tokens=100)
    first = take(pool, 60)
    big = take(pool, 50)
    small = take(pool, 10)
    assert (big.is_granted, small.is_granted) == (False, False)
    first.release()
    assert (big.is_granted, small.is_granted, pool.tokens_in_flight) == (True, True, 60)


def test_what_is_larger_than_the_limit_runs_alone() -> None:
    pool = a_pool(tokens=100)
    small = take(pool, 1)
    huge = take(pool, 1000)
    assert not huge.is_granted
    small.release()
    assert huge.is_granted
    assert pool.saturation == 1.0
    later = take(pool, 1)
    assert not later.is_granted
    huge.release()
    assert later.is_granted


def test_the_last_share_is_kept_free_for_others() -> None:
    pool = a_pool(slots=4)
    free = QueueTerms(max_utilization=0.5)
    slots = [take(pool, tier="free", terms=free) for _ in range(4)]
    assert [lease.is_granted for lease in slots] == [True, True, False, False]
    assert pool.has_capacity(1)
    assert not pool.has_capacity(1, free)
    pro = take(pool, tier="pro")
    assert pro.is_granted
    slots[0].release()
    assert not slots[2].is_granted
    slots[1].release()
    assert slots[2].is_granted


def test_limits_change_under_those_on_their_way() -> None:
    pool = a_pool(slots=1)
    first, second, third = (take(pool, 5) for _ in range(3))
    pool.limit(2, None)
    assert second.is_granted
    pool.limit(1, None)
    first.release()
    assert not third.is_granted
    pool.limit(None, None)
    assert third.is_granted
    second.release()
    third.release()
    assert (pool.load, pool.tokens_in_flight) == (0, 0)


def test_a_change_of_limits_makes_the_throughput_unknown_but_not_the_speed() -> None:
    pool = a_pool(slots=4)
    pool.speed.observe(tokens=100, share=0.25, seconds=2.0, first_token=0.5, completion=16)
    pool.limit(4, None)
    assert pool.speed.throughput == 200
    pool.limit(8, None)
    assert pool.speed.throughput is None
    assert pool.speed.tokens_per_second == pytest.approx(10)


def test_the_fullest_counts_the_engine_too() -> None:
    clock = Clock()
    pool = a_pool(slots=10, tokens=100, clock=clock)
    take(pool, 30)
    assert pool.saturation == 0.3
    pool.speed.update_engine(EngineLoad(running=1, slots=4, kv_usage=0.8))
    assert pool.saturation == 0.8
    pool.speed.update_engine(EngineLoad(running=3, waiting=3, slots=4))
    assert pool.saturation == 1.0
    clock.now += 5.1
    assert pool.saturation == 0.3


def test_the_expected_wait_follows_from_what_finished() -> None:
    clock = Clock()
    pool = a_pool(slots=4, clock=clock)
    running = [take(pool, 100) for _ in range(4)]
    assert pool.expected_wait_of_new("t", PLAIN, "a", 100) is None
    # 4 places of 100 tokens, each for 2 s: 200 tokens/s.
    pool.speed.observe(tokens=100, share=pool.share(100), seconds=2.0, first_token=None, completion=0)
    assert pool.speed.throughput == pytest.approx(200)
    assert pool.expected_wait_of_new("t", PLAIN, "a", 100) == pytest.approx(0.5)
    waiting = [take(pool, 100) for _ in range(3)]
    assert waiting[2].expected_wait == pytest.approx(1.5)
    assert pool.expected_wait_of_new("t", PLAIN, "a", 100) == pytest.approx(2.0)
    assert pool.expected_wait_of_new("t", PLAIN, "other", 100) == pytest.approx(1.0)
    assert pool.drain_time(0.5) == pytest.approx((300 + 0.5 * 400) / 200)
    for lease in running:
        lease.release()
    assert pool.expected_wait_of_new("t", PLAIN, "a", 100) == 0.0


def test_the_expected_wait_for_tokens() -> None:
    pool = a_pool(tokens=100)
    take(pool, 80)
    pool.speed.observe(tokens=100, share=1.0, seconds=2.0, first_token=None, completion=0)
    assert pool.expected_wait_of_new("t", PLAIN, "a", 20) == 0.0
    assert pool.expected_wait_of_new("t", PLAIN, "a", 50) == pytest.approx(30 / 50)
    assert pool.expected_wait_of_new("t", PLAIN, "a", 5000) == pytest.approx(80 / 50)


def test_the_expected_wait_of_a_tier_that_is_held_back() -> None:
    pool = a_pool(slots=4, tokens=1000)
    free = QueueTerms(max_utilization=0.5)
    for _ in range(3):
        take(pool, 100, tier="pro")
    pool.speed.observe(tokens=100, share=pool.share(100), seconds=2.0, first_token=None, completion=0)
    assert pool.expected_wait_of_new("pro", PLAIN, "a", 100) == 0.0
    # Two must finish, and half of 200 tokens/s are for this tier.
    assert pool.expected_wait_of_new("free", free, "a", 100) == pytest.approx(2 * 100 / (0.5 * 200))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["take", "take", "release", "limit"]),
            st.integers(0, 10**6),
            st.sampled_from(["enterprise", "free"]),
        ),
        max_size=100,
    )
)
def test_limits_hold_and_no_place_is_lost(steps: list[tuple[str, int, str]]) -> None:
    terms = {"enterprise": QueueTerms(8.0), "free": QueueTerms(1.0, max_utilization=0.7)}
    pool = a_pool(slots=3, tokens=100)
    slots: list[SlotLease] = []
    shrunk = False
    for step, number, tier in steps:
        before = sum(lease.is_granted for lease in slots)
        if step == "take":
            slots.append(take(pool, 1 + number % 150, tier=tier, terms=terms[tier], tenant=str(number % 3)))
        elif step == "limit":
            pool.limit(1 + number % 5, 100)
            shrunk = True
        elif slots:
            slots.pop(number % len(slots)).release()
        held = [lease for lease in slots if lease.is_granted]
        assert pool.in_flight == len(held)
        assert pool.tokens_in_flight == sum(lease.tokens for lease in held)
        assert pool.load == len(slots)
        assert len(held) == 1 or pool.tokens_in_flight <= 100
        assert pool.slots is not None
        assert shrunk or len(held) <= pool.slots
        assert len(held) <= max(pool.slots, before)
        assert held or not slots  # an idle backend keeps nobody waiting
    for lease in slots:
        lease.release()
    assert (pool.in_flight, pool.tokens_in_flight, pool.load) == (0, 0, 0)


def test_workers_share_the_limits() -> None:
    parts = []
    for worker in (1, 2, 3, 4):
        pools = Pools(4, worker)
        pools.update(policy(backends=backends(max_concurrency=10, max_tokens_in_flight=3)))
        pool = pools.of("up")
        parts.append((pool.slots, pool.max_tokens))
    # Each has one at least, even where there are more workers than the limit allows.
    assert parts == [(3, 1), (3, 1), (2, 1), (2, 1)]


def test_an_engine_with_a_line_of_its_own_has_no_room() -> None:
    pools = Pools()
    assert pools.has_capacity("up", 1)
    pools.update_engine("up", EngineLoad(running=4, slots=4))
    assert not pools.has_capacity("up", 1)
    pools.update_engine("up", EngineLoad(running=3, slots=4))
    assert pools.has_capacity("up", 1)


def test_a_new_policy_keeps_what_is_in_flight() -> None:
    pools = Pools()
    pools.update(policy(backends=backends(max_concurrency=1)))
    first, second = (take(pools.of("up")) for _ in range(2))
    assert (pools.load("up"), pools.saturation("up"), pools.has_capacity("up", 1)) == (2, 1.0, False)
    pools.update(policy(backends={**backends(max_concurrency=2), **backends("other")}))
    assert second.is_granted
    pools.update(policy(backends=backends("other"), models=models("other")))
    assert pools.load("up") == 2
    first.release()
    second.release()
    pools.update(policy(backends=backends("other"), models=models("other")))
    assert not pools.of("up").limited
    assert pools.has_capacity("other", 10**9)


def backends(name: str = "up", **more: int) -> dict[str, object]:
    return {name: {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", **more}}


def models(backend: str) -> dict[str, object]:
    return {"m": {"targets": [{"backend": backend, "model": "x"}]}}


@pytest.mark.anyio
async def test_waiting_ends_with_the_place_or_the_time() -> None:
    pool = a_pool(slots=1)
    first, second, third = (take(pool) for _ in range(3))
    assert await first.wait(0)
    assert not await second.wait(0.01)
    waits = asyncio.create_task(second.wait(5))
    await asyncio.sleep(0)
    first.release()
    assert await waits
    leaves = asyncio.create_task(third.wait(5))
    await asyncio.sleep(0)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    third.release()
    second.release()
    assert pool.load == 0


def test_a_quiet_backend_teaches_by_every_fourth_answer_once_enough_are_known() -> None:
    pool = a_pool()
    assert all(pool.wants_lesson() for _ in range(ENOUGH))
    assert [pool.wants_lesson() for _ in range(8)].count(True) == 2
    for _ in range(ENOUGH):
        take(pool)
    assert all(pool.wants_lesson() for _ in range(8)), "under load"
