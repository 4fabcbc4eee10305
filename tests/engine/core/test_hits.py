"""The scheduler with its prefix cache."""

from __future__ import annotations

import pytest

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import DeadlineUnreachable
from tests.engine.core.test_scheduler import BLOCK, Clock, make, order, request, shape, slow, step


def run(scheduler) -> None:
    for _ in range(1000):
        if scheduler.idle:
            return
        step(scheduler)
        scheduler.check_integrity()
    raise AssertionError("requests hang")


def test_the_second_request_computes_only_what_differs() -> None:
    scheduler = make(budget=64, prefix_caching=True)
    scheduler.submit(request(1, 20, generate=1))
    plan, _ = step(scheduler)
    assert (shape(plan), plan.hit_tokens) == ([(1, 0, 20)], 0)
    scheduler.submit(Request(2, [*range(17), 7, 7, 7], SamplingParams(max_tokens=1)))
    plan, _ = step(scheduler)
    assert (shape(plan), plan.hit_tokens) == ([(2, 16, 4)], 16)
    scheduler.submit(request(3, 20, generate=1))
    plan, _ = step(scheduler)
    # All five blocks are there, but the last token has to be computed: into a copy of the fifth.
    assert (shape(plan), plan.hit_tokens, len(plan.copies)) == ([(3, 19, 1)], 19, 1)
    assert (scheduler.pool.used, scheduler.pool.cached) == (0, 6)


def test_blocks_are_shared_with_one_that_runs_as_soon_as_they_are_computed() -> None:
    scheduler = make(budget=8, prefix_caching=True)
    scheduler.submit(request(1, 20, generate=9))
    step(scheduler)
    scheduler.submit(request(2, 20, generate=9))
    for _ in range(2):
        step(scheduler)
    assert [one.id for one in scheduler.running] == [1, 2]
    first, second = scheduler.running
    # Four were there, and of the fifth, which both computed, one was given back.
    assert second.blocks == first.blocks
    assert scheduler.pool.used == 5
    scheduler.check_integrity()


def test_answers_are_found_again_by_the_next_turn() -> None:
    scheduler = make(budget=64, prefix_caching=True)
    scheduler.submit(request(1, 6, generate=7))
    run(scheduler)
    # The last token drawn was never computed: 12 of 13 are there.
    scheduler.submit(Request(2, [*range(6), *[1000] * 7, 5], SamplingParams(max_tokens=1)))
    assert shape(step(scheduler)[0]) == [(2, 12, 2)]


def test_a_preempted_request_comes_back_to_what_it_had_computed() -> None:
    scheduler = make(blocks=8, budget=64, sequences=1, prefix_caching=True)
    scheduler.submit(request(1, 12, generate=4))
    step(scheduler)
    scheduler.submit(Request(2, [50, 51], SamplingParams(max_tokens=1), priority=1))
    plan, _ = step(scheduler)
    assert (plan.preempted, shape(plan)) == ([1], [(2, 0, 2)])
    plan, _ = step(scheduler)
    assert (shape(plan), plan.hit_tokens, plan.admitted) == ([(1, 12, 1)], 12, [])


def test_nothing_is_kept_when_caching_is_off() -> None:
    scheduler = make(budget=64, prefix_caching=False)
    for number in (1, 2):
        scheduler.submit(request(number, 20, generate=1))
        plan, _ = step(scheduler)
        assert plan.hit_tokens == 0
    assert scheduler.pool.free == scheduler.pool.total
    assert scheduler.prefixes is None


def test_hits_held_by_others_cost_no_blocks_and_let_a_request_in() -> None:
    for prefix_caching, running in ((True, [1, 2]), (False, [1])):
        scheduler = make(blocks=9, budget=64, prefix_caching=prefix_caching)
        for number in (1, 2):
            scheduler.submit(request(number, 21, generate=3))
            step(scheduler)
        assert [one.id for one in scheduler.running] == running


def test_cached_hits_are_not_counted_as_available_twice() -> None:
    """Six blocks, five of them cached by the first: the second takes these five and no more than one besides."""
    scheduler = make(blocks=6, budget=64, prefix_caching=True)
    scheduler.submit(request(1, 20, generate=1))
    step(scheduler)
    scheduler.submit(request(2, 20, generate=5))
    scheduler.submit(Request(3, [99] * 5, SamplingParams(max_tokens=1)))
    plan, _ = step(scheduler)
    assert plan.admitted == [2]
    scheduler.check_integrity()
    assert order(scheduler) == [3]


