"""Between tenants: what is fair, what it means for slots, blocks and prompts, and that nobody is left out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.plan import Plan, RequestOutput, SamplerOutput
from engine.core.request import Request, Sibling
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.shares import Shares, divide
from engine.errors import QueueFull
from tests.engine.core.test_scheduler import BLOCK, make
from tests.examples import examples


def ask(
    id: int, tenant: str, *, prompt: int = 4, generate: int = 40, choices: int = 1, **more: object
) -> Request:
    params = SamplingParams(max_tokens=generate)
    siblings = [Sibling(id + i, params) for i in range(1, choices)]
    tokens = [1000 * id + i for i in range(prompt)]
    return Request(id, tokens, params, tenant=tenant, siblings=siblings, **more)


def step(scheduler: Scheduler) -> tuple[Plan, list[RequestOutput]]:
    plan = scheduler.schedule()
    sampled = SamplerOutput()
    for scheduled in plan.requests:
        if scheduled.sampling is not None:
            sampled.tokens |= {
                one: [7] for one in (scheduled.request_id, *(sibling.id for sibling in scheduled.siblings))
            }
    return plan, scheduler.update(plan, sampled)


def slots(scheduler: Scheduler) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in scheduler.running:
        found[one.tenant] = found.get(one.tenant, 0) + 1
    return found


@given(st.integers(1, 500), st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 300), min_size=1))
def test_tokens_are_divided_as_equally_as_wishes_allow(tokens: int, wanted: dict[str, int]) -> None:
    parts = divide(tokens, wanted)
    assert sum(parts.values()) == min(tokens, sum(wanted.values())), "nothing is left over that anyone wants"
    assert all(0 <= parts[name] <= wanted[name] for name in wanted)
    most = max(parts.values())
    assert all(part == wanted[name] or part >= most - 1 for name, part in parts.items())


def test_a_use_is_the_larger_of_slots_and_blocks() -> None:
    wide, long = ask(1, "wide"), ask(2, "long")
    wide.blocks, long.blocks = [1], [2, 3, 4, 5, 6, 7]
    shares = Shares([wide, long], [], max_num_seqs=4, blocks=10)
    assert shares.excess("wide") == pytest.approx(-0.5)
    assert shares.excess("long") == pytest.approx(0.2)
    assert shares.within_share(wide) and not shares.within_share(long)


def test_n_takes_all_slots_only_until_another_tenant_comes() -> None:
    """The choices of one request against another's single answer: it is there at the next step."""
    scheduler = make(blocks=1000, sequences=64, budget=128, waiting=512, prefix_caching=True)
    scheduler.submit(ask(1, "a", generate=300, choices=128))
    for _ in range(5):
        step(scheduler)
    assert slots(scheduler) == {"a": 64} and scheduler.num_waiting == 64
    scheduler.submit(ask(1000, "b", generate=10))
    for _ in range(10):
        _, outputs = step(scheduler)
        assert any(output.request_id == 1000 for output in outputs), "it gains in every step from its first"
        scheduler.check_integrity()
    step(scheduler)
    assert slots(scheduler) == {"a": 64}, "and what it leaves is taken up again"
    assert not any(one.tenant == "b" for one in (*scheduler.running, *scheduler.waiting))


@pytest.mark.parametrize(
    ("weights", "expected"), [((1.0, 1.0), (8, 8)), ((3.0, 1.0), (12, 4)), ((1.0, 8.0), (2, 14))]
)
def test_slots_are_shared_by_weight(weights: tuple[float, float], expected: tuple[int, int]) -> None:
    scheduler = make(blocks=1000, sequences=16, budget=64, waiting=512)
    for tenant, weight, first in zip("ab", weights, (1, 1000), strict=True):
        scheduler.submit(ask(first, tenant, generate=200, choices=60, weight=weight))
    for _ in range(40):
        step(scheduler)
        scheduler.check_integrity()
    found = slots(scheduler)
    assert sum(found.values()) == 16
    assert abs(found["a"] - expected[0]) <= 1


