"""Steps that overlap, by a clock that stands still but for what host and device are given."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import pytest

from benchmarks.overlap import SimulatedClock, SleepingRunner, SleepingStep, made_up, run
from engine.core.block_pool import BlockPool
from engine.core.plan import PENDING, Plan, SamplerOutput
from engine.core.request import Request
from engine.core.sampling_params import Grammar, SamplingParams
from engine.core.scheduler import Scheduler
from engine.errors import OutOfMemory
from engine.step_loop import Landed, StepLoop

LONG = SamplingParams(max_tokens=50, temperature=0)


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize(("host", "device"), [(1, 8), (4, 8), (8, 8), (8, 3)])
def test_a_step_takes_as_long_as_the_longer_of_host_and_device(host: int, device: int, drafts: int) -> None:
    requests = made_up(1, 1000) if drafts else made_up(8, 100)
    found = {
        ahead: run(SimulatedClock(), host, device, copy.deepcopy(requests), ahead=ahead, drafts=drafts)
        for ahead in (False, True)
    }
    assert drafts == 0 or found[False].steps < 500
    assert found[False].seconds == pytest.approx(host + device)
    # The first plan and the last step overlap with nothing.
    assert found[True].seconds == pytest.approx(max(host, device), rel=0.02)
    assert found[True].answers == found[False].answers


def test_no_step_is_computed_beyond_what_is_known_to_be_wanted() -> None:
    found = run(SimulatedClock(), 1, 8, made_up(8, 100), ahead=True)
    assert (found.steps, found.wasted) == (100, 0)


def test_a_request_that_stops_unforeseen_costs_one_token_more_and_says_none() -> None:
    stops = frozenset(range(0, 1000, 20))
    in_turn, overlapped = (
        run(SimulatedClock(), 1, 8, made_up(32, 100, stops), ahead=ahead) for ahead in (False, True)
    )
    assert overlapped.answers == in_turn.answers
    stopped = sum(answer[-1] in stops and len(answer) < 100 for answer in in_turn.answers.values())
    assert stopped > 10 and in_turn.wasted == 0
    assert overlapped.wasted == stopped


class Driven:
    """A loop of which each step is looked at."""

    def __init__(self, *, blocks: int = 100, sequences: int = 8, **options: Any) -> None:
        self.clock = SimulatedClock()
        self.plans: list[Plan] = []
        self.pool = BlockPool(blocks)
        self.scheduler = Scheduler(
            self.pool,
            block_size=4,
            max_num_seqs=sequences,
            max_batched_tokens=64,
            max_model_len=100,
            max_waiting=100,
            clock=self.clock.now,
            **options,
        )
        self.runner = Failing(self.clock)
        self.loop = StepLoop(self.scheduler, self.runner, ahead=True, plan=self.plan, clock=self.clock.now)
        self.tokens: dict[int, list[int]] = {}

    def plan(self) -> Plan:
        self.plans.append(self.scheduler.schedule())
        return self.plans[-1]

    def submit(self, number: int, params: SamplingParams = LONG, *, length: int = 6, **options: Any) -> None:
        self.tokens[number] = []
        self.scheduler.submit(Request(number, [number] * length, params, **options))

    def step(self) -> Landed | None:
        landed = self.loop.step()
        for output in landed.outputs if landed else ():
            self.tokens[output.request_id] += output.tokens
        self.scheduler.check_integrity()
        return landed

    def drain(self) -> None:
        while not self.scheduler.idle or self.loop.in_flight:
            self.step()
        assert self.pool.used == 0


class Failing(SleepingRunner):
    """Runs out of memory in the calls that are asked for."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__(clock, 1.0)
        self.calls: list[str] = []
        self.fails: str | None = None

    def submit(self, plan: Plan, after: SleepingStep | None = None) -> SleepingStep:
        self._call("submit beside" if after else "submit")
        return super().submit(plan, after)

    def sample(self, step: SleepingStep, dropped: Collection[int] = ()) -> None:
        self._call("sample")
        super().sample(step, dropped)

    def collect(self, step: SleepingStep) -> SamplerOutput:
        self._call("collect")
        return super().collect(step)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            self.fails = None
            raise OutOfMemory("")


def alone(number: int, params: SamplingParams = LONG) -> list[int]:
    driven = Driven()
    driven.submit(number, params)
    driven.drain()
    return driven.tokens[number]


def test_the_next_step_is_launched_before_the_results_of_this_one_are_known() -> None:
    driven = Driven()
    driven.submit(1)
    driven.step()
    assert driven.runner.calls == ["submit", "sample", "submit beside", "collect", "sample"]
    assert [plan.ahead for plan in driven.plans] == [False, True]
    assert driven.tokens[1] and driven.loop.in_flight == 1


def test_blocks_of_an_aborted_request_come_back_when_nothing_writes_to_them_any_more() -> None:
    driven = Driven()
    driven.submit(1)
    driven.submit(2)
    driven.step()
    held = driven.pool.used
    assert driven.scheduler.abort(1)
    assert driven.pool.used == held
    driven.scheduler.check_integrity()
    driven.step()
    assert driven.pool.used < held
    driven.drain()
    assert driven.tokens[2] == alone(2)


