"""The engine's scheduler and its control of chunks, with arrivals of a trace and a runner that only takes time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, SamplerOutput
from engine.core.prefill_chunk import PrefillChunkController
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.scheduler import Scheduler
from engine.errors import ContextLengthExceeded, QueueFull
from engine.simulation.clock import StepClock

ANSWER = 2**32 - 1
"""The token of all answers: no prompt has it."""
_TAIL = 2**31
"""Tokens from here on stand in one prompt alone."""
GAPS = 0.99
"""Share of a request's gaps between tokens that its figure covers; of fewer than 100 all."""


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    """Seconds."""
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """One number for each ``block_tokens`` of the prompt: the same stands for the same tokens after the same others."""

    def prompt(self, number: int, block_tokens: int) -> list[int]:
        """Tokens: of its blocks, and after these some that are nobody else's."""
        tokens: list[int] = []
        for block in self.blocks:
            first = block * block_tokens % _TAIL
            tokens += range(first, first + block_tokens)
        del tokens[self.prompt_tokens :]
        missing = self.prompt_tokens - len(tokens)
        return tokens + [_TAIL + number] * missing


@dataclass(frozen=True, slots=True)
class Machine:
    blocks: int
    """Of the KV cache, in all groups of layers together."""
    max_num_seqs: int
    max_batched_tokens: int
    max_model_len: int
    block_size: int = 16
    windows: tuple[int | None, ...] = (None,)
    """Of each group of layers (``engine/kv_groups.py``)."""
    max_itl_ratio: float = 2.0
    max_waiting: int = 1_000_000
    stateful: bool = False
    """Whether layers keep a state of each request: a prefix is then found where a state of it was kept."""

    @property
    def checkpoints(self) -> int:
        """States of prefixes, as ``--state-checkpoints`` has it by default."""
        return self.max_num_seqs // 2 if self.stateful else 0


@dataclass(frozen=True, slots=True)
class Patience:
    """The simulation ends when more requests than ``share`` are late: what it was to show is then known."""

    share: float
    ttft: float = float("inf")
    itl: float = float("inf")
    """For 99 % of a request's gaps."""


@dataclass(slots=True)
class Served:
    """What became of one request: seconds from its arrival, ``None`` where there was none."""

    arrival: Arrival
    request: Request
    queued: float = 0.0
    first: float | None = None
    last: float = 0.0
    end: float | None = None
    hits: int = 0
    gaps: array[float] = field(default_factory=lambda: array("d"))
    long_gaps: int = 0
    """Above the bound of ``Patience``."""
    late: bool = False

    @property
    def worst_gap(self) -> float | None:
        """The 99th percentile of its gaps; of fewer than 100 the longest."""
        if not self.gaps:
            return None
        ordered = sorted(self.gaps)
        return ordered[-1] if len(ordered) < 100 else ordered[min(len(ordered) - 1, int(GAPS * len(ordered)))]


