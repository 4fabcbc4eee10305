"""Requests whose tokens nobody takes."""

from __future__ import annotations

from tests.engine.core.test_scheduler import BLOCK, make, request, shape, step


def test_a_parked_request_holds_nothing_and_goes_on_where_it_was() -> None:
    scheduler = make(blocks=20, sequences=1, budget=64, prefix_caching=True)
    scheduler.submit(request(1, 9, generate=12))
    for _ in range(3):
        step(scheduler)
    assert scheduler.park(1) and not scheduler.park(1)
    scheduler.check_integrity()
    assert (scheduler.pool.used, scheduler.idle, scheduler.num_waiting) == (0, True, 0)
    scheduler.submit(request(2, 4, generate=2))
    while not scheduler.idle:
        plan, _ = step(scheduler)
        assert [scheduled.request_id for scheduled in plan.requests] == [2], "its slot is another's"
    assert scheduler.unpark(1) and not scheduler.unpark(1)
    plan, outputs = step(scheduler)
    # What the prefix cache kept of prompt and answer is not computed again.
    assert shape(plan) == [(1, 2 * BLOCK, 12 - 2 * BLOCK)]
    assert [output.tokens for output in outputs] == [[1000]]
    while not scheduler.idle:
        _, outputs = step(scheduler)
        scheduler.check_integrity()
    assert outputs[0].finish == "length"


def test_one_that_waits_after_it_gave_way_can_be_parked_and_aborted() -> None:
    scheduler = make(blocks=20, sequences=1, budget=64)
    scheduler.submit(request(1, 4, generate=12))
    step(scheduler)
    scheduler.submit(request(2, 4, generate=2, priority=5))
    step(scheduler)
    assert [one.id for one in scheduler.waiting] == [1]
    assert scheduler.park(1)
    scheduler.check_integrity()
    assert scheduler.abort(1) and not scheduler.abort(1)
    assert not scheduler.parked
    scheduler.check_integrity()


def test_what_has_nothing_to_be_taken_is_not_parked() -> None:
    scheduler = make(budget=8)
    scheduler.submit(request(1, 20))
    assert not scheduler.park(1)
    step(scheduler)
    assert not scheduler.park(1), "its prompt is not computed"
    assert not scheduler.park(2) and not scheduler.unpark(1)
    scheduler.check_integrity()
