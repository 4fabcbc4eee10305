"""Steps in a pipeline, on a clock that stands still but for what stages take."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, SamplerOutput
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.step_loop import StepLoop
from tests.examples import examples


@dataclass
class Inside:
    plan: Plan
    done: float
    output: SamplerOutput = field(default_factory=SamplerOutput)


class Stages:
    """Each takes as long for a step as it has tokens, and has one at a time. What is sampled is a function of all
    tokens before it, which must be known."""

    def __init__(self, count: int) -> None:
        self.now = 0.0
        self.free = [0.0] * count
        self.busy = 0.0
        """Of one stage."""
        self._computed: dict[int, list[int]] = {}

    def submit(self, plan: Plan, after: Inside | None = None) -> Inside:
        for source, target in plan.copies:
            assert source != target
        at = self.now
        for stage, free in enumerate(self.free):
            at = self.free[stage] = max(at, free) + plan.tokens
        self.busy += plan.tokens
        for one in plan.requests:
            assert one.tokens == one.history[one.start : one.end], "computed on top of what is not known"
        step = Inside(plan, at)
        if len(self.free) == 1:
            self.sample(step)
        return step

    def sample(self, step: Inside, dropped: Collection[int] = ()) -> None:
        self.now = max(self.now, step.done)
        for one in step.plan.requests:
            if one.sampling is not None and one.request_id not in dropped:
                assert len(one.history) == one.end
                step.output.tokens[one.request_id] = [sum(one.history) % 97 + 2]

    def collect(self, step: Inside) -> SamplerOutput:
        return step.output


def play(
    stages: int, prompts: list[int], *, tokens: int, blocks: int = 400, budget: int = 64, seqs: int = 16
):
    scheduler = Scheduler(
        BlockPool(blocks),
        block_size=4,
        max_num_seqs=seqs,
        max_batched_tokens=budget,
        max_model_len=blocks * 4,
        max_waiting=100,
        stages=stages,
    )
    device = Stages(stages)
    loop = StepLoop(scheduler, device, ahead=False, stages=stages, clock=lambda: device.now)
    answers: dict[int, list[int]] = {}
    for i, length in enumerate(prompts):
        prompt = [(i * 7 + j) % 50 + 2 for j in range(length)]
        scheduler.submit(Request(i, prompt, SamplingParams(max_tokens=tokens)))
    preempted = 0
    while not scheduler.idle or loop.in_flight:
        landed = loop.step()
        if landed is None:
            continue
        preempted += len(landed.plan.preempted)
        for output in landed.outputs:
            answers.setdefault(output.request_id, []).extend(output.tokens)
        scheduler.check_integrity()
    assert scheduler.pool.free + scheduler.pool.cached == blocks
    return answers, device, preempted


@pytest.mark.parametrize("stages", [2, 4])
def test_decoding_requests_fill_the_pipe(stages: int) -> None:
    """As many steps are in it, each with its part of the requests: no stage waits but at the start and the end."""
    _, device, _ = play(stages, [1] * 16, tokens=80)
    assert device.busy / device.now > 0.95


def test_a_long_prompt_fills_the_pipe_by_its_chunks() -> None:
    """Of 64 tokens: the next goes in while the one before is inside."""
    _, device, _ = play(4, [64 * 20], tokens=1)
    assert device.busy / device.now > 20 / 24


def test_a_request_alone_waits_for_itself() -> None:
    _, device, _ = play(4, [1], tokens=50)
    assert device.busy / device.now == pytest.approx(1 / 4)


@settings(max_examples=examples(30))
@given(st.lists(st.integers(1, 90), min_size=1, max_size=12), st.integers(2, 5), st.integers(30, 80))
def test_answers_do_not_depend_on_stages(prompts: list[int], stages: int, blocks: int) -> None:
    """Nor on who has to give way for want of blocks, and what of prompts the prefix cache has."""
    expected, _, _ = play(1, prompts, tokens=9)
    found, _, _ = play(stages, prompts, tokens=9, blocks=blocks, budget=20, seqs=5)
    assert found == expected


def test_who_gives_way_starts_again() -> None:
    expected, _, _ = play(1, [20] * 8, tokens=60)
    found, _, preempted = play(3, [20] * 8, tokens=60, blocks=60)
    assert preempted > 0
    assert found == expected
