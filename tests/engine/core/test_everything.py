"""Prefixes, forks, guesses, classes and aborts together, on pools of a few blocks: every answer is as if alone."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.block_pool import BlockPool
from engine.core.request import Request, Sibling
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.errors import ContextLengthExceeded, QueueFull
from tests.engine.core.fake_worker import FakeWorker

BLOCK = 4
CONTEXT = 60


class EverythingMachine(RuleBasedStateMachine):
    @initialize(
        blocks=st.integers(2, 20),
        sequences=st.integers(1, 5),
        extra=st.integers(0, 12),
        waiting=st.integers(0, 6),
        lookahead=st.integers(0, 5),
        chunk=st.none() | st.integers(1, 5),
        caching=st.sampled_from([True, True, True, False]),
        seed=st.integers(0, 1000),
    )
    def start(
        self,
        blocks: int,
        sequences: int,
        extra: int,
        waiting: int,
        lookahead: int,
        chunk: int | None,
        caching: bool,
        seed: int,
    ) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(
            BlockPool(blocks),
            block_size=BLOCK,
            max_sequences=sequences,
            max_tokens_per_step=sequences + extra,
            max_model_len=CONTEXT,
            max_waiting=waiting,
            clock=lambda: self.now,
            prefix_caching=caching,
            lookahead=lookahead,
            chunk=chunk,
        )
        self.worker = FakeWorker(BLOCK, seed=seed)
        self.wanted: dict[int, list[int]] = {}
        self.gained: dict[int, list[int]] = {}
        self.adapters: dict[int, str | None] = {}
        self.gone: list[int] = []
        self.number = 0

    @rule(
        prompt=st.lists(st.integers(0, 1), min_size=1, max_size=4),
        repeat=st.integers(1, 9),
        generate=st.lists(st.integers(1, 20), min_size=1, max_size=4),
        stops=st.booleans(),
        priority=st.integers(-2, 2),
        weight=st.sampled_from([0.5, 1.0, 4.0]),
        adapter=st.sampled_from([None, None, "a", "bb"]),
    )
    def submit(
        self,
        prompt: list[int],
        repeat: int,
        generate: list[int],
        stops: bool,
        priority: int,
        weight: float,
        adapter: str | None,
    ) -> None:
        tokens = prompt * repeat
        stop_ids = frozenset({2}) if stops else frozenset()
        choices = [
            Sibling(self.number + i, SamplingParams(max_tokens=most, seed=i, stop_token_ids=stop_ids))
            for i, most in enumerate(generate, 1)
        ]
        self.number += len(choices)
        request = Request(
            choices[0].id,
            tokens,
            choices[0].params,
            priority=priority,
            submitted=self.now,
            weight=weight,
            adapter=adapter,
            siblings=choices[1:],
        )
        fits = request.longest < CONTEXT and -(-request.longest // BLOCK) <= self.scheduler.pool.total
        try:
            self.scheduler.submit(request)
        except ContextLengthExceeded:
            assert not fits
        except QueueFull:
            assert self.scheduler.places + len(choices) > self.scheduler.max_waiting
        else:
            assert fits
            for choice in choices:
                self.wanted[choice.id] = self.worker.answer(tokens, choice.params, adapter)
                self.gained[choice.id] = []
                self.adapters[choice.id] = adapter

    @precondition(lambda self: self.wanted)
    @rule(data=st.data(), midway=st.booleans())
    def abort(self, data: st.DataObject, midway: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.wanted)))
        if not midway:
            assert self.scheduler.abort(number)
            self.forget(number)
            return
        plan = self.scheduler.schedule()
        drawn = self.worker.execute(plan)
        assert self.scheduler.abort(number)
        self.forget(number)
        self.take(self.scheduler.update(plan, drawn))

    @precondition(lambda self: self.wanted)
    @rule()
    def step(self) -> None:
        self.now += 1.0
        scheduler = self.scheduler
        streams = [one.id for one in scheduler.running if one.missing == 1]
        plan = scheduler.schedule()
        assert plan.work, "requests, but no work"
        assert plan.tokens <= scheduler.max_tokens_per_step
        assert len({work.request_id for work in plan.work}) == len(plan.work) <= scheduler.max_sequences
        # Whoever decodes goes on in every step, unless it has to give way.
        assert {work.request_id for work in plan.work} | set(plan.preempted) >= set(streams)
        if scheduler.chunk is not None and set(streams) - set(plan.preempted):
            prompts = sum(len(work.tokens) for work in plan.work if work.request_id not in streams)
            assert prompts - sum(work.drafts for work in plan.work) <= scheduler.chunk
        self.take(scheduler.update(plan, self.worker.execute(plan)))

    @rule(adapter=st.sampled_from(["a", "bb"]))
    def change_adapter(self, adapter: str) -> None:
        if adapter not in (self.adapters[number] for number in self.wanted):
            self.scheduler.forget_adapter(adapter)
            self.worker.generations[adapter] = self.worker.generations.get(adapter, 0) + 1

    def take(self, gains) -> None:
        for gain in gains:
            number = gain.request_id
            self.gained[number] += gain.tokens
            if gain.finish:
                assert self.gained[number] == self.wanted[number]
                self.forget(number)

    def forget(self, number: int) -> None:
        del self.wanted[number]
        self.gone.append(number)

    @invariant()
    def is_whole(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()
            assert self.scheduler.idle == (not self.wanted)

    def teardown(self) -> None:
        """Whatever is left ends within a bounded number of steps, and the worker is told of all that ended."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if self.scheduler.idle:
                break
            self.step()
            self.scheduler.check_integrity()
        assert self.scheduler.idle, "requests hang"
        assert self.scheduler.pool.used == 0
        assert sorted(self.worker.ended + self.scheduler._ended) == sorted(self.gone)


EverythingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestEverything = EverythingMachine.TestCase


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("lookahead", [0, 3])
def test_a_crowd_ends_with_what_each_would_get_alone(caching: bool, lookahead: int) -> None:
    scheduler = Scheduler(
        BlockPool(30),
        block_size=BLOCK,
        max_sequences=6,
        max_tokens_per_step=24,
        max_model_len=100,
        max_waiting=1000,
        prefix_caching=caching,
        lookahead=lookahead,
        chunk=8,
    )
    worker = FakeWorker(BLOCK)
    wanted, gained = {}, {}
    for number in range(0, 200, 4):
        prompt = [number % 3, *([1, 0, 1] * (number % 11))]
        params = [SamplingParams(max_tokens=1 + number % 17 + i, seed=i) for i in range(4)]
        siblings = [Sibling(number + i, params[i]) for i in range(1, 1 + number % 3)]
        for choice in [Sibling(number, params[0]), *siblings]:
            wanted[choice.id] = worker.answer(prompt, choice.params)
            gained[choice.id] = []
        scheduler.submit(
            Request(number, prompt, params[0], priority=number % 3, submitted=0.1 * number, siblings=siblings)
        )
    hits = preempted = 0
    while not scheduler.idle:
        plan = scheduler.schedule()
        hits += plan.hit_tokens
        preempted += len(plan.preempted)
        for gain in scheduler.update(plan, worker.execute(plan)):
            gained[gain.request_id] += gain.tokens
        scheduler.check_integrity()
    assert gained == wanted
    assert preempted
    assert bool(hits) == caching