def test_shares_settle_and_nobody_is_thrown_out_again() -> None:
    scheduler = make(blocks=1000, sequences=7, budget=64, waiting=512)
    for place, tenant in enumerate("abc"):
        scheduler.submit(ask(1 + 100 * place, tenant, generate=300, choices=20))
    preempted = [len(step(scheduler)[0].preempted) for _ in range(60)]
    assert sorted(slots(scheduler).values()) == [2, 2, 3]
    assert sum(preempted[20:]) == 0


def test_time_spent_waiting_does_not_undo_shares() -> None:
    """Waiting ages, but only among the requests of one tenant: what came long ago and has its share waits on."""
    scheduler = make(blocks=1000, sequences=4, budget=64, waiting=512)
    scheduler.submit(ask(1, "a", generate=300, choices=12, submitted=-1000.0))
    step(scheduler)
    scheduler.submit(ask(100, "b", generate=60, submitted=0.0))
    for _ in range(60):
        _, outputs = step(scheduler)
        assert any(output.request_id == 100 for output in outputs)


def test_a_higher_priority_gives_nothing_up_to_a_lower_one() -> None:
    scheduler = make(blocks=1000, sequences=4, budget=64, waiting=512)
    scheduler.submit(ask(1, "a", generate=30, choices=8, priority=1))
    step(scheduler)
    scheduler.submit(ask(100, "b", generate=5, submitted=1.0))
    for _ in range(10):
        step(scheduler)
    assert slots(scheduler) == {"a": 4}


def test_long_prompts_of_one_leave_room_in_each_step_for_those_of_another() -> None:
    scheduler = make(blocks=1000, sequences=8, budget=32, waiting=512)
    for number in range(1, 5):
        scheduler.submit(ask(number, "a", prompt=300))
    step(scheduler)
    scheduler.submit(ask(100, "b", prompt=40, generate=3))
    steps = 0
    while not any(output.request_id == 100 for output in step(scheduler)[1]):
        steps += 1
        assert steps <= 4, "forty tokens at sixteen a step, beside 1,200 that came before"


def test_blocks_are_shared_too() -> None:
    """Few long contexts against short ones: who holds more than half of the blocks gives way first."""
    scheduler = make(blocks=40, sequences=8, budget=64, waiting=64)
    for number in range(1, 5):
        scheduler.submit(ask(number, "a", prompt=9 * BLOCK - 1, generate=30))
    for _ in range(4):
        step(scheduler)
    scheduler.submit(ask(100, "b", prompt=4, generate=30))
    for _ in range(3):
        step(scheduler)
        scheduler.check_integrity()
    assert slots(scheduler)["b"] == 1
    while any(one.tenant == "b" for one in (*scheduler.running, *scheduler.waiting)):
        assert slots(scheduler).get("b") == 1, "it is not thrown out for those that have more"
        step(scheduler)
        scheduler.check_integrity()


def test_a_waiting_room_that_one_has_filled_has_a_chair_for_another() -> None:
    scheduler = make(blocks=1000, sequences=2, budget=64, waiting=16)
    scheduler.submit(ask(1, "a", choices=2))
    step(scheduler)
    taken = 0
    with pytest.raises(QueueFull):
        for number in range(10, 100):
            scheduler.submit(ask(number, "a"))
            taken += 1
    assert taken == 14
    scheduler.submit(ask(200, "b"))
    with pytest.raises(QueueFull):
        scheduler.submit(ask(201, "a"))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 30), st.integers(1, 12), st.integers(1, 5)),
        min_size=2,
        max_size=8,
    ),
    st.integers(10, 40),
    st.integers(1, 6),
)
def test_everyone_is_done_in_the_end(
    asked: list[tuple[str, int, int, int]], blocks: int, sequences: int
) -> None:
    scheduler = make(blocks=blocks, sequences=sequences, budget=16, waiting=512)
    for place, (tenant, prompt, generate, choices) in enumerate(asked):
        scheduler.submit(ask(1 + 10 * place, tenant, prompt=prompt, generate=generate, choices=choices))
    most = sum((prompt + generate) * choices for _, prompt, generate, choices in asked) * len(asked) + 100
    for _ in range(most):
        if scheduler.idle:
            break
        step(scheduler)
        scheduler.check_integrity()
    assert scheduler.idle, "requests throw each other out for ever"
