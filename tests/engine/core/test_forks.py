"""``n`` > 1: several choices of one prompt."""

from __future__ import annotations

import pytest

from engine.core.plan import SamplerOutput
from engine.core.request import Request, Sibling
from engine.core.sampling_params import SamplingParams
from engine.errors import ContextLengthExceeded, QueueFull
from tests.engine.core.test_scheduler import BLOCK, Clock, make, request, shape


def group(number: int, prompt: int, choices: int = 3, generate: int = 4, **options) -> Request:
    params = SamplingParams(max_tokens=generate)
    siblings = [Sibling(number + i, params) for i in range(1, choices)]
    return Request(number, list(range(prompt)), params, siblings=siblings, **options)


def step(scheduler, tokens=None):
    """Each choice draws its own id, or what ``tokens`` says."""
    plan = scheduler.schedule()
    sampled = {}
    for scheduled in plan.requests:
        if scheduled.sampling:
            for number in [scheduled.request_id, *(sibling.id for sibling in scheduled.siblings)]:
                sampled[number] = [(tokens or {}).get(number, number)]
    outputs = scheduler.update(plan, SamplerOutput(sampled))
    scheduler.check_integrity()
    return plan, outputs


def test_siblings_begin_when_the_prompt_is_computed_and_share_its_blocks() -> None:
    scheduler = make(budget=8)
    scheduler.submit(group(1, 10))
    plan, outputs = step(scheduler)
    assert (plan.requests[0].siblings, outputs) == ([], [])
    plan, outputs = step(scheduler)
    assert [sibling.id for sibling in plan.requests[0].siblings] == [2, 3]
    assert [(output.request_id, output.tokens) for output in outputs] == [(1, [1]), (2, [2]), (3, [3])]
    assert scheduler.pool.used == 3
    assert [one.blocks for one in scheduler.running] == [scheduler.running[0].blocks] * 3
    assert scheduler.num_waiting == 0


def test_whoever_writes_into_a_shared_block_first_gets_a_copy_and_the_last_needs_none() -> None:
    scheduler = make(budget=16)
    scheduler.submit(group(1, 10))
    step(scheduler)
    shared = scheduler.running[0].blocks[2]
    plan, _ = step(scheduler)
    tables = [scheduled.blocks for scheduled in plan.requests]
    assert plan.copies == [(shared, tables[0][2]), (shared, tables[1][2])]
    assert tables[2][2] == shared
    assert len({table[2] for table in tables}) == 3
    assert {tuple(table[:2]) for table in tables} == {tuple(tables[0][:2])}
    assert step(scheduler)[0].copies == []


def test_a_prompt_that_fills_its_blocks_is_never_copied() -> None:
    scheduler = make(budget=16)
    scheduler.submit(group(1, 2 * BLOCK))
    copies = []
    while not scheduler.idle:
        copies += step(scheduler)[0].copies
    assert copies == []


def test_a_sibling_without_a_slot_waits_with_the_token_it_has() -> None:
    scheduler = make(sequences=2, budget=16)
    scheduler.submit(group(1, 6))
    step(scheduler)
    assert [one.id for one in scheduler.running] == [1, 2]
    (waiting,) = scheduler.waiting
    assert (waiting.id, waiting.tokens) == (3, [*range(6), 3])
    gained = {1: 1, 2: 1, 3: 1}
    while not scheduler.idle:
        for output in step(scheduler)[1]:
            gained[output.request_id] += len(output.tokens)
    assert gained == {1: 4, 2: 4, 3: 4}


def test_a_leader_that_ends_with_its_first_token_leaves_blocks_to_its_siblings() -> None:
    scheduler = make(sequences=2, budget=16)
    params = SamplingParams(max_tokens=4, stop_token_ids=frozenset({99}))
    scheduler.submit(Request(1, [1] * 6, params, siblings=[Sibling(2, params), Sibling(3, params)]))
    _, outputs = step(scheduler, {1: 99})
    assert [(output.request_id, output.finish) for output in outputs] == [(1, "stop"), (2, None), (3, None)]
    assert [one.id for one in scheduler.running] == [2, 3]
    assert scheduler.schedule().ended == [1]


