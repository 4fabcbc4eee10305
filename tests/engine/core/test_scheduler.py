from __future__ import annotations

import pytest

from engine.core.block_pool import BlockPool
from engine.core.logprobs import TokenLogprobs
from engine.core.plan import Plan, RequestOutput, SamplerOutput
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.errors import ContextLengthExceeded, DeadlineUnreachable, QueueFull

BLOCK = 4


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(
    *,
    blocks: int = 100,
    sequences: int = 8,
    budget: int = 16,
    context: int = 400,
    waiting: int = 100,
    clock: Clock | None = None,
    prefix_caching: bool = False,
    **options: object,
) -> Scheduler:
    return Scheduler(
        BlockPool(blocks),
        block_size=BLOCK,
        max_num_seqs=sequences,
        max_batched_tokens=budget,
        max_model_len=context,
        max_waiting=waiting,
        priority_ageing=10.0,
        clock=clock or Clock(),
        prefix_caching=prefix_caching,
        **options,
    )


def request(
    number: int,
    prompt: int,
    generate: int = 4,
    *,
    priority: int = 0,
    submitted: float = 0.0,
    deadline: float | None = None,
) -> Request:
    params = SamplingParams(max_tokens=generate)
    return Request(
        number, list(range(prompt)), params, priority=priority, submitted=submitted, deadline=deadline
    )


def step(scheduler: Scheduler, token: int = 1000) -> tuple[Plan, list[RequestOutput]]:
    plan = scheduler.schedule()
    sampled = {scheduled.request_id: [token] for scheduled in plan.requests if scheduled.sampling}
    return plan, scheduler.update(plan, SamplerOutput(sampled))


def shape(plan: Plan) -> list[tuple[int, int, int]]:
    """(request, start, tokens) of each work."""
    return [(scheduled.request_id, scheduled.start, len(scheduled.tokens)) for scheduled in plan.requests]


def test_a_long_prompt_is_computed_in_chunks_beside_one_that_decodes() -> None:
    scheduler = make(budget=16)
    scheduler.submit(request(1, 5))
    assert shape(step(scheduler)[0]) == [(1, 0, 5)]
    scheduler.submit(request(2, 40))
    plans = [step(scheduler)[0] for _ in range(3)]
    assert shape(plans[0]) == [(1, 5, 1), (2, 0, 15)]
    assert shape(plans[1]) == [(1, 6, 1), (2, 15, 15)]
    assert shape(plans[2]) == [(1, 7, 1), (2, 30, 10)]
    # A token is drawn only after the last chunk.
    assert [plan.requests[1].sampling is not None for plan in plans] == [False, False, True]


def test_a_request_that_has_much_to_catch_up_leaves_a_token_for_everyone_behind_it() -> None:
    scheduler = make(budget=16)
    for number in (1, 2, 3):
        scheduler.submit(request(number, 3, generate=50))
    plan = scheduler.schedule()
    scheduler.update(plan, SamplerOutput({1: [7] * 30, 2: [7], 3: [7]}))
    assert shape(scheduler.schedule()) == [(1, 3, 14), (2, 3, 1), (3, 3, 1)]


def test_tokens_and_positions_join_up_and_the_block_table_covers_them() -> None:
    scheduler = make(budget=8)
    scheduler.submit(request(1, 21, generate=6))
    seen: list[int] = []
    while not scheduler.idle:
        plan, _ = step(scheduler, token=77)
        (scheduled,) = plan.requests
        assert scheduled.start == len(seen)
        seen += scheduled.tokens
        assert len(scheduled.blocks) * BLOCK >= scheduled.end
    # The last token drawn is never computed.
    assert seen == [*range(21), *[77] * 5]


def test_progress_tells_how_a_request_ended() -> None:
    scheduler = make()
    stops = SamplingParams(max_tokens=5, stop_token_ids=frozenset({9}))
    scheduler.submit(Request(1, [1], stops))
    scheduler.submit(request(2, 1, generate=2))
    assert step(scheduler, 3)[1] == [RequestOutput(1, [3], None), RequestOutput(2, [3], None)]
    assert step(scheduler, 9)[1] == [RequestOutput(1, [9], "stop"), RequestOutput(2, [9], "length")]
    assert scheduler.idle
    assert scheduler.pool.used == 0


