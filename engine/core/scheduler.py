"""What to compute next: continuous batching without phases.

Each request has tokens wanted and tokens computed, and every step lets the latter catch up with the former under
one token budget. A long prompt is computed over several steps (chunked prefill, https://arxiv.org/abs/2308.16369)
beside the single tokens of requests that decode; a preempted request starts again from nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from engine.core.block_pool import BlockPool
from engine.core.plan import Plan, Progress, Work
from engine.core.request import Request
from engine.errors import ContextLengthExceeded, QueueFull


class Scheduler:
    """``running`` is kept in the order of admission: the oldest request always finds blocks, so all of them end."""

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_sequences: int,
        max_tokens_per_step: int,
        max_model_len: int,
        max_waiting: int,
    ) -> None:
        if max_tokens_per_step < max_sequences:
            raise ValueError("a step must have room for one token of every running request")
        self.pool = pool
        self.block_size = block_size
        self.max_sequences = max_sequences
        self.max_tokens_per_step = max_tokens_per_step
        self.max_model_len = max_model_len
        self.max_waiting = max_waiting
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._requests: dict[int, Request] = {}

    @property
    def idle(self) -> bool:
        return not self._requests

    def submit(self, request: Request) -> None:
        """Raises ``ContextLengthExceeded`` if it could never run, ``QueueFull`` if too many wait already."""
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
        self._requests[request.id] = request
        self.waiting.append(request)

    def abort(self, request_id: int) -> bool:
        """Forget the request and free its blocks; False if there is no such request (any more)."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._drop_blocks(request)
        return True

    def schedule(self) -> Plan:
        plan = Plan()
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

    def update(self, plan: Plan, tokens: Mapping[int, Sequence[int]]) -> list[Progress]:
        """Take in what the worker drew: ``tokens`` has an entry for each work of the plan that samples."""
        gains = []
        for work in plan.work:
            request = self._requests.get(work.request_id)
            if request is None:
                continue
            request.computed = work.end
            if work.sampling is None:
                continue
            gained, finish = [], None
            for token in tokens[work.request_id]:
                gained.append(token)
                finish = request.append(token)
                if finish is not None:
                    break
            gains.append(Progress(request.id, gained, finish))
            if finish is not None:
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

    def _admit(self, plan: Plan, budget: int) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.max_sequences:
            request = self.waiting[0]
            # Blocks for all its tokens at once, and one more for each request that runs: else a newcomer's
            # chunks would crowd out those already here, and be thrown out again by them.
            needed = self._blocks_for(len(request.tokens))
            if needed + len(self.running) > self.pool.available:
                return
            self.waiting.popleft()
            request.blocks = self.pool.allocate(needed)
            self.running.append(request)
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
            self.waiting.appendleft(victim)
            plan.preempted.append(victim.id)
            if victim is request:
                return False
        request.blocks.extend(self.pool.allocate(needed))
        return True

    def _drop_blocks(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []

    def _blocks_for(self, length: int) -> int:
        return -(-length // self.block_size)
