from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.admission import gate
from gateway.admission.gate import Admission
from gateway.admission.pools import Pools
from gateway.admission.shedding import TierRules
from gateway.admission.wait_predictor import slots_free_at
from gateway.errors import Overloaded
from gateway.types import TokenEstimate
from tests.fakes import CANDIDATE, a_call, policy

RULES = policy(
    backends={"up": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "max_concurrency": 2}},
    tiers={"default": {"max_wait": "2s"}},
)


@pytest.mark.parametrize(
    ("ends", "ahead", "answers", "free"),
    [
        ([3.0], [], 1, 3.0),
        ([3.0, 1.0], [], 1, 1.0),
        ([3.0, 1.0], [], 2, 3.0),
        ([3.0, 1.0], [1.0], 1, 2.0),
        ([3.0, 1.0], [5.0], 1, 3.0),
        ([3.0, 1.0], [5.0, 1.0], 1, 4.0),
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], 3, 2.0),
        ([90.0, 80.0], [1.0, 1.0], 1, 80.0),
    ],
)
def test_when_places_come_free(ends: list[float], ahead: list[float], answers: int, free: float) -> None:
    assert slots_free_at(ends, ahead, answers=answers, horizon=50.0) == free


def enter(pools: Pools, tokens: int) -> Admission:
    call = a_call(policy_=RULES)
    call = replace(
        call, candidate=CANDIDATE, estimate=TokenEstimate(40, tokens, tokens), started=pools.clock()
    )
    return gate.admit(call, pools, TierRules())


def a_backend(now: list[float], took: float) -> Pools:
    """Two places, where answers of 51 tokens were expected to take 1.2 s and took ``took``."""
    pools = Pools(clock=lambda: now[0])
    pools.update(RULES)
    for _ in range(20):
        pools.of("up").speed.observe(tokens=91, share=0.5, seconds=1.2, first_token=0.2, completion=51)
        pools.of("up").speed.observe_service(1.2, took)
    return pools


def test_who_is_foreseen_to_have_a_place_in_time_is_let_in_and_the_next_is_not() -> None:
    now = [0.0]
    pools = a_backend(now, 1.2)
    long, short = enter(pools, 501), enter(pools, 50)
    now[0] = 0.1
    waits = enter(pools, 50)
    assert not waits.lease.is_granted
    with pytest.raises(Overloaded, match=r"would wait about 2\.3 s"):
        enter(pools, 50)
    now[0] = 1.2
    short.lease.release()
    assert waits.lease.is_granted and waits.waited == pytest.approx(1.1)
    long.lease.release()
    assert not pools.of("up").leases.keys() - {waits.lease}


def wait_in_vain(pools: Pools, now: list[float], count: int) -> None:
    """They give up together."""
    waiting = [enter(pools, 50) for _ in range(count)]
    now[0] += 1.0
    for one in waiting:
        assert not one.lease.is_granted
        one.learn_wait("default")
        one.lease.release()


def test_where_nothing_is_foreseen_of_one_request_nobody_is_refused_for_it() -> None:
    """One long answer and one short one: half of their tokens take longer than may be waited."""
    now = [0.0]
    pools = a_backend(now, 4.0)
    assert pools.of("up").speed.certainty == 0.0
    enter(pools, 501), enter(pools, 50)
    wait_in_vain(pools, now, 18)


def test_refused_is_who_stands_where_hardly_anybody_was_served() -> None:
    now = [0.0]
    pools = a_backend(now, 4.0)
    enter(pools, 501), enter(pools, 50)
    for _ in range(25):
        wait_in_vain(pools, now, 1)
    outcomes = []
    for _ in range(20):
        try:
            outcomes.append(enter(pools, 50))
        except Overloaded as error:
            assert error.code == "predicted_wait_too_long" and "would wait about" in error.message
            assert error.retry_after is not None and error.retry_after >= 1
            outcomes.append(None)
    tried = [one for one in outcomes if one is not None]
    assert len(tried) < 10
    assert tried, "some are let in to see whether it is still so"
    for one in tried:
        one.lease.grant(now[0])  # it is not
        one.learn_wait("default")
    enter(pools, 50)


def test_the_speed_of_answers_is_no_mean_of_ratios() -> None:
    """Those of two tokens, whose second is late, are not half of the truth."""
    speed = Pools().of("up").speed
    speed.observe(tokens=1, share=1.0, seconds=1.2, first_token=0.2, completion=101)
    speed.observe(tokens=1, share=1.0, seconds=0.4, first_token=0.2, completion=2)
    assert speed.tokens_per_second == pytest.approx(101 / 1.2)