def test_several_tokens_a_step_are_cut_where_the_request_ends() -> None:
    scheduler = make()
    scheduler.submit(request(1, 3, generate=2))
    plan = scheduler.schedule()
    assert scheduler.update(plan, SamplerOutput({1: [5, 6, 7]})) == [RequestOutput(1, [5, 6], "length")]


def test_the_newest_gives_way_and_starts_again_with_what_it_had_generated() -> None:
    scheduler = make(blocks=6, budget=64)
    scheduler.submit(request(1, 8, generate=16))
    step(scheduler)
    scheduler.submit(request(2, 8, generate=8))
    preempted: list[int] = []
    again = None
    while not scheduler.idle:
        plan, _ = step(scheduler)
        scheduler.check_integrity()
        preempted += plan.preempted
        if preempted and again is None:
            again = next((scheduled for scheduled in plan.requests if scheduled.request_id == 2), None)
    assert set(preempted) == {2}
    assert again is not None
    assert again.start == 0
    assert again.tokens[:8] == list(range(8))
    assert set(again.tokens[8:]) == {1000}


def test_an_admitted_request_is_reported_once_even_if_preempted() -> None:
    scheduler = make(blocks=6, budget=64)
    for number in (1, 2):
        scheduler.submit(request(number, 8, generate=12))
    admitted: list[int] = []
    preempted: list[int] = []
    while not scheduler.idle:
        plan, _ = step(scheduler)
        admitted += plan.admitted
        preempted += plan.preempted
    assert admitted == [1, 2]
    assert preempted


def test_what_can_never_fit_is_refused_at_once() -> None:
    scheduler = make(context=32)
    with pytest.raises(ContextLengthExceeded, match=r"length is 32 tokens.*requested 33 tokens"):
        scheduler.submit(request(1, 29, generate=4))
    scheduler.submit(request(2, 28, generate=4))
    scheduler = make(blocks=5, context=400)
    with pytest.raises(ContextLengthExceeded):
        scheduler.submit(request(1, 20, generate=2))
    scheduler.submit(request(2, 20, generate=1))
    for _ in range(2):
        step(scheduler)
    assert scheduler.idle


def test_the_queue_is_bounded_beyond_the_free_slots() -> None:
    scheduler = make(sequences=2, waiting=1)
    for number in range(3):
        scheduler.submit(request(number, 3))
    with pytest.raises(QueueFull):
        scheduler.submit(request(3, 3))
    step(scheduler)
    assert [len(scheduler.running), len(scheduler.waiting)] == [2, 1]
    with pytest.raises(QueueFull):
        scheduler.submit(request(4, 3))
    scheduler.abort(0)
    scheduler.submit(request(5, 3))


def test_a_budget_too_small_for_the_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="one token of every"):
        make(sequences=9, budget=8)


def test_an_aborted_request_leaves_nothing_behind() -> None:
    scheduler = make(sequences=1)
    for number in (1, 2):
        scheduler.submit(request(number, 10))
    step(scheduler)
    assert scheduler.abort(2)
    assert scheduler.abort(1)
    assert not scheduler.abort(1)
    assert scheduler.idle
    scheduler.check_integrity()
    assert scheduler.pool.used == 0


def test_a_request_aborted_during_its_step_is_passed_over() -> None:
    scheduler = make()
    scheduler.submit(request(1, 3))
    plan = scheduler.schedule()
    scheduler.abort(1)
    assert scheduler.update(plan, SamplerOutput({1: [5]})) == []


def test_logprobs_go_with_their_tokens_as_far_as_these_count() -> None:
    scheduler = make()
    for number in (1, 2):
        scheduler.submit(request(number, 3, generate=1))
    reported = [TokenLogprobs(token, -0.5, []) for token in (7, 8)]
    outputs = scheduler.update(scheduler.schedule(), SamplerOutput({1: [7, 8], 2: [9]}, {1: reported}))
    assert outputs == [RequestOutput(1, [7], "length", reported[:1]), RequestOutput(2, [9], "length", None)]


