"""A request with several answers takes several places."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import gate
from gateway.admission.fair_queue import QueueTerms
from gateway.admission.pool import Pool
from gateway.admission.pools import Pools
from gateway.admission.shedding import TierRules
from gateway.admission.slot_lease import SlotLease
from gateway.errors import TooManyAnswers
from gateway.policy.schema import Policy
from gateway.types import Call, Chunk, Chunks
from tests.fakes import CANDIDATE, a_call, policy
from tests.gateway.upstream_loops import attempts

TERMS = QueueTerms()


def limited(slots: int, tokens: int | None = None) -> Pool:
    pool = Pool("up", clock=lambda: 0.0)
    pool.limit(slots, tokens)
    return pool


@pytest.mark.parametrize(
    ("request_", "slots"),
    [
        ({}, 1),
        ({"n": 4}, 4),
        ({"prompt": "a"}, 1),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": [[1, 2], [3]], "n": 3}, 6),
        ({"prompt": "a", "n": 2, "params": {"best_of": 5}}, 5),
        ({"prompt": "a", "n": 2, "params": {"best_of": True}}, 2),
        ({"prompt": [], "n": 2}, 2),
        ({"prompt": ["a"] * 100, "embeds": True}, 1),
    ],
)
def test_how_many_slots_it_takes(request_: dict[str, Any], slots: int) -> None:
    assert a_call(**request_).request.slots == slots


def test_places_are_taken_and_given_back_by_answers() -> None:
    pool = limited(8)
    big = pool.acquire("t", TERMS, "a", 100, 6)
    small = pool.acquire("t", TERMS, "b", 10, 2)
    late = pool.acquire("t", TERMS, "b", 10, 2)
    assert big.is_granted and small.is_granted and not late.is_granted
    assert pool.in_flight == 8 and pool.saturation == 1.0
    big.release_one()
    assert not late.is_granted
    big.release_one()
    assert late.is_granted, "two of six have ended"
    for lease in (big, small, late):
        lease.release()
        lease.release()
        lease.release_one()
    assert (pool.in_flight, pool.tokens_in_flight) == (0, 0)


def test_what_is_larger_than_this_workers_part_runs_alone() -> None:
    pool = limited(2)
    first = pool.acquire("t", TERMS, "a", 1)
    big = pool.acquire("t", TERMS, "a", 1, 4)
    after = pool.acquire("t", TERMS, "b", 1)
    assert not big.is_granted and not after.is_granted
    first.release()
    assert big.is_granted and not after.is_granted
    big.release()
    assert after.is_granted


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.booleans()), max_size=40))
def test_no_place_is_lost_and_no_more_are_given_than_there_are(steps: list[tuple[int, int, bool]]) -> None:
    pool = limited(8)
    slots: list[SlotLease] = []
    for answers, which, release in steps:
        slots.append(pool.acquire("t", TERMS, "abc"[which % 3], answers, answers))
        for lease in slots[-3:]:
            lease.release_one()
        if release:
            slots.pop(which % len(slots)).release()
        held = [lease for lease in slots if lease.is_granted]
        utilization = sum(lease.answers - lease._finished for lease in held)
        assert pool.in_flight == utilization
        assert utilization <= 8 or len(held) == 1
    for lease in slots:
        lease.release()
    assert (pool.in_flight, pool.tokens_in_flight, len(pool.queue)) == (0, 0, 0)


def of_backend(**more: Any) -> Policy:
    return policy(backends={"up": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", **more}})


def test_more_than_all_places_is_refused_in_words_that_help() -> None:
    rules = of_backend(max_concurrency=8)
    pools = Pools()
    pools.update(rules)
    call = a_call(policy_=rules, n=9)
    call.candidate = CANDIDATE
    with pytest.raises(
        TooManyAnswers, match=r"9 answers at once .* backend 'up' computes 8 at most"
    ) as caught:
        gate.admit(call, pools, TierRules())
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "n", "too_many_answers")
    assert pools.of("up").in_flight == 0
    call = a_call(policy_=of_backend(), n=9)
    call.candidate = CANDIDATE
    gate.admit(call, pools, TierRules())


@pytest.mark.anyio
async def test_a_stream_gives_back_each_place_as_its_answer_ends() -> None:
    rules = of_backend(max_concurrency=4)
    pools = Pools()
    pools.update(rules)

    async def three(call: Call) -> Chunks:
        for index in range(3):
            yield Chunk(index=index, delta={"content": "a"}, finish_reason="stop")

    call = a_call(policy_=rules, n=3)
    call.candidate, call.candidates = CANDIDATE, (CANDIDATE,)
    utilization = []
    async with aclosing(attempts(three, rules, pools=pools)(call)) as chunks:
        async for _ in chunks:
            utilization.append(pools.of("up").in_flight)  # noqa: PERF401
    assert utilization == [2, 1, 1], "the last one's with the request"
    assert pools.of("up").in_flight == 0
