"""The loop without its process, until all requests have ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.adapter_memory import HostAdapters
from engine.core.adapter_slots import AdapterSlots
from engine.core.block_pool import BlockPool
from engine.core.logprobs import TokenLogprobs
from engine.core.plan import Plan
from engine.core.request import Request, Sibling
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.step_loop import Landed, StepLoop
from engine.worker.runner import Runner


@dataclass
class Outcome:
    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    steps: int = 0
    ahead: int = 0
    """Steps that were planned while another was in flight."""
    preempted: int = 0
    hit_tokens: int = 0
    copies: int = 0
    largest: int = 0
    """Most sequences in a step,"""
    adapters: int = 0
    """and most adapters."""


def run(
    runner: Runner,
    requests: list[tuple[list[int], SamplingParams]],
    *,
    sequences: int = 64,
    budget: int = 512,
    blocks: int | None = None,
    late: int = 0,
    adapters: Sequence[str | None] | None = None,
    choices: int = 1,
    forecasts: int = 0,
    ahead: bool = False,
    windows: Sequence[int | None] | None = None,
    paged: tuple[HostAdapters, AdapterSlots] | None = None,
    checkpoints: int = 0,
) -> Outcome:
    """Request ``i`` is submitted ``i * late`` steps after the first, and asks for ``adapters[i]``. Its choice ``j`` has
    the number ``i + j * 1000``, and a seed that is ``j`` larger. ``forecasts``: most draft tokens of grammars.
    ``ahead``: steps are launched before the results of those before them are known.
    ``windows``: of the groups of layers, if not the runner's. ``paged``: where there are more adapters than slots.
    ``checkpoints``: states of prefixes that are kept."""
    memory, slots = paged or (None, None)
    scheduler = Scheduler(
        BlockPool(blocks or runner.cache.blocks),
        block_size=runner.block_size,
        max_num_seqs=sequences,
        max_batched_tokens=budget,
        max_model_len=runner.max_model_len,
        max_waiting=1000,
        max_drafts=runner.speculation.max_drafts if runner.speculation else forecasts,
        reserve_drafts=runner.speculation is not None,
        feed_drafts=ahead and runner.feeds_drafts,
        windows=windows or runner.windows,
        overlapping=ahead,
        prefix_caching=not runner.stateful or checkpoints > 0,
        stateful=runner.stateful,
        checkpoints=checkpoints,
        least_checkpoint=16,
        stages=runner.ranks.stages,
        adapters=slots,
    )
    loop = StepLoop(scheduler, runner, ahead=ahead, stages=runner.ranks.stages)
    outcome = Outcome({i + 1000 * j: [] for j in range(choices) for i in range(len(requests))})
    submitted = 0
    while submitted < len(requests) or not scheduler.idle or loop.in_flight:
        while submitted < len(requests) and submitted * late <= outcome.steps:
            prompt, params = requests[submitted]
            adapter = adapters[submitted] if adapters else None
            siblings = [
                Sibling(submitted + 1000 * j, replace(params, seed=params.seed + j))
                for j in range(1, choices)
            ]
            scheduler.submit(Request(submitted, prompt, params, adapter=adapter, siblings=siblings))
            submitted += 1
        if memory is not None:
            assert memory.tick() == ({}, {})
        # Nothing is planned until the next request comes.
        landed = loop.step() or Landed(Plan())
        assert landed.error is None
        plan = landed.plan
        for output in landed.outputs:
            outcome.tokens[output.request_id] += output.tokens
            if output.logprobs is not None:
                outcome.logprobs.setdefault(output.request_id, []).extend(output.logprobs)
        scheduler.check_integrity()
        if memory is not None and not plan.requests:
            time.sleep(0.001)  # one is read
        outcome.adapters = max(outcome.adapters, len({one.adapter for one in plan.requests if one.adapter}))
        outcome.steps += 1
        outcome.ahead += plan.ahead
        outcome.preempted += len(plan.preempted)
        outcome.hit_tokens += plan.hit_tokens
        outcome.copies += len(plan.copies)
        outcome.largest = max(outcome.largest, len(plan.requests))
    scheduler.check_integrity()
    # The next run has the same numbers for other requests.
    runner.execute(Plan([], ended=list(outcome.tokens)))
    return outcome