def order(scheduler: Scheduler) -> list[int]:
    """The requests in the order in which they are admitted."""
    admitted: list[int] = []
    for _ in range(1000):
        if scheduler.idle:
            return admitted
        admitted += step(scheduler)[0].admitted
        scheduler.check_integrity()
    raise AssertionError("requests hang")


def test_the_highest_priority_goes_first_and_equals_come_in_turn() -> None:
    scheduler = make(sequences=1)
    for number, priority in enumerate([0, 2, 1, 2, -1, 0]):
        scheduler.submit(request(number, 3, priority=priority))
    assert scheduler.waiting_by_priority == {0: 2, 2: 2, 1: 1, -1: 1}
    assert order(scheduler) == [1, 3, 2, 0, 5, 4]
    assert scheduler.waiting_by_priority == {}


def test_ten_seconds_of_waiting_are_worth_one_of_priority() -> None:
    scheduler = make(sequences=1)
    for number, (priority, submitted) in enumerate([(0, 0.0), (1, 9.0), (1, 11.0), (3, 31.0), (3, 29.0)]):
        scheduler.submit(request(number, 3, priority=priority, submitted=submitted))
    assert order(scheduler) == [1, 4, 0, 2, 3]


def test_a_stream_of_the_favoured_starves_nobody() -> None:
    """One request a second, one new favourite a second: the plain one still has its turn after some 30 s."""
    clock = Clock()
    scheduler = make(sequences=1, clock=clock)
    scheduler.submit(request(0, 3, generate=1))
    for number in range(1, 60):
        scheduler.submit(request(number, 3, generate=1, priority=3, submitted=clock.now))
        clock.now += 1
        if 0 in step(scheduler)[0].admitted:
            break
    assert 30 <= clock.now <= 32


def test_the_lowest_priority_gives_way_first_and_the_newest_among_equals() -> None:
    scheduler = make(blocks=12, budget=64, sequences=4)
    for number, priority in ((1, 0), (2, 5), (3, 0), (4, 1)):
        scheduler.submit(request(number, 8, generate=24, priority=priority, submitted=float(number)))
    gave_way: list[int] = []
    while not scheduler.idle:
        plan, outputs = step(scheduler)
        scheduler.check_integrity()
        gave_way += plan.preempted
        if any(output.finish for output in outputs):
            break
    assert gave_way[:3] == [3, 1, 4]


def test_the_favoured_is_admitted_before_one_that_was_preempted() -> None:
    scheduler = make(blocks=6, budget=64, sequences=2)
    for number in (1, 2):
        scheduler.submit(request(number, 8, generate=14))
    while not step(scheduler)[0].preempted:
        pass
    scheduler.submit(request(3, 8, generate=2, priority=1))
    assert [one.id for one in scheduler.waiting] == [3, 2]


def slow(scheduler: Scheduler, *, length: int = 10) -> None:
    """A step takes 100 ms and an answer ``length`` tokens, and requests took what was estimated."""
    for _ in range(5):
        scheduler.latency.observe(0.1, prefill_tokens=0, decode_tokens=1)
        scheduler.latency.finish(length)
    for _ in range(20):
        for ahead in range(8):
            scheduler.latency.compare(scheduler.latency.kind("", ahead), 1.0, 1.0)


def test_a_deadline_that_speed_does_not_allow_is_refused_with_the_figures() -> None:
    clock = Clock()
    scheduler = make(clock=clock)
    slow(scheduler)
    clock.now = 100.0
    scheduler.submit(request(1, 4, generate=10, deadline=101.0))
    with pytest.raises(DeadlineUnreachable) as found:
        scheduler.submit(request(2, 4, generate=10, deadline=100.5))
    assert found.value.needed == pytest.approx(0.9)
    assert found.value.allowed == pytest.approx(0.5)
    scheduler.submit(request(3, 4, generate=5, deadline=100.5))
    with pytest.raises(DeadlineUnreachable, match="past"):
        make(clock=clock).submit(request(4, 4, deadline=100.0))
    assert len(scheduler.waiting) == 2