def test_nobody_is_preempted_while_a_step_is_in_flight() -> None:
    """Two requests of 56 tokens each outgrow 20 blocks of 4 tokens."""
    driven = Driven(blocks=20, prefix_caching=False)
    driven.submit(1)
    driven.submit(2)
    driven.drain()
    assert sum(len(plan.preempted) for plan in driven.plans) > 0
    assert not any(plan.ahead and plan.preempted for plan in driven.plans)
    stalled = [i for i, plan in enumerate(driven.plans) if plan.stalled]
    # What was planned with room for it still ran; the next plan was not made ahead.
    assert stalled and all(not driven.plans[i + 1].ahead for i in stalled)
    assert {1: alone(1), 2: alone(2)} == driven.tokens


def test_a_request_of_a_higher_class_gets_its_slot_a_step_later() -> None:
    driven = Driven(sequences=1)
    driven.submit(1)
    driven.step()
    driven.submit(2, priority=5)
    driven.step()
    assert driven.plans[-1].stalled and not driven.plans[-1].preempted
    stalled = len(driven.plans)
    driven.drain()
    assert driven.plans[stalled].preempted == [1] and not driven.plans[stalled].ahead
    assert {1: alone(1), 2: alone(2)} == driven.tokens


@pytest.mark.parametrize("where", ["submit", "submit beside", "sample", "collect"])
def test_a_step_that_runs_out_of_memory_is_planned_again_and_the_other_is_kept(where: str) -> None:
    driven = Driven()
    driven.submit(1)
    driven.submit(2)
    abandoned = 0
    for _ in range(3):
        driven.step()
    for _ in range(5):
        driven.runner.fails = where
        for _ in range(3):
            landed = driven.step()
            abandoned += landed is not None and landed.error is not None
    # One that only does not fit beside another is planned again without a word.
    assert abandoned == (0 if where in ("submit", "submit beside") else 5)
    driven.runner.fails = None
    driven.drain()
    assert {1: alone(1), 2: alone(2)} == driven.tokens


def test_where_draft_tokens_may_come_of_a_step_the_next_one_waits_for_those_that_it_has_to_know() -> None:
    grammar = SamplingParams(max_tokens=5, temperature=0, grammar=Grammar("regex", "a*"))
    driven = Driven(max_drafts=4, reserve_drafts=False)
    driven.submit(1, SamplingParams(max_tokens=30, temperature=0))
    driven.submit(2, grammar)
    for _ in range(5):
        driven.step()
    assert not any(plan.ahead for plan in driven.plans)
    driven.drain()
    assert any(plan.ahead for plan in driven.plans)
    speculating = Driven(max_drafts=4)
    speculating.submit(1)
    speculating.drain()
    assert not any(plan.ahead for plan in speculating.plans)


def test_a_request_that_is_parked_in_the_middle_of_a_step_gets_its_token_first() -> None:
    driven = Driven()
    driven.submit(1)
    driven.submit(2)
    driven.step()
    assert driven.scheduler.park(1)
    assert not driven.scheduler.parked
    said = len(driven.tokens[1])
    for _ in range(3):
        driven.step()
    assert list(driven.scheduler.parked) == [1] and len(driven.tokens[1]) == said + 1
    assert driven.scheduler.unpark(1)
    driven.drain()
    assert {1: alone(1), 2: alone(2)} == driven.tokens


def test_one_that_is_unparked_in_time_notices_nothing() -> None:
    driven = Driven()
    driven.submit(1)
    driven.step()
    assert driven.scheduler.park(1) and driven.scheduler.unpark(1) and not driven.scheduler.unpark(1)
    driven.drain()
    assert driven.tokens[1] == alone(1)


def test_a_plan_made_ahead_has_what_is_known_and_what_is_not() -> None:
    driven = Driven()
    driven.submit(1)
    driven.scheduler.advance(driven.scheduler.schedule())
    (one,) = driven.scheduler.schedule().requests
    assert (one.tokens, one.start, one.sampling) == ([PENDING], 6, LONG)
    assert driven.scheduler.running[0].missing == 1


def test_a_plan_made_ahead_begins_after_all_draft_tokens_until_it_is_known_how_many_are_right() -> None:
    driven = Driven(max_drafts=3, feed_drafts=True)
    driven.runner = Proposing(driven.clock, 1.0, 3)
    driven.loop = StepLoop(driven.scheduler, driven.runner, ahead=True, plan=driven.plan)
    driven.submit(1)
    for _ in range(4):
        driven.step()
        (one,) = driven.plans[-1].requests
        start, tokens = driven.runner.submitted[-1]
        drafts = driven.plans[-2].requests[0].num_draft_tokens
        # As it was submitted, and as it is by now.
        assert tokens == [PENDING] * 4 and one.slack == 0
        assert one.start == len(one.history) - 1 <= start <= one.start + drafts
    driven.drain()
    assert driven.tokens[1] == alone(1)
    planned = zip(driven.runner.submitted, driven.plans, strict=False)
    assert any(start > plan.requests[0].start for (start, _), plan in planned)


class Proposing(SleepingRunner):
    def __init__(self, clock: SimulatedClock, seconds: float, drafts: int) -> None:
        super().__init__(clock, seconds, drafts)
        self.submitted: list[tuple[int, list[int]]] = []

    def submit(self, plan: Plan, after: SleepingStep | None = None) -> SleepingStep:
        self.submitted += [(one.start, list(one.tokens)) for one in plan.requests]
        return super().submit(plan, after)
