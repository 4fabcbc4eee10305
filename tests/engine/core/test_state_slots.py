"""Slots of states alone: who has which, and what is copied before a plan."""

from __future__ import annotations

import pytest

from engine.core.block_pool import BlockPool
from engine.core.plan import SamplerOutput
from engine.core.request import Request, Sibling
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.core.state_slots import NO_SLOT, StateSlots


def test_a_slot_is_one_requests_until_it_is_given_back() -> None:
    slots = StateSlots(2)
    first, second = slots.take(), slots.take()
    assert {first, second} == {0, 1} and slots.free == 0
    with pytest.raises(IndexError):
        slots.take()
    slots.release(first)
    slots.release(NO_SLOT)
    assert slots.free == 1 and slots.take() == first


def test_copies_are_told_once_and_in_order() -> None:
    slots = StateSlots(3)
    leader = slots.take()
    forks = [slots.fork(leader), slots.fork(leader)]
    assert slots.fork(leader) == NO_SLOT
    # What is given back is copied from, and to, all the same.
    slots.release(leader)
    slots.release(forks[0])
    assert slots.take_copies() == [(leader, forks[0]), (leader, forks[1])]
    assert slots.take_copies() == []


def test_a_slot_that_is_lost_or_held_twice_is_found() -> None:
    slots = StateSlots(3)
    held = [slots.take(), slots.take()]
    slots.check_integrity([*held, NO_SLOT])
    for wrong in (held[:1], [held[0], held[0]], [*held, held[0]]):
        with pytest.raises(AssertionError, match="state slots"):
            slots.check_integrity(wrong)


@pytest.mark.parametrize("options", [{"prefix_caching": True}, {"prefix_caching": False, "max_drafts": 2}])
def test_nothing_that_takes_a_state_back_goes_with_it(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="taken back"):
        Scheduler(
            BlockPool(10),
            block_size=4,
            max_num_seqs=2,
            max_batched_tokens=8,
            max_model_len=20,
            max_waiting=2,
            stateful=True,
            **options,
        )


def stateful(sequences: int = 3) -> Scheduler:
    return Scheduler(
        BlockPool(20),
        block_size=4,
        max_num_seqs=sequences,
        max_batched_tokens=4,
        max_model_len=40,
        max_waiting=4,
        prefix_caching=False,
        overlapping=True,
        stateful=True,
    )


def request(siblings: int = 0) -> Request:
    params = SamplingParams(max_tokens=5)
    return Request(1, list(range(10)), params, siblings=[Sibling(2 + i, params) for i in range(siblings)])


@pytest.mark.parametrize("ahead", [False, True])
def test_who_takes_an_aborted_leaders_place_starts_again(ahead: bool) -> None:
    """A step has added to the state what does not count, as it was another's."""
    scheduler = stateful()
    scheduler.submit(request(siblings=1))
    plan = scheduler.schedule()
    if ahead:
        scheduler.advance(plan)
    scheduler.abort(1)
    if ahead:
        assert not scheduler.schedule().requests
        scheduler.commit(plan, SamplerOutput())
    else:
        scheduler.update(plan, SamplerOutput())
    scheduler.check_integrity()
    (scheduled,) = scheduler.schedule().requests
    assert (scheduled.request_id, scheduled.start) == (2, 0)
    scheduler.abort(2)
    assert scheduler._states is not None and scheduler._states.free == 3


@pytest.mark.parametrize("submitted", [False, True])
def test_a_step_that_came_to_nothing_is_computed_from_the_beginning(submitted: bool) -> None:
    scheduler = stateful()
    scheduler.submit(request())
    first = scheduler.schedule()
    scheduler.update(first, SamplerOutput())
    plan = scheduler.schedule()
    assert plan.requests[0].start == 4
    if submitted:
        scheduler.advance(plan)
        scheduler.retract()
    else:
        scheduler.abandon(plan)
    scheduler.check_integrity()
    assert scheduler.schedule().requests[0].start == 0


def test_a_slot_that_a_step_in_flight_writes_to_is_not_given_away() -> None:
    scheduler = stateful(sequences=1)
    params = SamplingParams(max_tokens=5, stop_token_ids=frozenset({7}))
    for number in (1, 2):
        scheduler.submit(Request(number, [3, 4], params))
    first = scheduler.schedule()
    scheduler.advance(first)
    ahead = scheduler.schedule()
    scheduler.advance(ahead)
    assert [one.request_id for one in (*first.requests, *ahead.requests)] == [1, 1]
    (output,) = scheduler.commit(first, SamplerOutput({1: [7]}))
    assert output.finish == "stop" and not scheduler.running
    assert not scheduler.schedule().requests
    scheduler.commit(ahead, SamplerOutput({1: [5]}))
    scheduler.check_integrity()
    assert [one.request_id for one in scheduler.schedule().requests] == [2]
