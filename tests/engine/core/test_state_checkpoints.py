"""Which states are kept of prompts, and for how long."""

from __future__ import annotations

import pytest

from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, SamplerOutput
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler

SIZE = 4


class Planner:
    def __init__(self, checkpoints: int = 2, least: int = 0, budget: int = 64) -> None:
        self.scheduler = Scheduler(
            BlockPool(100),
            block_size=SIZE,
            max_num_seqs=2,
            max_batched_tokens=budget,
            max_model_len=100,
            max_waiting=4,
            stateful=True,
            checkpoints=checkpoints,
            least_checkpoint=least,
        )
        self.number = 0

    def submit(self, prompt: list[int], *, tokens: int = 2, priority: int = 0) -> None:
        self.number += 1
        params = SamplingParams(max_tokens=tokens)
        self.scheduler.submit(Request(self.number, prompt, params, priority=priority))

    def step(self) -> Plan:
        plan = self.scheduler.schedule()
        ended = {one.request_id: [7] for one in plan.requests if one.sampling is not None}
        self.scheduler.update(plan, SamplerOutput(ended))
        self.scheduler.check_integrity()
        return plan

    def compute(self, prompt: list[int]) -> list[tuple[int, int]]:
        """(start, end) of its chunks, until it has ended."""
        self.submit(prompt)
        found = []
        while not self.scheduler.idle:
            found += [(one.start, one.end) for one in self.step().requests]
        return found


def text(*lengths: int) -> list[int]:
    """Of several pieces, told apart by how many there are before."""
    return [10 * place + length for place, length in enumerate(lengths) for _ in range(length)]


def test_the_first_to_share_a_prefix_keeps_it_for_the_next() -> None:
    planner = Planner()
    assert planner.compute(text(9, 5)) == [(0, 12), (12, 14), (14, 15)]
    # Its blocks are there up to 8, but no state.
    assert planner.compute(text(9, 6)) == [(0, 8), (8, 12), (12, 15), (15, 16)]
    assert planner.compute(text(9, 7)) == [(8, 12), (12, 16), (16, 17)]
    # The next turn of a chat: the state of its last one's prompt.
    assert planner.compute([*text(9, 7), *text(0, 4)])[0] == (12, 16)


def test_what_spares_too_little_is_not_kept() -> None:
    planner = Planner(least=20)
    assert planner.compute(text(19)) == [(0, 19), (19, 20)]
    assert planner.compute(text(22)) == [(0, 20), (20, 22), (22, 23)]
    assert planner.compute(text(22, 9))[0] == (20, 31)


def test_the_state_used_last_is_kept_longest() -> None:
    planner = Planner(checkpoints=2)
    for length in (5, 6):
        planner.compute(text(length))
    assert planner.compute(text(5))[0] == (4, 5)
    planner.compute(text(7))
    assert [planner.compute(text(length))[0][0] for length in (5, 7)] == [4, 4]
    assert planner.compute(text(6))[0][0] == 0


def test_after_a_plan_that_came_to_nothing_none_is_believed() -> None:
    """Its copies may not have been made."""
    planner = Planner(budget=8)
    planner.compute(text(9))
    planner.submit(text(9, 9))
    assert planner.step().state_copies
    planner.step()
    plan = planner.scheduler.schedule()
    planner.scheduler.abandon(plan)
    planner.scheduler.check_integrity()
    (again,) = planner.step().requests
    assert (again.request_id, again.start) == (2, 0)


def test_nor_is_the_state_of_one_that_was_let_in_by_it_and_had_no_part() -> None:
    """Where prompts have to wait for a step."""
    planner = Planner()
    planner.compute(text(9))
    for _ in range(2):
        planner.submit(text(0, 2), tokens=9)
    planner.step()
    planner.submit(text(9, 5), priority=9)
    planner.scheduler.prefill_chunk = 0
    plan = planner.scheduler.schedule()
    (first,) = plan.requests
    assert first.request_id == 2 and plan.preempted == [3] and plan.state_copies
    planner.scheduler.abandon(plan)
    planner.scheduler.check_integrity()
    planner.scheduler.prefill_chunk = None
    assert {one.request_id: one.start for one in planner.step().requests}[4] == 0


def test_a_block_that_is_forgotten_takes_its_state_along() -> None:
    planner = Planner()
    planner.compute(text(9))
    assert planner.scheduler.prefixes is not None
    assert [tokens for _, tokens in planner.scheduler.prefixes.digest(5)] == [8]
    planner.scheduler.forget_all()
    assert planner.scheduler.prefixes.digest(5) == []
    assert planner.compute(text(9))[0] == (0, 8)


@pytest.mark.parametrize(
    "options", [{"chunked_prefill": False}, {"prefix_caching": False}, {"stateful": False}]
)
def test_what_they_need(options: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match="checkpoints are of states"):
        Scheduler(
            BlockPool(100),
            block_size=SIZE,
            max_num_seqs=2,
            max_batched_tokens=64,
            max_model_len=40,
            max_waiting=4,
            checkpoints=2,
            **{"stateful": True, **options},
        )
