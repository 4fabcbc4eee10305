"""Who waits for whom, and how long at most."""

from __future__ import annotations

from tests.engine.core.test_scheduler import make, request, shape, step


def test_a_step_without_prompts_computes_them_after_all_if_everyone_who_decodes_gives_way() -> None:
    scheduler = make(blocks=12, budget=64)
    scheduler.submit(request(1, 4, generate=30, submitted=1.0))
    step(scheduler)
    scheduler.chunk = 2
    scheduler.submit(request(2, 36, generate=4))
    while scheduler.pool.available:
        step(scheduler)
    scheduler.chunk = 0
    while not (plan := step(scheduler)[0]).preempted:
        assert [work.request_id for work in plan.work] == [1]
    assert plan.preempted == [1]
    assert shape(plan) == [(2, 10, 26)]
    scheduler.check_integrity()
