"""The scheduler without chunks, and without preemption."""

from __future__ import annotations

from random import Random

import pytest

from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, SamplerOutput
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler


def scheduler(blocks: int = 64, budget: int = 200, **options: object) -> Scheduler:
    made = {
        "block_size": 4,
        "max_num_seqs": 4,
        "max_model_len": 64,
        "max_waiting": 100,
        "clock": lambda: 0.0,
    }
    return Scheduler(BlockPool(blocks), max_batched_tokens=budget, **made, **options)


def serve(made: Scheduler, count: int, priorities: bool = False) -> list[Plan]:
    random, plans = Random(0), []
    waiting = [
        Request(
            number,
            [random.randrange(100) for _ in range(random.randint(1, 50))],
            SamplingParams(max_tokens=random.randint(1, 12)),
            priority=random.randint(0, 9) if priorities else 0,
            submitted=float(number),
            tenant=random.choice("ab") if priorities else "",
        )
        for number in range(count)
    ]
    while waiting or not made.idle:
        for request in waiting[:2]:
            made.submit(request)
        del waiting[:2]
        made.prefill_chunk = random.choice((None, 0, 3))
        plan = made.schedule()
        sampled = {scheduled.request_id: [1] for scheduled in plan.requests if scheduled.sampling is not None}
        made.update(plan, SamplerOutput(sampled))
        made.check_integrity()
        plans.append(plan)
    return plans


def test_without_chunks_every_prompt_is_computed_in_one_step() -> None:
    assert any(
        scheduled.sampling is None for plan in serve(scheduler(budget=68), 40) for scheduled in plan.requests
    )
    plans = serve(scheduler(budget=68, chunked_prefill=False), 40)
    assert all(scheduled.sampling is not None for plan in plans for scheduled in plan.requests)
    assert all(plan.tokens <= 68 for plan in plans)
    with pytest.raises(ValueError, match="hold the longest prompt"):
        scheduler(budget=67, chunked_prefill=False)


def test_without_preemption_nobody_gives_way() -> None:
    assert any(plan.preempted for plan in serve(scheduler(), 60, priorities=True))
    assert not any(plan.preempted for plan in serve(scheduler(preemption=False), 60, priorities=True))
    with pytest.raises(ValueError, match="blocks for all sequences"):
        scheduler(blocks=63, preemption=False)
