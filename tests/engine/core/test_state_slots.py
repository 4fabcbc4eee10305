"""Slots of states alone: who has which, and what is copied before a plan."""

from __future__ import annotations

import pytest

from engine.core.block_pool import BlockPool
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
