"""Lines of batches at a pool: they get what nobody else wants, and give it back on demand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.admission.fair_queue import QueueTerms
from gateway.admission.pool import Pool
from gateway.admission.slot_lease import SlotLease
from gateway.engine_load import EngineLoad
from tests.examples import examples
from tests.gateway.admission.test_pool import Clock, a_pool, take
from tests.gateway.admission.test_shared_slots import workers


@dataclass
class Line:
    """One that gives its place back when it is asked to, or at ``obey``."""

    lease: SlotLease = field(init=False)
    asked: bool = False
    at_once: bool = True

    def reclaim(self) -> None:
        self.asked = True
        if self.at_once:
            self.lease.release()


def idle(
    pool: Pool,
    *,
    share: float = 0.5,
    tenant: str = "a",
    tokens: int = 1,
    answers: int = 1,
    at_once: bool = True,
) -> Line:
    line = Line(at_once=at_once)
    line.lease = pool.acquire_idle(tenant, tokens, answers, max_utilization=share, reclaim=line.reclaim)
    return line


def test_lines_leave_the_other_half_free() -> None:
    pool = a_pool(slots=8)
    lines = [idle(pool) for _ in range(6)]
    assert [line.lease.is_granted for line in lines] == [True] * 4 + [False] * 2
    others = [take(pool) for _ in range(4)]
    assert all(one.is_granted for one in others)
    lines[0].lease.release()
    assert not lines[4].lease.is_granted, "the backend is more than half full with the others"
    for one in others:
        one.release()
    assert lines[4].lease.is_granted


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_one_line_runs_where_nothing_else_does(slots: int) -> None:
    pool = a_pool(slots=slots)
    assert [idle(pool, share=0.1).lease.is_granted for _ in range(2)] == [True, False]


def test_a_request_takes_the_place_of_the_line_that_came_last() -> None:
    pool = a_pool(slots=4)
    first, last = idle(pool), idle(pool)
    held = [take(pool), take(pool)]
    request = take(pool)
    assert request.is_granted
    assert (first.asked, last.asked) == (False, True)
    held[0].release()
    assert not first.asked


def test_a_request_waits_only_until_the_line_is_gone() -> None:
    pool = a_pool(slots=1)
    line = idle(pool, at_once=False)
    request, second = take(pool), take(pool)
    assert (line.asked, request.is_granted) == (True, False)
    later = idle(pool)
    line.lease.release()
    assert (request.is_granted, second.is_granted, later.lease.is_granted) == (True, False, False)
    request.release()
    second.release()
    assert later.lease.is_granted


def test_others_see_the_backend_without_its_lines() -> None:
    pool = a_pool(slots=4, tokens=100)
    idle(pool, tokens=50)
    assert (pool.saturation, pool.has_capacity(100)) == (0.0, True)
    assert pool.expected_wait_of_new("t", QueueTerms(), "a", 100, 4) == 0.0
    queued = idle(pool, tokens=50, share=0.6)
    assert (queued.lease.is_granted, pool.queue.size, pool.load) == (False, 0, 1)
    assert pool.has_capacity(100, answers=4)


def test_a_tier_that_may_use_a_part_is_not_kept_from_it_by_lines() -> None:
    pool = a_pool(slots=4)
    lines = [idle(pool, share=1.0) for _ in range(3)]
    request = take(pool, terms=QueueTerms(max_utilization=0.5))
    assert request.is_granted
    assert not any(line.asked for line in lines)
    assert take(pool, terms=QueueTerms(max_utilization=0.5)).is_granted
    assert [line.asked for line in lines] == [False, False, True]


def test_lines_of_tenants_take_turns() -> None:
    pool = a_pool(slots=2)
    running = idle(pool)
    many, one = [idle(pool, tenant="a") for _ in range(3)], idle(pool, tenant="b")
    running.lease.release()
    many[0].lease.release()
    assert [line.lease.is_granted for line in (*many[1:], one)] == [False, False, True]


def test_an_engine_that_is_half_full_gets_no_more_lines() -> None:
    clock = Clock()
    pool = a_pool(clock=clock)
    pool.speed.update_engine(EngineLoad(running=4, slots=8))
    assert not idle(pool).lease.is_granted
    pool.speed.update_engine(EngineLoad(running=1, slots=8))
    pool.on_waiting()
    assert pool.in_flight == 1
    assert [idle(pool).lease.is_granted for _ in range(4)] == [True, True, True, False]
    pool.speed.update_engine(EngineLoad(running=5, slots=8))
    assert pool.saturation == pytest.approx(1 / 8), "of which four are lines"


def test_a_line_that_gives_up_waiting_is_gone() -> None:
    pool = a_pool(slots=1)
    running, waiting = idle(pool), idle(pool)
    waiting.lease.release()
    running.lease.release()
    assert (pool.in_flight, pool.lines.queue.size) == (0, 0)


def test_lines_of_one_worker_give_way_to_requests_of_another(tmp_path: Path) -> None:
    mine, theirs = workers(tmp_path, 2, limit=4)
    lines = [idle(mine) for _ in range(3)]
    assert [line.lease.is_granted for line in lines] == [True, True, False]
    assert not idle(theirs).lease.is_granted, "half of it is in use, whoever uses it"
    requests = [take(theirs) for _ in range(3)]
    assert [one.is_granted for one in requests] == [True, True, False]
    mine.grant_next()  # as the other worker's wake-up has it do
    assert [line.asked for line in lines] == [False, True, False]
    theirs.grant_next()
    assert requests[2].is_granted


class Mixed(RuleBasedStateMachine):
    """Requests and lines of any order at one pool."""

    leases = Bundle("leases")
    lines = Bundle("lines")

    def __init__(self) -> None:
        super().__init__()
        self.pool = a_pool(slots=6, tokens=60)
        self.granted: list[SlotLease] = []
        self.all_lines: list[Line] = []

    @rule(target=leases, tokens=st.integers(1, 20), answers=st.integers(1, 3))
    def request(self, tokens: int, answers: int) -> SlotLease:
        return self.pool.acquire("t", QueueTerms(), "a", tokens, answers)

    @rule(
        target=lines,
        tokens=st.integers(1, 20),
        answers=st.integers(1, 3),
        share=st.sampled_from([0.2, 0.5, 1.0]),
        at_once=st.booleans(),
    )
    def line(self, tokens: int, answers: int, share: float, at_once: bool) -> Line:
        line = idle(self.pool, share=share, tokens=tokens, answers=answers, at_once=at_once)
        self.all_lines.append(line)
        return line

    @rule(lease=consumes(leases))
    def end(self, lease: SlotLease) -> None:
        lease.release()

    @rule(line=consumes(lines))
    def end_line(self, line: Line) -> None:
        line.lease.release()
        self.all_lines.remove(line)

    @rule(line=lines)
    def one_answer(self, line: Line) -> None:
        line.lease.release_one()

    @invariant()
    def a_request_waits_for_no_line_that_was_not_asked_to_go(self) -> None:
        pool = self.pool
        if pool.queue.size:
            assert not pool.lines.leases or any(lease.asked_back for lease in pool.lines.leases)

    @invariant()
    def what_is_in_flight_is_what_was_granted(self) -> None:
        pool = self.pool
        assert pool.in_flight == sum(lease.unfinished for lease in pool.leases)
        assert pool.tokens_in_flight == sum(lease.tokens for lease in pool.leases)
        assert set(pool.lines.leases) <= set(pool.leases)
        assert pool.reclaimable_slots == sum(lease.unfinished for lease in pool.lines.leases)
        assert pool.reclaimable_tokens == sum(lease.tokens for lease in pool.lines.leases)

    @invariant()
    def no_line_is_left_where_nothing_runs(self) -> None:
        pool = self.pool
        assert pool.in_flight or not pool.lines.queue.size


TestMixed = Mixed.TestCase
TestMixed.settings = settings(max_examples=examples(200), stateful_step_count=30)
