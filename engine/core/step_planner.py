"""Which requests a step computes, and how many tokens of each: those that run go on, then others are let in."""

from __future__ import annotations

from engine.core.admission import Admission
from engine.core.block_tables import BlockTables
from engine.core.plan import Plan, ScheduledRequest
from engine.core.preemption import Preemption
from engine.core.prefill_budget import Parts
from engine.core.request import Request
from engine.core.request_queues import RequestQueues


class StepPlanner:
    def __init__(
        self,
        queues: RequestQueues,
        tables: BlockTables,
        admission: Admission,
        preemption: Preemption,
        *,
        chunked: bool,
        drafting: bool,
    ) -> None:
        """``chunked``: prompts may be computed over several steps. ``drafting``: requests may hold blocks for draft
        tokens, which are taken back where need be."""
        self._queues = queues
        self._tables = tables
        self._admission = admission
        self._preemption = preemption
        self._chunked = chunked
        self._drafting = drafting

    def go_on(self, plan: Plan, budget: int, prompts: int, parts: Parts, most: int) -> tuple[int, int]:
        """One token for each running request that decodes, its part for each that has a prompt to compute. Returns
        what is left of ``budget`` and of ``prompts``. ``most``: requests in the plan."""
        running, ahead, tables = self._queues.running, plan.ahead, self._tables
        block_size = tables.block_size
        must_wait = self._queues.steps.must_wait
        position = 0
        while position < len(running) and len(plan.requests) < most:
            request = running[position]
            position += 1
            start = request.computed
            count = len(request.tokens) - start
            if ahead and request.in_flight:
                if must_wait(request):
                    continue
                start += request.in_flight
                count += request.pending - request.in_flight
            prefilling = count > 1
            if request.stops:
                tables.reach(request, start)
            if prefilling:
                count = parts.tokens[request.id]
                if count == 0:
                    continue
                if request.stops:
                    count = min(count, request.stops[0] - start)
                prompts -= count
            length = start + count
            if (
                length > len(request.blocks) * block_size
                or request.forked
                or (request.others and tables.short(request, length))
            ) and not self._grow(request, length, plan, position - 1):
                position -= not ahead
                continue
            if prefilling:
                request.credit += count
            plan.requests.append(ScheduledRequest.of(request, count))
            budget -= count
        return budget, prompts

    def let_in(self, plan: Plan, tokens: int, parts: Parts, most: int) -> int:
        """Admits those that have a part, then others in their order as long as the first one fits, with ``tokens`` for
        their prompts. Returns the tokens used."""
        left = tokens
        for request in parts.newcomers:
            if len(plan.requests) < most and self._admission.can_admit(request):
                left -= self._admit(request, plan, min(parts.tokens[request.id], left))
        while left > 0 and self._queues.waiting and len(plan.requests) < most:
            following = self._admission.next()
            if following is None or not self._admission.can_admit(following):
                break
            if not self._chunked and following.missing > left:
                break
            left -= self._admit(following, plan, left)
        return tokens - left

    def _admit(self, request: Request, plan: Plan, most: int) -> int:
        """Returns how many of its tokens are computed: at most ``most``, and one at least."""
        self._admission.admit(request, plan)
        count = min(request.missing, most)
        if request.stops:
            count = min(count, request.stops[0] - request.computed)
        request.credit += count
        plan.requests.append(ScheduledRequest.of(request, count))
        return count

    def _grow(self, request: Request, length: int, plan: Plan, position: int) -> bool:
        """Blocks for ``length`` tokens; False if ``request``, at ``position`` of the running ones, was preempted or,
        in a plan made ahead, waits for others to be."""
        while not self._tables.grow(request, length, plan.copies):
            if self._drafting and self._tables.trim(self._queues.running):
                continue
            if plan.ahead:
                plan.stalled = True
                return False
            if self._preemption.preempt(plan, position) is request:
                return False
        return True
