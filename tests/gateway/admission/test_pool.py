from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.fair_queue import Terms
from gateway.admission.pool import Place, Pool, Pools
from gateway.engine_figures import EngineFigures
from tests.fakes import policy

PLAIN = Terms()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_pool(places: int | None = None, tokens: int | None = None, clock: Clock | None = None) -> Pool:
    pool = Pool("up", clock=clock or Clock())
    pool.limit(places, tokens)
    return pool


def take(pool: Pool, cost: int = 1, *, tier: str = "t", terms: Terms = PLAIN, tenant: str = "a") -> Place:
    return pool.take(tier, terms, tenant, cost)


def test_without_limits_everything_passes_and_is_counted() -> None:
    pool = a_pool()
    places = [take(pool, 10**6) for _ in range(100)]
    assert all(place.held for place in places)
    assert (pool.load, pool.saturation, pool.has_room(10**9)) == (100, 0.0, True)
    for place in places:
        place.release()
    assert (pool.load, pool.tokens) == (0, 0)


def test_places_are_given_in_turn() -> None:
    pool = a_pool(places=2)
    first, second, third, fourth = (take(pool) for _ in range(4))
    assert [place.held for place in (first, second, third, fourth)] == [True, True, False, False]
    assert [place.position for place in (second, third, fourth)] == [0, 1, 2]
    assert (pool.load, pool.saturation, pool.has_room(1)) == (4, 1.0, False)
    second.release()
    assert third.held
    assert not fourth.held
    assert fourth.position == 1


def test_releasing_twice_frees_one_place() -> None:
    pool = a_pool(places=1)
    first, second, third = (take(pool) for _ in range(3))
    first.release()
    first.release()
    assert second.held
    assert not third.held


def test_who_leaves_the_line_is_passed_over() -> None:
    pool = a_pool(places=1)
    first, second, third = (take(pool) for _ in range(3))
    second.release()
    first.release()
    assert not second.held
    assert third.held
    third.release()
    assert (pool.load, pool.tokens) == (0, 0)


def test_tokens_are_limited_and_the_first_in_line_is_waited_for() -> None:
    pool = a_pool(tokens=100)
    first = take(pool, 60)
    big = take(pool, 50)
    small = take(pool, 10)
    assert (big.held, small.held) == (False, False)
    first.release()
    assert (big.held, small.held, pool.tokens) == (True, True, 60)


def test_what_is_larger_than_the_limit_runs_alone() -> None:
    pool = a_pool(tokens=100)
    small = take(pool, 1)
    huge = take(pool, 1000)
    assert not huge.held
    small.release()
    assert huge.held
    assert pool.saturation == 1.0
    later = take(pool, 1)
    assert not later.held
    huge.release()
    assert later.held


def test_the_last_share_is_kept_free_for_others() -> None:
    pool = a_pool(places=4)
    free = Terms(below=0.5)
    places = [take(pool, tier="free", terms=free) for _ in range(4)]
    assert [place.held for place in places] == [True, True, False, False]
    assert pool.has_room(1)
    assert not pool.has_room(1, free)
    pro = take(pool, tier="pro")
    assert pro.held
    places[0].release()
    assert not places[2].held
    places[1].release()
    assert places[2].held


def test_limits_change_under_those_on_their_way() -> None:
    pool = a_pool(places=1)
    first, second, third = (take(pool, 5) for _ in range(3))
    pool.limit(2, None)
    assert second.held
    pool.limit(1, None)
    first.release()
    assert not third.held
    pool.limit(None, None)
    assert third.held
    second.release()
    third.release()
    assert (pool.load, pool.tokens) == (0, 0)


def test_a_change_of_limits_makes_the_throughput_unknown_but_not_the_speed() -> None:
    pool = a_pool(places=4)
    pool.speeds.learn(cost=100, share=0.25, seconds=2.0, first_token=0.5, completion=16)
    pool.limit(4, None)
    assert pool.speeds.throughput == 200
    pool.limit(8, None)
    assert pool.speeds.throughput is None
    assert pool.speeds.tokens_per_second == pytest.approx(10)


def test_the_fullest_counts_the_engine_too() -> None:
    clock = Clock()
    pool = a_pool(places=10, tokens=100, clock=clock)
    take(pool, 30)
    assert pool.saturation == 0.3
    pool.speeds.tell(EngineFigures(running=1, places=4, kv_usage=0.8))
    assert pool.saturation == 0.8
    pool.speeds.tell(EngineFigures(running=3, waiting=3, places=4))
    assert pool.saturation == 1.0
    clock.now += 5.1
    assert pool.saturation == 0.3


