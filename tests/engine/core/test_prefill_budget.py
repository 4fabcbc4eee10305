"""Who waits for whose prompt: the short for a step or two, the long never for more than a fifth of its own time."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.core.request import Request
from engine.core.scheduler import Scheduler
from tests.engine.core.test_scheduler import BLOCK, Clock, make, request, shape, step
from tests.engine.core.test_shares import ask
from tests.engine.core.test_shares import step as tell
from tests.examples import examples


def wide(**options: object) -> Scheduler:
    """Room for everyone: only the prompt tokens of a step are short."""
    return make(**{"blocks": 10_000, "sequences": 64, "context": 20_000, "budget": 128, **options})


def steps_to_first_token(scheduler: Scheduler, number: int) -> int:
    for steps in range(1, 1000):
        _, outputs = step(scheduler)
        scheduler.check_integrity()
        if any(output.request_id == number for output in outputs):
            return steps
    raise AssertionError("it hangs")


@pytest.mark.parametrize("priority", [0, 3])
@pytest.mark.parametrize("begun", [0, 1, 20])
def test_thirty_tokens_do_not_wait_for_seven_thousand(priority: int, begun: int) -> None:
    scheduler = wide(prefill_chunk=64)
    scheduler.submit(request(1, 4, generate=1000))
    step(scheduler)
    scheduler.submit(request(2, 7000))
    for _ in range(begun):
        step(scheduler)
    scheduler.submit(request(3, 30, priority=priority))
    assert steps_to_first_token(scheduler, 3) == 1


def test_nor_do_they_where_longer_ones_wait_before_them() -> None:
    scheduler = wide()
    for number in (1, 2, 3):
        scheduler.submit(request(number, 7000))
    step(scheduler)
    scheduler.submit(request(4, 30))
    assert shape(step(scheduler)[0]) == [(1, 128, 98), (4, 0, 30)]
    assert [one.id for one in scheduler.waiting] == [2, 3]


def test_the_last_but_one_token_of_a_prompt_counts_where_it_is_computed_alone() -> None:
    scheduler = wide(prefill_chunk=1)
    scheduler.submit(request(1, 4, generate=100))
    step(scheduler)
    scheduler.submit(request(2, 3))
    step(scheduler)
    step(scheduler)
    one = scheduler.running[1]
    assert (one.missing, one.credit) == (1, 2)


def test_what_the_cache_has_of_a_prompt_does_not_make_it_long() -> None:
    scheduler = wide(prefix_caching=True)
    scheduler.submit(request(1, 4000, generate=1))
    steps_to_first_token(scheduler, 1)
    scheduler.submit(Request(2, [7] * 7000, request(0, 1).params))
    step(scheduler)
    scheduler.submit(request(3, 4020))
    assert steps_to_first_token(scheduler, 3) == 1


def test_a_stream_of_short_prompts_costs_the_long_one_a_fifth() -> None:
    scheduler, alone = wide(waiting=1000), 7000 / 128
    scheduler.submit(request(0, 7000))
    taken = 0
    for turn in range(1, 200):
        for place in range(4):
            scheduler.submit(request(4 * turn + place, 30, generate=1))
        plan, outputs = step(scheduler)
        taken += sum(len(one.tokens) for one in plan.requests if one.request_id)
        if any(output.request_id == 0 for output in outputs):
            break
    assert turn <= 1.2 * alone + 1
    assert taken >= 0.15 * 7000, "and what it may cost is used"


def test_half_of_each_step_is_the_first_ones() -> None:
    scheduler = wide()
    scheduler.submit(request(1, 7000))
    for number in range(2, 20):
        scheduler.submit(request(number, 30))
    plan, _ = step(scheduler)
    assert {one.request_id: len(one.tokens) for one in plan.requests} == {1: 64, 2: 30, 3: 30, 4: 4}


def test_a_lower_priority_overtakes_nobody() -> None:
    scheduler = wide()
    scheduler.submit(request(1, 1000, priority=1))
    step(scheduler)
    scheduler.submit(request(2, 30))
    scheduler.submit(request(3, 60, priority=2, submitted=100.0))
    scheduler.submit(request(4, 31, priority=1))
    assert {number for number, _, _ in shape(step(scheduler)[0])} == {1, 3, 4}
    assert steps_to_first_token(scheduler, 2) == 7


def test_who_overtakes_leaves_the_next_one_its_slot_and_its_blocks() -> None:
    for options in ({"sequences": 2}, {"blocks": (1000 + 600) // BLOCK + 4}):
        scheduler = wide(**options)
        scheduler.submit(request(1, 1000, generate=1))
        admitted = step(scheduler)[0].admitted
        scheduler.submit(request(2, 600, generate=1))
        scheduler.submit(request(3, 30, generate=1))
        while not scheduler.idle:
            admitted += step(scheduler)[0].admitted
        assert admitted == [1, 2, 3]


def test_one_that_waits_for_blocks_is_overtaken_but_not_for_ever() -> None:
    """The pool holds one of the long ones. A stream of short ones would fill what it leaves."""
    scheduler = wide(blocks=300)
    scheduler.submit(request(1, 1000, generate=100))
    scheduler.submit(request(2, 1000, generate=1))
    step(scheduler)
    scheduler.submit(request(3, 30, generate=1))
    assert steps_to_first_token(scheduler, 3) == 1
    overtook = 30
    for number in range(4, 1000):
        scheduler.submit(request(number, 30, generate=50))
        _, outputs = step(scheduler)
        scheduler.check_integrity()
        overtook += 30 * any(one.id == number for one in scheduler.running)
        if any(output.request_id == 2 for output in outputs):
            break
    assert number < 200
    assert overtook <= 1000 / 5


def test_two_tenants_have_each_their_short_prompts_first() -> None:
    scheduler = wide()
    for number, tenant in ((1, "a"), (2, "b"), (3, "a"), (4, "b")):
        scheduler.submit(ask(number, tenant, prompt=7000))
    tell(scheduler)
    scheduler.submit(ask(5, "a", prompt=30))
    scheduler.submit(ask(6, "b", prompt=30))
    gained: set[int] = set()
    for _ in range(3):
        plan, outputs = tell(scheduler)
        gained |= {output.request_id for output in outputs}
        parts = {one.request_id: len(one.tokens) for one in plan.requests}
        assert min(parts[1], parts[2]) >= 32
    assert gained == {5, 6}


def test_without_chunks_prompts_come_whole_and_in_turn() -> None:
    scheduler = make(blocks=1000, budget=408, chunked_prefill=False)
    for number, length in ((1, 300), (2, 300), (3, 30)):
        scheduler.submit(request(number, length))
    assert shape(step(scheduler)[0]) == [(1, 0, 300)]
    assert shape(step(scheduler)[0]) == [(1, 300, 1), (2, 0, 300), (3, 0, 30)]


class Prompts(RuleBasedStateMachine):
    """Prompts of all lengths and classes come, while others decode and steps are of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.scheduler = wide(clock=self.clock, budget=72)
        self.open: dict[int, Request] = {}
        """Prompts that are not computed yet."""
        self.behind: dict[int, int] = {}
        """By request: tokens that were computed of prompts behind it since it came and while
        it wanted some,"""
        self.before: dict[int, int] = {}
        """and those of whole prompts before it, and of its own."""
        self.ranks: dict[int, tuple[float, int]] = {}
        self.number = 0

    @rule(
        length=st.one_of(st.integers(2, 12), st.integers(2, 600)),
        priority=st.integers(0, 2),
        generate=st.sampled_from((1, 3, 40)),
    )
    def submit(self, length: int, priority: int, generate: int) -> None:
        if len(self.open) >= 40 or len(self.scheduler.queues.by_id) >= 60:
            return
        self.number += 1
        new = request(self.number, length, generate, priority=priority, submitted=self.clock.now)
        self.scheduler.submit(new)
        self.behind[new.id], self.ranks[new.id] = 0, new.rank
        self.before[new.id] = length
        for one in self.open.values():
            first, last = (new, one) if new.rank < one.rank else (one, new)
            self.before[last.id] += first.prompt_length
        self.open[new.id] = new

    @rule(seconds=st.sampled_from((1.0, 9.0)))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @precondition(lambda self: not self.scheduler.idle)
    @rule(chunk=st.sampled_from((None, None, 0, 1, 3, 8, 50)))
    def step(self, chunk: int | None) -> None:
        scheduler = self.scheduler
        scheduler.prefill_chunk = chunk
        wanted = sum(one.missing for one in self.open.values() if one.missing > 1)
        decoding = sum(one.missing == 1 for one in scheduler.running)
        room = 72 - decoding if chunk is None or not decoding else min(72 - decoding, chunk)
        plan, outputs = step(scheduler)
        worked = {one.request_id: one for one in plan.requests if one.start + 1 < one.prompt_length}
        spent = sum(len(one.tokens) for number, one in worked.items() if number in self.open)
        assert spent >= min(room, wanted), "tokens are left over that someone wants"
        for output in outputs:
            one = self.open.pop(output.request_id, None)
            if one is not None:
                assert 5 * self.behind[one.id] <= self.before[one.id]
                assert one.credit >= 0
        for one in self.open.values():
            if one.missing == 1:
                # It has got what it wanted, and others what was left.
                continue
            later = [other for number, other in worked.items() if self.ranks[number] > one.rank]
            self.behind[one.id] += sum(len(other.tokens) for other in later)

    @invariant()
    def adds_up(self) -> None:
        self.scheduler.check_integrity()
        for one in self.open.values():
            assert one.credit + one.missing // 2 >= 0

    def teardown(self) -> None:
        """Whatever is left is done in as many steps as its tokens need."""
        left = sum(one.missing for one in self.open.values())
        for _ in range(left // 12 + len(self.open) + 2):
            if self.open:
                self.step(None)
        assert not self.open


TestPrompts = Prompts.TestCase
TestPrompts.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)


def test_a_part_of_one_token_counts_as_much_as_others() -> None:
    """What a prompt computes makes up for those that overtook it, in parts however small."""
    scheduler = make(budget=3, sequences=3)
    for number in (1, 2):
        scheduler.submit(request(number, 1, generate=50))
    step(scheduler)
    scheduler.submit(request(3, 10))
    for steps in range(1, 10):
        assert shape(step(scheduler)[0])[2] == (3, steps - 1, 1)
        assert scheduler.running[2].credit == steps
