from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission.fair_queue import FairQueue, QueueTerms, Waiter
from tests.examples import examples

PLAIN = QueueTerms()
ENTERPRISE, PRO, FREE = QueueTerms(8.0), QueueTerms(3.0), QueueTerms(1.0)


def drain(queue: FairQueue[str], *, now: float = 0.0, most: int = 10**9) -> list[str]:
    served = []
    while len(served) < most and (waiter := queue.head(now)) is not None:
        queue.take(waiter, now)
        served.append(waiter.item)
    return served


def fill(
    queue: FairQueue[str], tier: str, terms: QueueTerms, tenant: str, token_counts: list[int]
) -> list[Waiter[str]]:
    return [
        queue.push(tier, terms, tenant, tokens, 0.0, f"{tenant}{i}") for i, tokens in enumerate(token_counts)
    ]


def test_one_tenants_requests_keep_their_order() -> None:
    queue: FairQueue[str] = FairQueue()
    fill(queue, "t", PLAIN, "a", [50, 1, 20])
    assert (len(queue), queue.tokens) == (3, 71)
    assert drain(queue) == ["a0", "a1", "a2"]
    assert (len(queue), queue.tokens, queue.head(0.0)) == (0, 0, None)


def test_tenants_are_equal_by_tokens_not_by_requests() -> None:
    queue: FairQueue[str] = FairQueue()
    fill(queue, "t", PLAIN, "big", [100] * 20)
    fill(queue, "t", PLAIN, "small", [10] * 200)
    served = Counter(item.rstrip("0123456789") for item in drain(queue, most=110))
    assert abs(served["big"] * 100 - served["small"] * 10) <= 110
    assert served["small"] > 5 * served["big"]


def test_a_flood_of_one_tenant_does_not_delay_another() -> None:
    queue: FairQueue[str] = FairQueue()
    fill(queue, "t", PLAIN, "noisy", [10] * 500)
    drain(queue, most=100)
    fill(queue, "t", PLAIN, "quiet", [10])
    assert "quiet0" in drain(queue, most=2)


def test_a_full_line_has_room_for_who_has_less_than_a_part_of_it() -> None:
    queue: FairQueue[str] = FairQueue()
    fill(queue, "t", PLAIN, "noisy", [10] * 9)
    assert not queue.is_full("t", "noisy", 10)
    fill(queue, "t", PLAIN, "noisy", [10])
    assert queue.is_full("t", "noisy", 10)
    assert not queue.is_full("u", "noisy", 10), "each tier has a line of its own"
    for _ in range(5):
        assert not queue.is_full("t", "quiet", 10)
        fill(queue, "t", PLAIN, "quiet", [10])
    assert queue.is_full("t", "quiet", 10), "half of it for each of two"
    for number in range(5):
        assert not queue.is_full("t", f"{number}", 10)
        fill(queue, "t", PLAIN, f"{number}", [10])
    assert queue.is_full("t", "another", 10), "however many come, it has an end"


def test_tiers_share_by_weight() -> None:
    queue: FairQueue[str] = FairQueue()
    for tier, terms in (("enterprise", ENTERPRISE), ("pro", PRO), ("free", FREE)):
        fill(queue, tier, terms, tier, [10] * 400)
    served = Counter(item.rstrip("0123456789") for item in drain(queue, most=240))
    assert served == pytest.approx({"enterprise": 160, "pro": 60, "free": 20}, abs=2)


def test_more_tenants_do_not_make_a_tier_larger() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(10):
        fill(queue, "crowd", PLAIN, f"crowd-{number}-", [10] * 50)
    fill(queue, "single", PLAIN, "single", [10] * 500)
    served = Counter(item.startswith("single") for item in drain(queue, most=200))
    assert abs(served[True] - served[False]) <= 2


@pytest.mark.parametrize(("waited", "first"), [(69.0, "enterprise"), (71.0, "free")])
def test_a_request_that_has_waited_counts_more(waited: float, first: str) -> None:
    """After 70 s, seven times its ageing, a weight of 1 counts as 8."""
    queue: FairQueue[str] = FairQueue()
    queue.push("free", QueueTerms(weight=1.0, ageing=10.0), "f", 80, 0.0, "free")
    queue.push("enterprise", QueueTerms(weight=8.0, ageing=10.0), "e", 80, waited, "enterprise")
    assert drain(queue, now=waited, most=1) == [first]


def test_a_tier_that_is_held_back_lets_others_pass_until_there_is_space() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("free", QueueTerms(max_utilization=0.5), "f", 1, 0.0, "free")
    assert queue.head(0.0, utilization=0.5) is None
    queue.push("pro", PLAIN, "p", 9, 0.0, "pro")
    for utilization, expected in ((0.5, "pro"), (0.4, "free")):
        head = queue.head(0.0, utilization)
        assert head is not None
        assert head.item == expected


def test_one_that_is_held_back_always_is_served_by_an_idle_backend() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("free", QueueTerms(max_utilization=0.0), "f", 1, 0.0, "free")
    assert queue.head(0.0, utilization=0.01) is None
    assert drain(queue) == ["free"]


def test_a_big_one_is_overtaken_for_a_bounded_time_only() -> None:
    """Small requests of a heavy tier keep coming, as many as are served."""
    queue: FairQueue[str] = FairQueue()
    queue.push("free", FREE, "f", 1000, 0.0, "big")
    for number in count():
        queue.push("enterprise", ENTERPRISE, "e", 10, 0.0, "small")
        (served,) = drain(queue, most=1)
        if served == "big":
            break
        assert number <= 1000 * 8 / 10
    assert number > 100  # it is not first for being big either