def test_the_expected_wait_follows_from_what_finished() -> None:
    clock = Clock()
    pool = a_pool(places=4, clock=clock)
    running = [take(pool, 100) for _ in range(4)]
    assert pool.expected_wait_of_new("t", PLAIN, "a", 100) is None
    # 4 places of 100 tokens, each for 2 s: 200 tokens/s.
    pool.speeds.learn(cost=100, share=pool.share(100), seconds=2.0, first_token=None, completion=0)
    assert pool.speeds.throughput == pytest.approx(200)
    assert pool.expected_wait_of_new("t", PLAIN, "a", 100) == pytest.approx(0.5)
    waiting = [take(pool, 100) for _ in range(3)]
    assert waiting[2].expected_wait == pytest.approx(1.5)
    assert pool.expected_wait_of_new("t", PLAIN, "a", 100) == pytest.approx(2.0)
    assert pool.expected_wait_of_new("t", PLAIN, "other", 100) == pytest.approx(1.0)
    assert pool.drain_time(0.5) == pytest.approx((300 + 0.5 * 400) / 200)
    for place in running:
        place.release()
    assert pool.expected_wait_of_new("t", PLAIN, "a", 100) == 0.0


def test_the_expected_wait_for_tokens() -> None:
    pool = a_pool(tokens=100)
    take(pool, 80)
    pool.speeds.learn(cost=100, share=1.0, seconds=2.0, first_token=None, completion=0)
    assert pool.expected_wait_of_new("t", PLAIN, "a", 20) == 0.0
    assert pool.expected_wait_of_new("t", PLAIN, "a", 50) == pytest.approx(30 / 50)
    assert pool.expected_wait_of_new("t", PLAIN, "a", 5000) == pytest.approx(80 / 50)


def test_the_expected_wait_of_a_tier_that_is_held_back() -> None:
    pool = a_pool(places=4, tokens=1000)
    free = Terms(below=0.5)
    for _ in range(3):
        take(pool, 100, tier="pro")
    pool.speeds.learn(cost=100, share=pool.share(100), seconds=2.0, first_token=None, completion=0)
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
    terms = {"enterprise": Terms(8.0), "free": Terms(1.0, below=0.7)}
    pool = a_pool(places=3, tokens=100)
    places: list[Place] = []
    shrunk = False
    for step, number, tier in steps:
        before = sum(place.held for place in places)
        if step == "take":
            places.append(take(pool, 1 + number % 150, tier=tier, terms=terms[tier], tenant=str(number % 3)))
        elif step == "limit":
            pool.limit(1 + number % 5, 100)
            shrunk = True
        elif places:
            places.pop(number % len(places)).release()
        held = [place for place in places if place.held]
        assert pool.in_flight == len(held)
        assert pool.tokens == sum(place.cost for place in held)
        assert pool.load == len(places)
        assert len(held) == 1 or pool.tokens <= 100
        assert pool.places is not None
        assert shrunk or len(held) <= pool.places
        assert len(held) <= max(pool.places, before)
        assert held or not places  # an idle backend keeps nobody waiting
    for place in places:
        place.release()
    assert (pool.in_flight, pool.tokens, pool.load) == (0, 0, 0)


def test_workers_share_the_limits() -> None:
    parts = []
    for worker in (1, 2, 3, 4):
        pools = Pools(4, worker)
        pools.update(policy(backends=backends(max_concurrency=10, max_tokens_in_flight=3)))
        pool = pools.of("up")
        parts.append((pool.places, pool.tokens_limit))
    # Each has one at least, even where there are more workers than the limit allows.
    assert parts == [(3, 1), (3, 1), (2, 1), (2, 1)]


def test_an_engine_with_a_line_of_its_own_has_no_room() -> None:
    pools = Pools()
    assert pools.has_room("up", 1)
    pools.tell("up", EngineFigures(running=4, places=4))
    assert not pools.has_room("up", 1)
    pools.tell("up", EngineFigures(running=3, places=4))
    assert pools.has_room("up", 1)


def test_a_new_policy_keeps_what_is_in_flight() -> None:
    pools = Pools()
    pools.update(policy(backends=backends(max_concurrency=1)))
    first, second = (take(pools.of("up")) for _ in range(2))
    assert (pools.load("up"), pools.saturation("up"), pools.has_room("up", 1)) == (2, 1.0, False)
    pools.update(policy(backends={**backends(max_concurrency=2), **backends("other")}))
    assert second.held
    pools.update(policy(backends=backends("other"), models=models("other")))
    assert pools.load("up") == 2
    first.release()
    second.release()
    pools.update(policy(backends=backends("other"), models=models("other")))
    assert not pools.of("up").limited
    assert pools.has_room("other", 10**9)


def backends(name: str = "up", **more: int) -> dict[str, object]:
    return {name: {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", **more}}


def models(backend: str) -> dict[str, object]:
    return {"m": {"targets": [{"backend": backend, "model": "x"}]}}


@pytest.mark.anyio
async def test_waiting_ends_with_the_place_or_the_time() -> None:
    pool = a_pool(places=1)
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