def test_a_sibling_that_ends_with_its_first_token_never_runs() -> None:
    scheduler = make(budget=16)
    scheduler.submit(group(1, 6, generate=1))
    _, outputs = step(scheduler)
    assert [(output.request_id, output.finish) for output in outputs] == [(n, "length") for n in (1, 2, 3)]
    assert scheduler.idle
    scheduler.submit(request(9, 1))
    assert sorted(scheduler.schedule().ended) == [1, 2, 3]


def test_a_sibling_aborted_before_it_begins_does_not_begin() -> None:
    scheduler = make(budget=16)
    scheduler.submit(group(1, 6))
    assert scheduler.abort(2)
    assert not scheduler.abort(2)
    plan = scheduler.schedule()
    assert [sibling.id for sibling in plan.requests[0].siblings] == [3]
    # Nor one that is aborted in that very step.
    assert scheduler.abort(3)
    outputs = scheduler.update(plan, SamplerOutput({1: [5], 3: [5]}))
    assert [output.request_id for output in outputs] == [1]
    scheduler.check_integrity()


@pytest.mark.parametrize("steps", [0, 1])
def test_a_sibling_takes_over_from_a_leader_that_is_aborted(steps: int) -> None:
    clock = Clock()
    scheduler = make(budget=8, clock=clock)
    scheduler.submit(group(1, 12, deadline=50.0))
    for _ in range(steps):
        step(scheduler)
    assert scheduler.abort(1)
    scheduler.check_integrity()
    gained = {2: 0, 3: 0}
    plan, outputs = step(scheduler)
    assert shape(plan) == [(2, 8 * steps, 8 if not steps else 4)]
    while not scheduler.idle:
        for output in outputs:
            gained[output.request_id] += len(output.tokens)
        _, outputs = step(scheduler)
    for output in outputs:
        gained[output.request_id] += len(output.tokens)
    assert gained == {2: 4, 3: 4}


def test_a_leader_aborted_in_the_step_that_would_begin_its_siblings() -> None:
    scheduler = make(budget=16)
    scheduler.submit(group(1, 6, choices=2))
    plan = scheduler.schedule()
    scheduler.abort(1)
    assert scheduler.update(plan, SamplerOutput({1: [5], 2: [6]})) == []
    plan, outputs = step(scheduler)
    assert shape(plan) == [(2, 0, 6)]
    assert [(output.request_id, output.tokens) for output in outputs] == [(2, [2])]


def test_a_preempted_leader_begins_its_siblings_when_it_comes_back() -> None:
    scheduler = make(blocks=8, sequences=1, budget=4)
    scheduler.submit(group(1, 10, choices=2))
    step(scheduler)
    scheduler.submit(request(9, 2, generate=1, priority=1))
    assert step(scheduler)[0].preempted == [1]
    ended = []
    while not scheduler.idle:
        ended += [output.request_id for output in step(scheduler)[1] if output.finish]
    assert ended == [1, 2]


def test_a_group_counts_as_many_in_the_queue_and_expires_as_one() -> None:
    clock = Clock()
    scheduler = make(sequences=1, waiting=3, clock=clock)
    scheduler.submit(group(1, 4, choices=3, deadline=1.0))
    assert scheduler.num_waiting == 3
    with pytest.raises(QueueFull, match="3 requests"):
        scheduler.submit(group(11, 4, choices=2))
    scheduler.submit(group(21, 4, choices=1))
    clock.now = 2.0
    plan = scheduler.schedule()
    assert [number for number, _ in plan.expired] == [1]
    assert sorted(plan.ended) == [1, 2, 3]
    assert [one.id for one in scheduler.running] == [21]


def test_a_group_larger_than_the_queue_may_wait_for_itself() -> None:
    scheduler = make(sequences=1, waiting=0)
    scheduler.submit(group(1, 4, choices=5))
    with pytest.raises(QueueFull):
        scheduler.submit(request(9, 4))


def test_the_longest_choice_decides_whether_a_group_fits() -> None:
    scheduler = make(context=20)
    siblings = [Sibling(2, SamplingParams(max_tokens=11))]
    with pytest.raises(ContextLengthExceeded, match="requested 21 tokens"):
        scheduler.submit(Request(1, [1] * 10, SamplingParams(max_tokens=1), siblings=siblings))
