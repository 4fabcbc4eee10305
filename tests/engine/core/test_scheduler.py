from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, Progress
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.errors import ContextLengthExceeded, QueueFull

BLOCK = 4


def make(
    *, blocks: int = 100, sequences: int = 8, budget: int = 16, context: int = 400, waiting: int = 100
) -> Scheduler:
    return Scheduler(
        BlockPool(blocks),
        block_size=BLOCK,
        max_sequences=sequences,
        max_tokens_per_step=budget,
        max_model_len=context,
        max_waiting=waiting,
    )


def request(number: int, prompt: int, generate: int = 4) -> Request:
    return Request(number, list(range(prompt)), SamplingParams(max_tokens=generate))


def step(scheduler: Scheduler, token: int = 1000) -> tuple[Plan, list[Progress]]:
    plan = scheduler.schedule()
    drawn = {work.request_id: [token] for work in plan.work if work.sampling}
    return plan, scheduler.update(plan, drawn)


def shape(plan: Plan) -> list[tuple[int, int, int]]:
    """(request, start, tokens) of each work."""
    return [(work.request_id, work.start, len(work.tokens)) for work in plan.work]


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
    assert [plan.work[1].sampling is not None for plan in plans] == [False, False, True]


def test_a_request_that_has_much_to_catch_up_leaves_a_token_for_everyone_behind_it() -> None:
    scheduler = make(budget=16)
    for number in (1, 2, 3):
        scheduler.submit(request(number, 3, generate=50))
    plan = scheduler.schedule()
    scheduler.update(plan, {1: [7] * 30, 2: [7], 3: [7]})
    assert shape(scheduler.schedule()) == [(1, 3, 14), (2, 3, 1), (3, 3, 1)]


def test_tokens_and_positions_join_up_and_the_block_table_covers_them() -> None:
    scheduler = make(budget=8)
    scheduler.submit(request(1, 21, generate=6))
    seen: list[int] = []
    while not scheduler.idle:
        plan, _ = step(scheduler, token=77)
        (work,) = plan.work
        assert work.start == len(seen)
        seen += work.tokens
        assert len(work.blocks) * BLOCK >= work.end
    # The last token drawn is never computed.
    assert seen == [*range(21), *[77] * 5]


def test_progress_tells_how_a_request_ended() -> None:
    scheduler = make()
    stops = SamplingParams(max_tokens=5, stop_token_ids=frozenset({9}))
    scheduler.submit(Request(1, [1], stops))
    scheduler.submit(request(2, 1, generate=2))
    assert step(scheduler, 3)[1] == [Progress(1, [3], None), Progress(2, [3], None)]
    assert step(scheduler, 9)[1] == [Progress(1, [9], "stop"), Progress(2, [9], "length")]
    assert scheduler.idle
    assert scheduler.pool.used == 0


def test_several_tokens_a_step_are_cut_where_the_request_ends() -> None:
    scheduler = make()
    scheduler.submit(request(1, 3, generate=2))
    plan = scheduler.schedule()
    assert scheduler.update(plan, {1: [5, 6, 7]}) == [Progress(1, [5, 6], "length")]


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
            again = next((work for work in plan.work if work.request_id == 2), None)
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
    with pytest.raises(ContextLengthExceeded, match=r"32 tokens at most.*33 were asked for"):
        scheduler.submit(request(1, 29, generate=4))
    scheduler.submit(request(2, 28, generate=4))
    scheduler = make(blocks=5, context=400)
    with pytest.raises(ContextLengthExceeded):
        scheduler.submit(request(1, 20, generate=2))
    scheduler.submit(request(2, 20, generate=1))
    for _ in range(2):
        step(scheduler)
    assert scheduler.idle


def test_the_queue_is_bounded_beyond_the_free_seats() -> None:
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
    assert scheduler.update(plan, {1: [5]}) == []


class SchedulerMachine(RuleBasedStateMachine):
    """Submit, step and abort in any order on tiny pools: nothing is lost, nothing computed twice or out of order."""

    @initialize(
        blocks=st.integers(2, 12),
        sequences=st.integers(1, 5),
        extra=st.integers(0, 12),
        waiting=st.integers(0, 6),
    )
    def start(self, blocks: int, sequences: int, extra: int, waiting: int) -> None:
        self.scheduler = make(
            blocks=blocks, sequences=sequences, budget=sequences + extra, context=60, waiting=waiting
        )
        self.open: dict[int, Request] = {}
        self.gained: dict[int, int] = {}
        self.cached: dict[int, list[int]] = {}
        self.number = 0

    @rule(prompt=st.integers(1, 30), generate=st.integers(1, 30))
    def submit(self, prompt: int, generate: int) -> None:
        self.number += 1
        new = request(self.number, prompt, generate)
        fits = prompt + generate <= 60 and -(-new.longest // BLOCK) <= self.scheduler.pool.total
        try:
            self.scheduler.submit(new)
        except ContextLengthExceeded:
            assert not fits
        except QueueFull:
            assert len(self.scheduler.waiting) >= self.scheduler.max_waiting
        else:
            assert fits
            self.open[self.number] = new
            self.gained[self.number] = 0

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        assert self.scheduler.abort(number)
        del self.open[number]

    @precondition(lambda self: self.open)
    @rule()
    def step(self) -> None:
        scheduler = self.scheduler
        plan = scheduler.schedule()
        assert plan.work, "requests, but no work"
        assert plan.tokens <= scheduler.max_tokens_per_step
        assert len(plan.work) <= scheduler.max_sequences
        for number in plan.preempted:
            self.cached.pop(number, None)
        owners: dict[int, int] = {}
        for work in plan.work:
            known = self.cached.setdefault(work.request_id, [])
            # What is computed follows on what is in the cache, and is what the request says.
            assert work.start == len(known)
            known += work.tokens
            assert known == self.open[work.request_id].tokens[: len(known)]
            for block in work.blocks:
                assert owners.setdefault(block, work.request_id) == work.request_id
        drawn = {work.request_id: [1000 + self.number] for work in plan.work if work.sampling}
        for gain in scheduler.update(plan, drawn):
            self.gained[gain.request_id] += len(gain.tokens)
            if gain.finish:
                request = self.open.pop(gain.request_id)
                assert self.gained[gain.request_id] == request.params.max_tokens

    @invariant()
    def is_whole(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            assert self.scheduler.idle == (not self.open)

    def teardown(self) -> None:
        """Whatever is left ends within a bounded number of steps."""
        if not hasattr(self, "scheduler"):
            return
        # Each token may have to be computed again after each preemption; this is far above what that can cost.
        for _ in range(5000):
            if self.scheduler.idle:
                break
            self.step()
        assert self.scheduler.idle, "requests hang"
        assert self.scheduler.pool.used == 0


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestScheduler = SchedulerMachine.TestCase
