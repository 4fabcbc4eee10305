"""Who waits for whom, and how long at most."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.plan import SamplerOutput
from engine.core.request import Request, Sibling
from engine.core.sampling_params import SamplingParams
from engine.errors import DeadlineUnreachable, QueueFull
from tests.engine.core.test_scheduler import BLOCK, Clock, make, request, shape, slow, step
from tests.examples import examples

AGEING = 10.0


def test_a_step_without_prompts_computes_them_after_all_if_everyone_who_decodes_gives_way() -> None:
    scheduler = make(blocks=12, budget=64)
    scheduler.submit(request(1, 4, generate=30, submitted=1.0))
    step(scheduler)
    scheduler.prefill_chunk = 2
    scheduler.submit(request(2, 36, generate=4))
    while scheduler.pool.available:
        step(scheduler)
    scheduler.prefill_chunk = 0
    while not (plan := step(scheduler)[0]).preempted:
        assert [scheduled.request_id for scheduled in plan.requests] == [1]
    assert plan.preempted == [1]
    assert shape(plan) == [(2, 10, 26)]
    scheduler.check_integrity()


@settings(max_examples=examples(40))
@given(
    classes=st.integers(1, 4),
    a_second=st.integers(1, 3),
    slots=st.integers(1, 4),
    prompt=st.integers(1, 40),
    chunk=st.none() | st.integers(1, 8),
)
def test_ageing_bounds_the_wait_under_a_stream_of_higher_classes(
    classes: int, a_second: int, slots: int, prompt: int, chunk: int | None
) -> None:
    """More of them than can ever be served. The bound: whoever came within ``classes * ageing`` seconds after it may go
    before it, each for at most the steps that it takes alone, and nobody else; not even if it needs all blocks."""
    clock = Clock()
    scheduler = make(
        blocks=12,
        sequences=slots,
        budget=16,
        waiting=10_000,
        clock=clock,
        prefix_caching=True,
        prefill_chunk=chunk,
    )
    steps_each, ahead = 5, 0
    scheduler.submit(request(0, prompt, generate=8))
    for number in range(1, 10_000):
        for place in range(a_second):
            new = request(a_second * number + place, 8, generate=4, priority=classes, submitted=clock.now)
            scheduler.submit(new)
            ahead += clock.now <= classes * AGEING
        _, outputs = step(scheduler)
        scheduler.check_integrity()
        clock.now += 1.0
        if any(output.request_id == 0 and output.finish for output in outputs):
            break
        bound = classes * AGEING + steps_each * ahead + prompt + 8
        assert clock.now <= bound
    assert clock.now <= classes * AGEING + steps_each * ahead + prompt + 8


@given(
    priorities=st.lists(st.integers(0, 3), min_size=2, max_size=8),
    blocks=st.integers(9, 16),
    caching=st.booleans(),
    max_drafts=st.integers(0, 3),
)
def test_of_those_that_came_together_the_lowest_class_gives_way_first_and_the_newest_within_it(
    priorities: list[int], blocks: int, caching: bool, max_drafts: int
) -> None:
    scheduler = make(
        blocks=blocks, budget=64, sequences=4, prefix_caching=caching, max_drafts=max_drafts, waiting=20
    )
    orders = {}
    for number, priority in enumerate(priorities):
        orders[number] = (priority, -number)
        scheduler.submit(
            Request(
                number,
                [number] * 7,
                SamplingParams(max_tokens=25),
                priority=priority,
                submitted=number * AGEING / 10,
            )
        )
    while not scheduler.idle:
        before = [one.id for one in scheduler.running]
        plan, _ = step(scheduler)
        left = [orders[number] for number in before if number not in plan.preempted]
        gave_way = [orders[number] for number in plan.preempted if number in before]
        assert gave_way == sorted(gave_way)
        assert not left or not gave_way or max(gave_way) < min(left)


@settings(max_examples=examples(60))
@given(
    prompts=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    chunks=st.lists(st.sampled_from([None, 0, 1, 3, 1000]), min_size=1, max_size=5),
    spare=st.integers(0, 4),
    max_drafts=st.integers(0, 3),
)
def test_prompts_however_long_stop_no_decode_for_a_single_step(
    prompts: list[int], chunks: list[int | None], spare: int, max_drafts: int
) -> None:
    """Blocks are plenty, but a step has hardly more tokens than there are slots."""
    decoding = 3
    slots = decoding + len(prompts)
    scheduler = make(blocks=400, sequences=slots, budget=slots + spare, max_drafts=max_drafts)
    for number in range(decoding):
        scheduler.submit(request(number, 1, generate=60))
    step(scheduler)
    for number, prompt in enumerate(prompts, decoding):
        scheduler.submit(request(number, prompt, priority=1))
    for turn in range(59):
        scheduler.prefill_chunk = chunks[turn % len(chunks)]
        plan, outputs = step(scheduler)
        assert {output.request_id for output in outputs} >= set(range(decoding))
        assert plan.tokens <= scheduler.max_batched_tokens
        if scheduler.prefill_chunk is not None:
            long = [scheduled for scheduled in plan.requests if scheduled.start + 1 < scheduled.prompt_length]
            assert sum(len(scheduled.tokens) for scheduled in long) <= scheduler.prefill_chunk


@pytest.mark.parametrize("weight", [2.0, 4.0, 8.0])
def test_a_heavy_prefix_is_kept_for_as_many_blocks_as_its_weight_says_and_no_longer(weight: float) -> None:
    """Blocks of weight 1 go before it until ``(weight - 1) * total`` were handed out, and soon after it goes itself."""
    total = 20
    scheduler = make(blocks=total, budget=64, prefix_caching=True)
    kept = [7] * (3 * BLOCK + 1)
    scheduler.submit(Request(0, kept, SamplingParams(max_tokens=1), weight=weight))
    step(scheduler)
    handed_out = 0
    lasted = None
    for number in range(1, 100 * total):
        if scheduler._tables.hit_tokens(Request(-1, kept, SamplingParams(max_tokens=1))) < 3 * BLOCK:
            lasted = handed_out
            break
        scheduler.submit(Request(number, [1000 + number] * (2 * BLOCK), SamplingParams(max_tokens=1)))
        step(scheduler)
        handed_out += 2
    assert lasted is not None
    assert (weight - 1) * total <= lasted <= weight * total + 4


@given(
    groups=st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=30),
    slots=st.integers(1, 4),
    waiting=st.integers(0, 6),
)
def test_as_many_choices_wait_as_there_are_places_unless_one_group_is_alone(
    groups: list[tuple[int, bool]], slots: int, waiting: int
) -> None:
    scheduler = make(sequences=slots, waiting=waiting)
    params = SamplingParams(max_tokens=2)
    number = 0
    for choices, steps in groups:
        siblings = [Sibling(number + i, params) for i in range(1, choices)]
        alone, before = scheduler.idle, scheduler.num_waiting
        free = slots - len(scheduler.running)
        try:
            scheduler.submit(Request(number, [1, 2, 3], params, siblings=siblings))
        except QueueFull:
            assert not alone
            assert before + choices > free + waiting
            assert scheduler.num_waiting == before
        else:
            assert alone or scheduler.num_waiting == before + choices <= free + waiting
        number += choices
        if steps:
            plan = scheduler.schedule()
            ids = [
                one
                for scheduled in plan.requests
                for one in (scheduled.request_id, *(s.id for s in scheduled.siblings))
            ]
            scheduler.update(plan, SamplerOutput({one: [5] for one in ids}))
            scheduler.check_integrity()


def test_an_heir_inherits_the_deadline_and_the_prompt_that_is_computed() -> None:
    clock = Clock()
    scheduler = make(sequences=1, clock=clock)
    params = SamplingParams(max_tokens=3)
    scheduler.submit(request(9, 4, generate=30))
    step(scheduler)
    scheduler.submit(
        Request(1, [1] * 6, params, deadline=5.0, siblings=[Sibling(2, params), Sibling(3, params)])
    )
    scheduler.abort(1)
    clock.now = 5.0
    plan, _ = step(scheduler)
    assert [number for number, _ in plan.expired] == [2]
    assert sorted(plan.ended) == [1, 2, 3]
    assert not scheduler.abort(2)
    assert not scheduler.abort(3)


def test_a_deadline_counts_the_prompt_less_what_is_cached() -> None:
    """A hundred tokens of prompts a second are measured, and ten steps."""
    clock = Clock()
    scheduler = make(budget=64, clock=clock, prefix_caching=True)
    scheduler.submit(request(1, 49, generate=1))
    step(scheduler)
    slow(scheduler, length=1)
    scheduler.latency.observe(1.0, prefill_tokens=100, decode_tokens=0)
    with pytest.raises(DeadlineUnreachable) as late:
        scheduler.submit(Request(2, [5] * 49, SamplingParams(max_tokens=1), deadline=0.4))
    assert late.value.needed == pytest.approx(0.49)
    scheduler.submit(request(3, 49, generate=1, deadline=0.4))
