"""The engine's loop without its process: scheduler and runner, no HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from engine.adapter_memory import open_adapters
from engine.config import EngineConfig
from engine.core.block_pool import BlockPool
from engine.core.logprobs import TokenLogprobs
from engine.core.plan import Plan
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.errors import InvalidRequest
from engine.step_loop import Landed, StepLoop
from engine.worker.device import pick_device
from engine.worker.runner import Runner
from engine.worker.tiers.start import open_tiers

_PATIENCE = 0.01
"""Seconds to wait at a time for blocks from another tier of memory."""

Asked = tuple[list[int], SamplingParams]


@dataclass(slots=True)
class OfflineOutput:
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Where they were asked for."""
    times: list[float] = field(default_factory=list)
    """Seconds from the request's submission to each token."""


@dataclass(slots=True)
class Counts:
    """Of all requests so far."""

    steps: int = 0
    chunks: int = 0
    """Steps' parts of prompts that did not end them."""
    preempted: int = 0
    hit_tokens: int = 0
    drafts: int = 0
    """Draft tokens verified."""


class OfflineEngine:
    def __init__(
        self, config: EngineConfig, *, blocks: int | None = None, prefix_caching: bool = False
    ) -> None:
        """``blocks``: that the scheduler knows of, where fewer than there are."""
        config = config.on(pick_device(config.device).type)
        self.runner = Runner(config)
        self.counts = Counts()
        self.tiers = open_tiers(config, self.runner)
        self._memory, slots = open_adapters(config, self.runner) or (None, None)
        self.scheduler = Scheduler(
            BlockPool(blocks or self.runner.cache.blocks),
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs or 1,
            max_batched_tokens=config.max_batched_tokens or 1,
            max_model_len=self.runner.max_model_len,
            max_waiting=1000,
            prefix_caching=prefix_caching and self.runner.finds_prefixes,
            max_drafts=config.step_drafts if self.runner.drafting else 0,
            reserve_drafts=self.runner.speculation is not None,
            chunked_prefill=config.chunked_prefill,
            windows=self.runner.windows,
            feed_drafts=self.runner.runs_ahead and self.runner.feeds_drafts,
            overlapping=self.runner.runs_ahead,
            stateful=self.runner.stateful,
            checkpoints=self.runner.checkpoints if prefix_caching else 0,
            tiers=self.tiers,
            adapters=slots,
        )
        self._steps = StepLoop(self.scheduler, self.runner, ahead=self.runner.runs_ahead)
        self._budget = self.scheduler.max_batched_tokens
        self.runner.warm_up()
        self._ids = count()

    def decode(self, prompts: list[list[int]], tokens: int) -> list[float]:
        """Seconds of each step in which every prompt gains one token, drawing and scheduling included."""
        # Those that begin first go on until the last has begun.
        waiting = -(-sum(map(len, prompts)) // self._budget)
        for prompt in prompts:
            self._submit(prompt, _greedy(tokens + waiting + len(prompts)))
        times = []
        while self._busy:
            began = time.perf_counter()
            plan = self._step().plan
            if plan.tokens == len(prompts) == len(plan.requests):
                times.append(time.perf_counter() - began)
        return times[:tokens]

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from a prompt to its first token."""
        self._submit(prompt, _greedy(1))
        began = time.perf_counter()
        while self._busy:
            self._step()
        return time.perf_counter() - began

    def generate(
        self,
        requests: Sequence[Asked],
        *,
        late: int = 0,
        rate: int | None = None,
        adapters: Sequence[str | None] = (),
    ) -> tuple[float, list[OfflineOutput]]:
        """Seconds for all, and the answers. Each begins ``late`` steps after the one before it, or ``rate`` of them
        with each step."""
        began, step = time.perf_counter(), 0
        answers: dict[int, OfflineOutput] = {}
        submitted: dict[int, float] = {}
        while len(answers) < len(requests) or self._busy:
            due = len(requests) if rate is None else rate * (step + 1)
            while len(answers) < min(len(requests), due) and len(answers) * late <= step:
                number = len(answers)
                adapter = adapters[number] if adapters else None
                request_id = self._submit(*requests[number], adapter)
                answers[request_id], submitted[request_id] = OfflineOutput(), time.perf_counter()
            landed = self._step()
            step, now = step + 1, time.perf_counter()
            for output in landed.outputs:
                answer = answers[output.request_id]
                answer.tokens += output.tokens
                answer.logprobs += output.logprobs or []
                answer.times += [now - submitted[output.request_id]] * len(output.tokens)
        return time.perf_counter() - began, list(answers.values())

    def settle(self) -> None:
        """Until all is copied that is to be copied between tiers of memory."""
        while self.scheduler.copying:
            self.scheduler.copy()
            self.scheduler.wait(_PATIENCE)

    @property
    def adapter_reads(self) -> int:
        """Adapters that were read from the disk again."""
        return self._memory.reads if self._memory is not None else 0

    def close(self) -> None:
        if self.tiers is not None:
            self.tiers.copier.close()

    @property
    def _busy(self) -> bool:
        return not self.scheduler.idle or self._steps.in_flight > 0

    def _submit(self, prompt: list[int], params: SamplingParams, adapter: str | None = None) -> int:
        number = next(self._ids)
        self.scheduler.submit(Request(number, prompt, params, submitted=time.monotonic(), adapter=adapter))
        return number

    def _step(self) -> Landed:
        if self._memory is not None:
            _, failed = self._memory.tick()
            if failed:
                raise InvalidRequest(next(iter(failed.values())))
        landed, counts = self._steps.step(), self.counts
        if landed is None:
            if self.scheduler.queues.loading:
                self.scheduler.wait(_PATIENCE)
            elif self._memory is not None and self._memory.reading:
                time.sleep(_PATIENCE / 10)
            elif not self.scheduler.idle:
                raise RuntimeError("there are requests, but none of them can run")
            # The next request is yet to come.
            landed = Landed(Plan())
        if landed.error is not None:
            raise landed.error
        plan = landed.plan
        counts.steps += 1
        counts.chunks += sum(scheduled.sampling is None for scheduled in plan.requests)
        counts.preempted += len(plan.preempted)
        counts.hit_tokens += plan.hit_tokens
        counts.drafts += sum(scheduled.num_draft_tokens for scheduled in plan.requests)
        return landed


def _greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0)
