"""Who gives way to whom, and what each class may ask for."""

from __future__ import annotations

import pytest

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import ContextLengthExceeded
from tests.engine.core.test_scheduler import make, request, shape, step


def test_a_whole_class_more_takes_the_slot_of_the_one_that_runs_last() -> None:
    scheduler = make(sequences=2, budget=16)
    for number, submitted in ((1, 0.0), (2, 1.0)):
        scheduler.submit(request(number, 4, generate=9, submitted=submitted))
    step(scheduler)
    scheduler.submit(request(3, 4, generate=1, priority=1, submitted=2.0))
    # Rank 2 - 10 is less than a class ahead of rank 1, and just nine ahead of it.
    assert step(scheduler)[0].preempted == []
    scheduler.submit(request(4, 4, generate=1, priority=2, submitted=2.0))
    plan, _ = step(scheduler)
    assert (plan.preempted, plan.admitted) == ([2], [4])
    scheduler.check_integrity()
    # The one that gave way waits for its turn: it does not take a slot back.
    assert step(scheduler)[0].admitted == [3]


def test_a_whole_class_more_takes_the_blocks_of_those_that_run_last_if_that_helps() -> None:
    scheduler = make(blocks=8, sequences=4, budget=64)
    for number, submitted in ((1, 0.0), (2, 1.0)):
        scheduler.submit(request(number, 8, generate=2, submitted=submitted))
    scheduler.submit(request(3, 8, generate=9, submitted=2.0, priority=-1))
    step(scheduler)
    assert len(scheduler.running) == 3
    # Five blocks, and one more for each that goes on beside it: one of three may.
    scheduler.submit(request(4, 20, generate=4, priority=3, submitted=3.0))
    plan, _ = step(scheduler)
    assert (plan.preempted, plan.admitted) == ([3, 2], [4])
    assert shape(plan) == [(4, 0, 20), (1, 8, 1)]
    scheduler.check_integrity()


def test_nobody_gives_way_for_one_that_would_not_fit_even_so() -> None:
    scheduler = make(blocks=8, sequences=4, budget=64)
    scheduler.submit(request(1, 16, generate=9, priority=3))
    scheduler.submit(request(2, 4, generate=9, submitted=1.0))
    step(scheduler)
    scheduler.submit(request(3, 16, generate=4, priority=3, submitted=2.0))
    plan, _ = step(scheduler)
    assert (plan.preempted, plan.admitted) == ([], [])


def test_when_blocks_and_slots_are_short_everyone_ends_without_thrashing() -> None:
    scheduler = make(blocks=10, sequences=3, budget=32, prefix_caching=True)
    for number in range(30):
        scheduler.submit(
            Request(
                number,
                [number] * 6,
                SamplingParams(max_tokens=10),
                priority=number % 3,
                submitted=number * 2.0,
            )
        )
    preempted = steps = 0
    while not scheduler.idle:
        plan, _ = step(scheduler)
        scheduler.check_integrity()
        preempted += len(plan.preempted)
        steps += 1
    assert steps < 30 * 16
    assert preempted < 60


def test_a_chunk_bounds_prompts_while_others_decode_and_only_then() -> None:
    scheduler = make(budget=32, prefill_chunk=8)
    scheduler.submit(request(1, 40, generate=9))
    assert shape(step(scheduler)[0]) == [(1, 0, 32)]
    assert shape(step(scheduler)[0]) == [(1, 32, 8)]
    for number in (2, 3):
        scheduler.submit(request(number, 20))
    assert shape(step(scheduler)[0]) == [(1, 40, 1), (2, 0, 8)]
    assert shape(step(scheduler)[0]) == [(1, 41, 1), (2, 8, 8)]
    # What one prompt leaves of the chunk goes to the next.
    assert shape(step(scheduler)[0]) == [(1, 42, 1), (2, 16, 4), (3, 0, 4)]
    assert shape(step(scheduler)[0]) == [(1, 43, 1), (2, 20, 1), (3, 4, 8)]


def test_a_chunk_may_be_changed_and_be_nothing_for_a_while() -> None:
    scheduler = make(budget=32, prefill_chunk=8)
    scheduler.submit(request(1, 4, generate=20))
    step(scheduler)
    scheduler.submit(request(2, 20))
    step(scheduler)
    scheduler.prefill_chunk = 0
    assert shape(step(scheduler)[0]) == [(1, 5, 1)]
    scheduler.prefill_chunk = 3
    assert shape(step(scheduler)[0]) == [(1, 6, 1), (2, 8, 3)]


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="one token"):
        make(prefill_chunk=0)


@pytest.mark.parametrize(("priority", "limit"), [(-5, 20), (0, 20), (1, 30), (2, 30), (3, 50), (9, 50)])
def test_a_cap_holds_for_its_class_and_those_below(priority: int, limit: int) -> None:
    scheduler = make(context=50, context_caps=[(2, 30), (0, 20), (5, 1000)])
    assert scheduler.context_limit(priority) == limit
    scheduler.submit(request(1, limit - 4, generate=4, priority=priority))
    with pytest.raises(ContextLengthExceeded, match=f"length is {limit} tokens"):
        scheduler.submit(request(2, limit - 3, generate=4, priority=priority))


def test_the_worker_is_told_once_of_each_that_ended() -> None:
    scheduler = make()
    for number in (1, 2, 3):
        scheduler.submit(request(number, 4, generate=1 if number == 1 else 5))
    assert step(scheduler)[0].ended == []
    scheduler.abort(2)
    assert step(scheduler)[0].ended == [1, 2]
    assert step(scheduler)[0].ended == []
    scheduler.abort(3)
    # A plan without work may not reach the worker.
    assert scheduler.schedule().ended == []
    scheduler.submit(request(4, 4))
    assert step(scheduler)[0].ended == [3]
