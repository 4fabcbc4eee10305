"""Prompts that are kept for a time: for how long, against whom, and at whose expense."""

from __future__ import annotations

import pytest

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from tests.engine.core.test_scheduler import Clock, make, step

ONE = SamplingParams(max_tokens=1)


def ask(scheduler: Scheduler, number: int, text: int, length: int = 17, **options: object) -> int:
    """Tokens of the prompt that were cached. Prompts of different ``text`` have nothing in common."""
    prompt = [1000 * text + place for place in range(length)]
    scheduler.submit(Request(number, prompt, ONE, **options))
    found = 0
    while not scheduler.idle:
        plan, _ = step(scheduler)
        found += plan.prefix_hits
        scheduler.check_integrity()
    return found


def test_a_pinned_prompt_outlives_those_that_come_after_it_until_its_time_is_over() -> None:
    clock = Clock()
    scheduler = make(blocks=20, budget=64, prefix_caching=True, clock=clock, pinned_share=0.5)
    ask(scheduler, 1, 1, pin=60.0)
    ask(scheduler, 2, 2)
    for number in range(3, 30):
        ask(scheduler, number, number)
    assert len(scheduler.pins or ()) == 4
    assert ask(scheduler, 30, 2) == 0 and ask(scheduler, 31, 1) == 16
    clock.now = 61.0
    for number in range(32, 50):
        ask(scheduler, number, number)
    assert ask(scheduler, 50, 1) == 0
    assert len(scheduler.pins or ()) == 0


def test_a_request_that_needs_all_blocks_gets_them() -> None:
    scheduler = make(blocks=20, budget=128, context=80, prefix_caching=True, pinned_share=1.0)
    ask(scheduler, 1, 1, length=41, pin=1e6)
    assert ask(scheduler, 2, 2, length=79) == 0
    assert ask(scheduler, 3, 1, length=41) == 0


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_no_more_than_the_share_is_pinned(share: float) -> None:
    scheduler = make(blocks=40, budget=128, prefix_caching=True, pinned_share=share)
    for number in range(1, 20):
        ask(scheduler, number, number, length=33, pin=1e6)
        assert len(scheduler.pins or ()) <= 40 * share
    assert len(scheduler.pins or ()) >= 40 * share - 8


def test_whoever_has_most_of_the_share_gives_way() -> None:
    scheduler = make(blocks=60, budget=64, prefix_caching=True, pinned_share=0.2)
    ask(scheduler, 1, 1, tenant="small", pin=1e6)
    for number in range(2, 40):
        ask(scheduler, number, number, tenant="large", pin=1e6)
    # It has one pin of the three for which there is room, and keeps it; the large one's newest are there.
    assert ask(scheduler, 50, 1, tenant="small") == 16
    assert ask(scheduler, 51, 39, tenant="large") == 16


def test_a_pin_is_renewed_and_never_shortened() -> None:
    clock = Clock()
    scheduler = make(blocks=20, budget=64, prefix_caching=True, clock=clock, pinned_share=0.5)
    ask(scheduler, 1, 1, pin=100.0)
    ask(scheduler, 2, 1, pin=10.0)
    clock.now = 50.0
    ask(scheduler, 3, 2)
    assert len(scheduler.pins or ()) == 4
    ask(scheduler, 4, 1, pin=100.0)
    clock.now = 120.0
    ask(scheduler, 5, 3)
    assert len(scheduler.pins or ()) == 4
    clock.now = 151.0
    ask(scheduler, 6, 3)
    assert len(scheduler.pins or ()) == 0
