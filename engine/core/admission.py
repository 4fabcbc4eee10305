"""Which waiting request runs next, and whether there is a batch slot and enough blocks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.core.adapter_slots import AdapterSlots
from engine.core.block_tables import BlockTables
from engine.core.plan import Plan
from engine.core.request import Request
from engine.core.request_queues import RequestQueues


class Admission:
    def __init__(
        self,
        queues: RequestQueues,
        tables: BlockTables,
        *,
        drafting: bool,
        adapters: AdapterSlots | None = None,
    ) -> None:
        """``drafting``: running requests may hold blocks for draft tokens, which are taken back where need be.
        ``adapters``: where their slots may be fewer than they are."""
        self._queues = queues
        self._tables = tables
        self._drafting = drafting
        self._adapters = adapters

    def next(self) -> Request | None:
        """The first that waits, or the first of a tenant that has less of its share and is of no lower priority; those
        left out that wait for a slot for their adapter. ``None`` if no other waits."""
        head = next((request for request in self._queues.waiting if not self.blocked(request)), None)
        if head is None or len(self._queues.tenants) < 2:
            return head
        shares, firsts = self._queues.shares(), dict[str, Request]()
        for request in self._queues.waiting:
            if request.priority >= head.priority and not self.blocked(request):
                firsts.setdefault(request.tenant, request)
        poorest = min(firsts.values(), key=lambda request: shares.excess(request.tenant))
        return poorest if shares.within_share(poorest) else head

    def blocked(self, request: Request) -> bool:
        """Whether it waits for a slot for its adapter."""
        return self._adapters is not None and not self._adapters.admits(request.adapter)

    def can_admit(self, request: Request) -> bool:
        if self._slots <= 0 or self.blocked(request):
            return False
        return self._fits(request) or (
            self._drafting and self._tables.trim(self._queues.running) and self._fits(request)
        )

    def admit(self, request: Request, plan: Plan) -> None:
        """From waiting to running, with blocks for all its tokens."""
        self._queues.waiting.remove(request)
        self._tables.open(request, plan.copies)
        hits, request.elsewhere = max(0, request.computed - request.elsewhere), 0
        plan.hit_tokens += hits
        self._queues.run(request)
        if self._adapters is not None and request.adapter is not None:
            self._adapters.take(request.adapter, request.weight)
        if not request.started:
            request.started = True
            request.cached = hits
            if self._tables.prefixes is not None and not request.scoring:
                plan.prefix_queries += request.prompt_length
                plan.prefix_hits += hits
            plan.admitted.append(request.id)

    def beside(self, requests: Iterable[Request], heads: Sequence[Request]) -> list[Request]:
        """Those of ``requests``, which wait, that could be admitted as well, in this order, without taking from
        ``heads`` the slots and the blocks that they could have."""
        queues, tables = self._queues, self._tables
        found: list[Request] = []
        slots = self._slots - len(heads)
        blocks = tables.pool.available - tables.groups * (len(queues.running) + len(heads))
        blocks -= sum(tables.demand.of(len(head.tokens)) for head in heads)
        shares = queues.shares() if len({request.tenant for request in queues.waiting}) > 1 else None
        for request in requests:
            if slots <= 0 or blocks <= 0:
                break
            if self.blocked(request):
                continue
            if (shares is None or shares.within_share(request)) and tables.fits(request, blocks):
                found.append(request)
                slots, blocks = slots - 1, blocks - tables.groups - tables.demand.of(len(request.tokens))
                if shares is not None:
                    shares.add(request)
        return found

    @property
    def _slots(self) -> int:
        """Requests for which there is a slot of the batch and, where layers keep a state, one of the state cache, which
        those that ended in a step in flight still hold."""
        free, states = self._queues.free_slots, self._tables.states
        return free if states is None else min(free, states.free)

    def _fits(self, request: Request) -> bool:
        # One block a group is left for each running request: otherwise chunks of a newcomer would preempt them, and
        # be preempted by them in turn.
        available = self._tables.pool.available - self._tables.groups * len(self._queues.running)
        return self._tables.fits(request, available)
