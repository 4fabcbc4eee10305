"""What to compute next: continuous batching without phases.

Each request has tokens wanted and tokens computed, and every step lets the latter catch up with the former under
one token budget. A long prompt is computed over several steps (chunked prefill, https://arxiv.org/abs/2308.16369)
beside the single tokens of requests that decode; a preempted request starts again from nothing.

All requests stand in one order that never changes: by the time of submission, with a head start of ``ageing`` seconds
for each point of priority. So a request's priority grows by one for every ``ageing`` seconds that it waits, equals go
first come first served, and whoever is here long enough becomes the first of all: nobody starves.
"""

from __future__ import annotations

import heapq
import itertools
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from operator import attrgetter

from engine.core.block_pool import BlockPool
from engine.core.pace import Pace
from engine.core.plan import Drawn, Plan, Progress, Work
from engine.core.request import Request
from engine.errors import ContextLengthExceeded, DeadlineUnreachable, QueueFull

_RANK = attrgetter("rank")


class Scheduler:
    """``running`` and ``waiting`` are kept by rank: the first always finds blocks, so all of them end."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_sequences: int,
        max_tokens_per_step: int,
        max_model_len: int,
        max_waiting: int,
        ageing: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ageing``: seconds of waiting that are worth one of priority."""
        if max_tokens_per_step < max_sequences:
            raise ValueError("a step must have room for one token of every running request")
        self.pool = pool
        self.block_size = block_size
        self.max_sequences = max_sequences
        self.max_tokens_per_step = max_tokens_per_step
        self.max_model_len = max_model_len
        self.max_waiting = max_waiting
        self.ageing = ageing
        self.pace = Pace(max_sequences)
        self.waiting: list[Request] = []
        self.waiting_by_priority: Counter[int] = Counter()
        self.running: list[Request] = []
        self._requests: dict[int, Request] = {}
        self._clock = clock
        self._arrivals = itertools.count()
        self._deadlines: list[tuple[float, int]] = []
        """A heap of (deadline, request id); requests that are gone are found out when their time comes."""

    @property
    def idle(self) -> bool:
        return not self._requests

    def submit(self, request: Request) -> None:
        """Raises ``ContextLengthExceeded`` if it could never run, ``QueueFull`` if too many wait already, and
        ``DeadlineUnreachable`` if it is not expected to be done in time."""
        if request.longest + 1 > self.max_model_len:
            raise ContextLengthExceeded(
                request.prompt_length, request.params.max_tokens, limit=self.max_model_len
            )
        if self._blocks_for(request.longest) > self.pool.total:
            raise ContextLengthExceeded(
                request.prompt_length, request.params.max_tokens, limit=self.pool.total * self.block_size
            )
        seats = self.max_sequences - len(self.running)
        if len(self.waiting) >= seats + self.max_waiting:
            raise QueueFull(len(self.waiting))
        request.rank = (request.submitted - self.ageing * request.priority, next(self._arrivals))
        if request.deadline is not None:
            needed, allowed = self._expect(request), request.deadline - self._clock()
            if needed > allowed or allowed <= 0:
                raise DeadlineUnreachable(needed, allowed)
            self._remember(request.deadline, request.id)
        self._requests[request.id] = request
        self._wait(request)

    def abort(self, request_id: int) -> bool:
        """Forget the request and free its blocks; False if there is no such request (any more)."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        running = bisect_left(self.running, request.rank, key=_RANK)
        if running < len(self.running) and self.running[running] is request:
            del self.running[running]
            self._drop_blocks(request)
        else:
            self._leave(bisect_left(self.waiting, request.rank, key=_RANK))
        return True

    def schedule(self) -> Plan:
        plan = Plan()
        self._expire(plan)
        budget = self.max_tokens_per_step
        position = 0
        while position < len(self.running):
            request = self.running[position]
            # One token is left for each request behind this one: a long prompt must not stall those that decode.
            behind = len(self.running) - position - 1
            count = min(request.missing, budget - behind)
            if not self._grow(request, request.computed + count, plan):
                break
            plan.work.append(self._work(request, count))
            budget -= count
            position += 1
        if not plan.preempted:
            self._admit(plan, budget)
        return plan

    def update(self, plan: Plan, drawn: Drawn) -> list[Progress]:
        """Take in what the worker drew for the works of ``plan`` that sample."""
        gains = []
        for work in plan.work:
            request = self._requests.get(work.request_id)
            if request is None:
                continue
            request.computed = work.end
            if work.sampling is None:
                continue
            gained, finish = [], None
            for token in drawn.tokens[work.request_id]:
                gained.append(token)
                finish = request.append(token)
                if finish is not None:
                    break
            told = drawn.logprobs.get(request.id)
            gains.append(Progress(request.id, gained, finish, told and told[: len(gained)]))
            if finish is not None:
                self.pace.end(request.generated)
                self.abort(request.id)
        return gains

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless the pool is whole and its used blocks are the running requests'."""
        self.pool.check_integrity()
        held = {block for request in self.running for block in request.blocks}
        if len(held) != self.pool.used:
            raise AssertionError(f"requests hold {len(held)} blocks, the pool counts {self.pool.used}")
        if any(request.blocks or request.computed for request in self.waiting):
            raise AssertionError("a waiting request holds blocks")
        if len(self.running) + len(self.waiting) != len(self._requests):
            raise AssertionError("a request is neither running nor waiting")
        for queue in (self.running, self.waiting):
            if any(one.rank >= next_one.rank for one, next_one in itertools.pairwise(queue)):
                raise AssertionError("a queue is out of order")
        if +self.waiting_by_priority != Counter(request.priority for request in self.waiting):
            raise AssertionError("the count of those that wait is wrong")

    def _admit(self, plan: Plan, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_sequences:
            request = self.waiting[0]
            # Blocks for all its tokens at once, and one more for each request that runs: else a newcomer's
            # chunks would crowd out those already here, and be thrown out again by them.
            needed = self._blocks_for(len(request.tokens))
            if needed + len(self.running) > self.pool.available:
                return
            self._leave(0)
            request.blocks = self.pool.allocate(needed)
            insort(self.running, request, key=_RANK)
            if not request.started:
                request.started = True
                plan.admitted.append(request.id)
            count = min(request.missing, budget)
            plan.work.append(self._work(request, count))
            budget -= count

    def _work(self, request: Request, count: int) -> Work:
        start = request.computed
        end = start + count
        return Work(
            request_id=request.id,
            tokens=request.tokens[start:end],
            start=start,
            blocks=request.blocks,
            sampling=request.params if end == len(request.tokens) else None,
            generating=start >= request.prompt_length,
            history=request.tokens,
            prompt_length=request.prompt_length,
            adapter=request.adapter,
        )

    def _grow(self, request: Request, length: int, plan: Plan) -> bool:
        """Blocks for ``length`` tokens; False if ``request`` itself had to give way."""
        needed = self._blocks_for(length) - len(request.blocks)
        if needed <= 0:
            return True
        while needed > self.pool.available:
            victim = self.running.pop()
            self._drop_blocks(victim)
            victim.computed = 0
            self._wait(victim)
            plan.preempted.append(victim.id)
            if victim is request:
                return False
        request.blocks.extend(self.pool.allocate(needed))
        return True

    def _expect(self, request: Request) -> float:
        """Seconds until the request would be done, were it submitted now."""
        ahead = bisect_left(self.waiting, request.rank, key=_RANK)
        places = ahead + 1 - (self.max_sequences - len(self.running))
        return self.pace.estimate(request.prompt_length, request.params.max_tokens, places)

    def _remember(self, deadline: float, request_id: int) -> None:
        if len(self._deadlines) > 2 * len(self._requests) + 64:
            # Far deadlines of requests that are long done would pile up.
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._requests]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (deadline, request_id))

    def _expire(self, plan: Plan) -> None:
        """Drops those whose deadline passed before they ever ran; a preempted one has an answer to go on with."""
        if not self._deadlines:
            return
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, request_id = heapq.heappop(self._deadlines)
            request = self._requests.get(request_id)
            if request is not None and not request.started:
                plan.expired.append((request_id, self._expect(request)))
                self.abort(request_id)

    def _wait(self, request: Request) -> None:
        insort(self.waiting, request, key=_RANK)
        self.waiting_by_priority[request.priority] += 1

    def _leave(self, position: int) -> None:
        request = self.waiting.pop(position)
        self.waiting_by_priority[request.priority] -= 1
        if not self.waiting_by_priority[request.priority]:
            del self.waiting_by_priority[request.priority]

    def _drop_blocks(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.block_size)