def test_those_who_leave_cost_those_behind_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    gone = fill(queue, "t", PLAIN, "a", [1000] * 5)
    fill(queue, "t", PLAIN, "b", [10] * 3)
    queue.push("t", PLAIN, "a", 10, 0.0, "a-last")
    for waiter in gone:
        queue.remove(waiter)
    assert queue.length("t") == 4
    assert "a-last" in drain(queue, most=2)


def test_positions_and_tokens_ahead() -> None:
    queue: FairQueue[str] = FairQueue()
    first = fill(queue, "t", PLAIN, "a", [10, 20, 30])
    assert [queue.position(waiter) for waiter in first] == [1, 2, 3]
    assert [queue.tokens_ahead(waiter) for waiter in first] == [0, 10, 30]
    other = queue.push("t", PLAIN, "b", 10, 0.0, "b")
    assert queue.tokens_ahead(other) == 10
    assert queue.tokens_ahead_of_new("t", PLAIN, "c", 5) == 10
    assert queue.tokens_ahead_of_new("t", PLAIN, "a", 5) == 70
    # While 10 tokens pass here, 80 pass there.
    assert queue.tokens_ahead_of_new("enterprise", ENTERPRISE, "e", 80) == 10
    # Who is held back does not pass.
    assert queue.tokens_ahead_of_new("t", QueueTerms(max_utilization=0.5), "c", 5) == 10
    queue.remove(first[0])
    assert [queue.tokens_ahead(waiter) for waiter in first[1:]] == [10, 30]


flows = st.lists(
    st.tuples(st.sampled_from("xyz"), st.sampled_from("abcd"), st.integers(1, 5000)), min_size=1, max_size=60
)
TERMS = {"x": QueueTerms(8.0, ageing=10.0), "y": QueueTerms(3.0, ageing=1.0), "z": QueueTerms(0.5)}


@given(
    flows,
    st.lists(
        st.tuples(st.sampled_from(["serve", "leave", "come"]), st.integers(0, 10**6), st.floats(0, 5)),
        max_size=80,
    ),
)
def test_no_request_is_lost_or_served_twice(
    arrivals: list[tuple[str, str, int]], steps: list[tuple[str, int, float]]
) -> None:
    queue: FairQueue[int] = FairQueue()
    waiting: dict[int, Waiter[int]] = {}
    served: list[int] = []
    left: list[int] = []
    numbers = count()
    now = 0.0

    def come(tier: str, tenant: str, tokens: int) -> None:
        number = next(numbers)
        waiting[number] = queue.push(tier, TERMS[tier], tenant, tokens, now, number)

    def serve() -> None:
        head = queue.head(now)
        assert head is not None
        queue.take(head, now)
        served.append(head.item)
        del waiting[head.item]

    for arrival in arrivals:
        come(*arrival)
    for step, which, passed in steps:
        now += passed
        if step == "come":
            come(*arrivals[which % len(arrivals)])
        elif waiting and step == "serve":
            serve()
        elif waiting:
            number = list(waiting)[which % len(waiting)]
            queue.remove(waiting.pop(number))
            left.append(number)
        assert len(queue) == len(waiting)
        assert queue.tokens == sum(waiter.tokens for waiter in waiting.values())
        for waiter in waiting.values():
            assert 1 <= queue.position(waiter) <= len(queue)
            assert 0 <= queue.tokens_ahead(waiter) <= queue.tokens - waiter.tokens
    while waiting:
        serve()
    assert sorted(served + left) == list(range(next(numbers)))
    assert (len(queue), queue.tokens, queue.head(now)) == (0, 0, None)


@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=5),
    st.lists(st.floats(0.1, 20), min_size=5, max_size=5),
    st.integers(20, 200),
)
@settings(max_examples=examples(60))
def test_shares_keep_to_the_weights_within_one_request_of_each(
    token_counts: list[int], weights: list[float], turns: int
) -> None:
    """Golestani's bound: of two flows that wait all the time, neither gets ahead by more than its own request and the
    other's, each by its weight.
    """
    queue: FairQueue[int] = FairQueue()
    received = [0.0] * len(token_counts)
    terms = [QueueTerms(weight) for weight in weights]
    for flow, tokens in enumerate(token_counts):
        queue.push(str(flow), terms[flow], "t", tokens, 0.0, flow)
    for _ in range(turns):
        head = queue.head(0.0)
        assert head is not None
        flow = head.item
        queue.push(str(flow), terms[flow], "t", token_counts[flow], 0.0, flow)
        queue.take(head, 0.0)
        received[flow] += token_counts[flow] / weights[flow]
        for one in range(len(token_counts)):
            for other in range(one):
                bound = token_counts[one] / weights[one] + token_counts[other] / weights[other]
                assert abs(received[one] - received[other]) <= bound * (1 + 1e-9) + 1e-6


@given(flows, st.integers(1, 3000))
def test_nobody_starves(arrivals: list[tuple[str, str, int]], tokens: int) -> None:
    """However many come after it, a request is served after a bounded amount of others' tokens."""
    queue: FairQueue[str] = FairQueue()
    for tier, tenant, size in arrivals:
        queue.push(tier, TERMS[tier], tenant, size, 0.0, "before")
    mine = queue.push("z", TERMS["z"], "mine", tokens, 0.0, "mine")
    bound = 2 * queue.tokens_ahead(mine) + 4 * 5000 + tokens * (8.0 + 3.0 + 0.5) / 0.5 * 5
    tokens = 0
    while True:
        head = queue.head(0.0)
        assert head is not None
        queue.take(head, 0.0)
        if head is mine:
            return
        tokens += head.tokens
        assert tokens <= bound
        queue.push(head.tier_queue.tier, head.tier_queue.terms, head.tenant.name, head.tokens, 0.0, "after")