class Simulation:
    def __init__(
        self,
        arrivals: Sequence[Arrival],
        machine: Machine,
        clock: StepClock,
        *,
        block_tokens: int = 512,
        patience: Patience | None = None,
    ) -> None:
        """``arrivals``: by time. ``block_tokens``: of each of their blocks."""
        self.now = 0.0
        self._arrivals = arrivals
        self._clock = clock
        self._patience = patience or Patience(1.0)
        self._late = 0
        self._block_tokens = block_tokens
        keeps = not machine.stateful or machine.checkpoints > 0
        self._caching = keeps and any(arrival.blocks for arrival in arrivals)
        self.scheduler = Scheduler(
            BlockPool(machine.blocks),
            block_size=machine.block_size,
            max_num_seqs=machine.max_num_seqs,
            max_batched_tokens=machine.max_batched_tokens,
            max_model_len=machine.max_model_len,
            max_waiting=machine.max_waiting,
            clock=lambda: self.now,
            prefix_caching=self._caching,
            windows=machine.windows,
            stateful=machine.stateful,
            checkpoints=machine.checkpoints if self._caching else 0,
        )
        self._chunks = PrefillChunkController(machine.max_itl_ratio, machine.max_batched_tokens)
        self.served: list[Served | None] = []
        """By arrival; ``None``: refused, as it could never run."""
        self._parts = [[0.0] * len(bounds) for bounds in clock.operators]
        self._steps = 0
        self._preempted = 0
        self._busy = 0.0
        self._sequences = 0.0
        self._blocks_held = 0.0
        self._most_blocks = 0

    def run(self) -> dict[str, Any]:
        """Until all have ended, or too many are late."""
        scheduler, following = self.scheduler, 0
        most = self._patience.share * len(self._arrivals)
        while (following < len(self._arrivals) or not scheduler.idle) and self._late <= most:
            if scheduler.idle:
                self.now = max(self.now, self._arrivals[following].at)
            while following < len(self._arrivals) and self._arrivals[following].at <= self.now:
                self._submit(following, self._arrivals[following])
                following += 1
            if not scheduler.idle:
                self._step()
        return self.result()

    def _submit(self, number: int, arrival: Arrival) -> None:
        prompt = (
            arrival.prompt(number, self._block_tokens)
            if self._caching
            else [0] * max(1, arrival.prompt_tokens)
        )
        request = Request(number, prompt, SamplingParams(arrival.output_tokens), submitted=arrival.at)
        try:
            self.scheduler.submit(request)
        except (ContextLengthExceeded, QueueFull):
            self.served.append(None)
        else:
            self.served.append(Served(arrival, request))

    def _step(self) -> None:
        scheduler = self.scheduler
        scheduler.prefill_chunk = self._chunks.chunk(scheduler.num_prefills)
        plan = scheduler.schedule()
        if not plan.requests:
            if scheduler.idle:
                return
            raise RuntimeError("there are requests, but none of them can run")
        for number in plan.admitted:
            served = self._of(number)
            served.queued = self.now - served.arrival.at
            served.hits = served.request.computed
        began = self.now
        sampled = self._execute(plan)
        seconds = self.now - began
        held = scheduler.pool.used
        self._steps += 1
        self._busy += seconds
        self._sequences += seconds * len(plan.requests)
        self._blocks_held += seconds * held
        self._most_blocks = max(self._most_blocks, held)
        self._preempted += len(plan.preempted)
        for output in scheduler.update(plan, sampled):
            served = self._of(output.request_id)
            self._took(served)
            if output.finish is not None:
                served.end = self.now - served.arrival.at
                served.request.tokens = []  # no longer needed, and there are many

    def _took(self, served: Served) -> None:
        """It has a token now."""
        patience = self._patience
        if served.first is None:
            served.first = self.now - served.arrival.at
            late = served.first > patience.ttft
        else:
            gap = self.now - served.last
            served.gaps.append(gap)
            served.long_gaps += gap > patience.itl
            late = served.long_gaps > (1 - GAPS) * served.arrival.output_tokens
        served.last = self.now
        if late and not served.late:
            served.late = True
            self._late += 1

    def _execute(self, plan: Plan) -> SamplerOutput:
        """What the step samples; ``now`` goes on by what it takes."""
        parts = self._clock.parts(self._clock.features(plan))
        for operator, (seconds, bound) in enumerate(parts):
            self._parts[operator][-bound] += seconds
        self._passed(plan, sum(part for part, _ in parts))
        return SamplerOutput({one.request_id: [ANSWER] for one in plan.requests if one.sampling is not None})

    def _passed(self, plan: Plan, seconds: float) -> None:
        """The step took so long."""
        self.now += seconds
        decoding = sum(one.generating for one in plan.requests)
        tokens = {"prefill_tokens": plan.tokens - decoding, "decode_tokens": decoding}
        self.scheduler.latency.observe(seconds, **tokens)
        self._chunks.observe(seconds, **tokens)

    def _of(self, number: int) -> Served:
        served = self.served[number]
        if served is None:
            raise RuntimeError(f"request {number} was refused, and yet it runs")
        return served

    def result(self) -> dict[str, Any]:
        """Of each request its figures in seconds (``None``: refused; ``itl``: ``None`` too where it has one token), and
        what the steps came to."""
        busy = self._busy or 1.0
        rows = self.served + [None] * (len(self._arrivals) - len(self.served))
        return {
            "queued": [row and row.queued for row in rows],
            "ttft": [row and row.first for row in rows],
            "itl": [row and row.worst_gap for row in rows],
            "tpot": [row and _tpot(row) for row in rows],
            "e2e": [row and row.end for row in rows],
            "hits": [row.hits if row else 0 for row in rows],
            "gaps": self._gap_percentiles(),
            "late": self._late,
            "seconds": self.now,
            "busy": self._busy,
            "steps": self._steps,
            "preempted": self._preempted,
            "sequences": self._sequences / busy,
            "blocks_mean": self._blocks_held / busy,
            "blocks_max": self._most_blocks,
            "parts": self._parts,
        }

    def _gap_percentiles(self) -> list[float]:
        """p50, p95 and p99 of all gaps; empty where there are none."""
        gaps = array("d")
        for row in self.served:
            if row is not None:
                gaps.extend(row.gaps)
        if len(gaps) > _MOST_GAPS:
            gaps = array("d", Random(0).sample(gaps, _MOST_GAPS))
        ordered = sorted(gaps)
        return [ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.95, 0.99)] if ordered else []


_MOST_GAPS = 100_000


def _tpot(row: Served) -> float | None:
    if row.first is None or row.end is None or row.arrival.output_tokens < 2:
        return None
    return (row.end - row.first) / (row.arrival.output_tokens - 1)


def machine_of(given: Mapping[str, Any]) -> Machine:
    """Raises ``TypeError`` for what is unknown or missing."""
    return Machine(**{**given, "windows": tuple(given.get("windows", (None,)))})