def test_the_cache_outlives_by_weight() -> None:
    scheduler = make(blocks=8, budget=64, prefix_caching=True)
    for number, weight in ((1, 8.0), (2, 1.0)):
        prompt = [number] * 13
        scheduler.submit(Request(number, prompt, SamplingParams(max_tokens=1), weight=weight))
        run(scheduler)
    scheduler.submit(Request(3, [3] * 13, SamplingParams(max_tokens=1)))
    run(scheduler)
    hits = {}
    for number in (2, 1):
        scheduler.submit(Request(10 + number, [number] * 13, SamplingParams(max_tokens=1)))
        hits[number] = scheduler.schedule().hit_tokens
        scheduler.abort(10 + number)
    assert hits[1] == 12
    assert hits[2] < 12


def test_a_deadline_counts_only_what_is_to_be_computed() -> None:
    clock = Clock()
    scheduler = make(budget=64, clock=clock, prefix_caching=True)
    scheduler.submit(request(1, 41, generate=1))
    run(scheduler)
    slow(scheduler, length=1)
    for _ in range(5):
        scheduler.latency.observe(1.0, prefill_tokens=10, decode_tokens=0)
    with pytest.raises(DeadlineUnreachable):
        scheduler.submit(Request(2, [9] * 41, SamplingParams(max_tokens=1), deadline=1.0))
    scheduler.submit(request(3, 41, generate=1, deadline=1.0))


def test_an_adapter_of_the_same_name_starts_anew() -> None:
    scheduler = make(budget=64, prefix_caching=True)
    hits = []
    for number in range(1, 4):
        if number == 3:
            scheduler.forget_adapter("a")
        scheduler.submit(Request(number, [1] * 9, SamplingParams(max_tokens=1), adapter="a"))
        hits.append(step(scheduler)[0].hit_tokens)
    assert hits == [0, 2 * BLOCK, 0]


def test_the_digest_tells_of_prompts_and_of_what_they_share() -> None:
    scheduler = make(budget=64, prefix_caching=True)
    for number in (1, 2):
        scheduler.submit(Request(number, [*range(8), *[number] * 4, 0], SamplingParams(max_tokens=1)))
        run(scheduler)
    assert scheduler.prefixes is not None
    assert [tokens for _, tokens in scheduler.prefixes.digest(10)] == [12, 8, 12]


def test_of_a_block_that_is_half_the_same_a_copy_is_written_on() -> None:
    scheduler = make(budget=64, prefix_caching=True)
    one = SamplingParams(max_tokens=1)
    scheduler.submit(Request(1, [*range(12), 5], one))
    step(scheduler)
    asked = {
        4: ([*range(12)], 11),  # all but the last token, which is computed
        2: ([*range(10), 7, 7, 7], 10),  # half of the third block
        3: ([*range(9), 7, 7, 7, 7], 8),  # less
        5: ([*range(7), 9], 7),  # of a block in the middle
        6: ([0, 1, 7, 7, 7], 2),
        7: ([7, 1, 2, 3, 4], 0),
    }
    for number, (prompt, known) in asked.items():
        scheduler.submit(Request(number, prompt, one))
        plan, _ = step(scheduler)
        assert shape(plan) == [(number, known, len(prompt) - known)]
        assert plan.hit_tokens == known and len(plan.copies) == (known % BLOCK > 0)
        scheduler.check_integrity()


def test_no_copy_is_made_of_what_is_of_another_salt_or_must_be_scored() -> None:
    scheduler = make(budget=64, prefix_caching=True)
    params = SamplingParams(max_tokens=1)
    scheduler.submit(Request(1, list(range(9)), params, salt=b"a", shared=2))
    step(scheduler)
    for number, salt, known in ((2, b"b", 0), (3, b"", 0), (4, b"a", 7)):
        scheduler.submit(Request(number, [*range(7), 60 + number], params, salt=salt, shared=2))
        assert shape(step(scheduler)[0]) == [(number, known, 8 - known)]
    scored = SamplingParams(max_tokens=1, prompt_logprobs=0)
    scheduler.submit(Request(5, [*range(7), 50], scored, salt=b"a", shared=2))
    plan = scheduler.schedule()
    assert shape(plan) == [(5, 0, 8)] and not plan.copies