def test_an_answer_that_may_be_short_is_not_refused_for_the_usual_length() -> None:
    """Of those before it one in ten took a tenth of what was estimated: nothing says that this one does not."""
    scheduler = make(clock=Clock())
    slow(scheduler)
    for number in range(100):
        scheduler.latency.compare(scheduler.latency.kind("", 0), 1.0, 0.1 if number % 10 == 0 else 1.0)
    scheduler.submit(request(1, 4, generate=10, deadline=0.2))
    with pytest.raises(DeadlineUnreachable):
        scheduler.submit(request(2, 4, generate=10, deadline=0.05))


def test_what_requests_took_is_learnt_as_they_end() -> None:
    """All take two seconds and a half, whatever is estimated: from the twentieth on this is known."""
    clock = Clock()
    scheduler = make(clock=clock, budget=64)
    for number in range(20):
        scheduler.latency.observe(0.1, prefill_tokens=0, decode_tokens=1)
        scheduler.submit(request(number, 4, generate=5, submitted=clock.now, deadline=clock.now + 1.0))
        for _ in range(5):
            clock.now += 0.5
            step(scheduler)
    with pytest.raises(DeadlineUnreachable) as found:
        scheduler.submit(request(100, 4, generate=5, submitted=clock.now, deadline=clock.now + 2.4))
    assert found.value.needed == pytest.approx(2.5)
    scheduler.submit(request(101, 4, generate=5, submitted=clock.now, deadline=clock.now + 2.6))


def test_those_ahead_count_and_those_behind_do_not() -> None:
    """One slot, and a second an answer: three ahead are three seconds, and the one that runs is a fourth."""
    scheduler = make(sequences=1, clock=Clock())
    slow(scheduler)
    for number in range(4):
        scheduler.submit(request(number, 4, generate=10))
    step(scheduler)
    with pytest.raises(DeadlineUnreachable):
        scheduler.submit(request(10, 4, generate=10, deadline=4.8))
    scheduler.submit(request(11, 4, generate=10, deadline=5.0))
    scheduler.submit(request(12, 4, generate=10, priority=1, deadline=2.0))


def test_a_deadline_that_passes_ends_the_wait_but_nothing_that_runs() -> None:
    clock = Clock()
    scheduler = make(sequences=1, clock=clock)
    scheduler.submit(request(1, 4, generate=3, deadline=1.0))
    scheduler.submit(request(2, 4, generate=3, deadline=1.0))
    scheduler.submit(request(3, 4, generate=3))
    assert step(scheduler)[0].expired == []
    clock.now = 1.0
    plan, _ = step(scheduler)
    assert [number for number, _ in plan.expired] == [2]
    assert order(scheduler) == [3]


def test_a_preempted_request_is_not_dropped_at_its_deadline() -> None:
    clock = Clock()
    scheduler = make(blocks=6, budget=64, sequences=2, clock=clock)
    for number in (1, 2):
        scheduler.submit(request(number, 8, generate=14, deadline=1.0))
    while not step(scheduler)[0].preempted:
        pass
    clock.now = 2.0
    ended = []
    while not scheduler.idle:
        plan, outputs = step(scheduler)
        assert plan.expired == []
        ended += [output.request_id for output in outputs if output.finish]
    assert ended == [1, 2]


def test_when_all_have_expired_there_is_nothing_to_do() -> None:
    clock = Clock()
    scheduler = make(clock=clock)
    scheduler.submit(request(1, 4, deadline=1.0))
    clock.now = 1.5
    plan = scheduler.schedule()
    assert (plan.requests, [number for number, _ in plan.expired]) == ([], [1])
    assert scheduler.idle


def test_far_deadlines_of_those_that_are_done_do_not_pile_up() -> None:
    scheduler = make()
    for number in range(2000):
        scheduler.submit(request(number, 1, deadline=1e9))
        scheduler.abort(number)
    assert len(scheduler.intake.deadlines) < 100
