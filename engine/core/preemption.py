"""Which running request gives way: to a waiting one that goes before it, or when blocks run out."""

from __future__ import annotations

from bisect import bisect_left

from engine.core.admission import Admission
from engine.core.block_tables import BlockTables
from engine.core.loading import Loading
from engine.core.plan import Plan
from engine.core.request import Request
from engine.core.request_queues import RequestQueues


class Preemption:
    def __init__(
        self,
        queues: RequestQueues,
        tables: BlockTables,
        admission: Admission,
        loading: Loading | None = None,
        *,
        priority_ageing: float,
    ) -> None:
        """``loading``: where there are further tiers of memory.
        ``priority_ageing``: seconds of waiting worth one of priority, and so the distance of two classes in rank."""
        self._queues = queues
        self._tables = tables
        self._admission = admission
        self._loading = loading
        self._priority_ageing = priority_ageing

    def make_room(self, plan: Plan) -> None:
        """Preempts for the next waiting request, and admits it, where it goes before running ones; in a plan made ahead
        it is only noted that this is to be done."""
        if not self._queues.waiting or not self._queues.running:
            return
        if len(self._queues.tenants) > 1:
            self._make_room_by_share(plan)
        else:
            self._make_room_by_class(plan)

    def preempt(self, plan: Plan, position: int = 0) -> Request:
        """The last running request, or the last of the tenant that is furthest above its share.

        Those before ``position`` are scheduled already, and left alone where tenants share.
        """
        victim = self._queues.running[-1]
        if len(self._queues.tenants) > 1:
            candidates = self._queues.running[position:]
            victim = self._queues.shares().victim(candidates, victim) or victim
        self._requeue(victim, plan)
        return victim

    def _make_room_by_share(self, plan: Plan) -> None:
        """A tenant below its share takes over slots of those above theirs; a request a whole class ahead also those of
        lower classes, the last first, but not of tenants within their shares if its own is above."""
        head = self._admission.next()
        if head is None or self._admission.can_admit(head):
            return
        victims: list[Request] = []
        shares, left = self._queues.shares(), list(self._queues.running)
        if shares.within_share(head):
            while (victim := shares.victim(left, head)) is not None:
                shares.remove(victim)
                left.remove(victim)
                victims.append(victim)
        bound = head.rank[0] + self._priority_ageing
        for request in reversed(self._queues.running):
            protected = (
                request.priority >= head.priority
                and not shares.within_share(head)
                and shares.excess(request.tenant) <= 0
            )
            if request.rank[0] >= bound and request in left and not protected:
                shares.remove(request)
                left.remove(request)
                victims.append(request)
        within_reach = self._tables.pool.available + sum(victim.held for victim in victims)
        if not victims or not self._tables.fits(head, within_reach - self._tables.groups * len(left)):
            return
        if self._loads(head):
            return
        if plan.ahead:
            plan.stalled = True
            return
        for victim in victims:
            self._requeue(victim, plan)
            if self._admission.can_admit(head):
                self._admission.admit(head, plan)
                return

    def _make_room_by_class(self, plan: Plan) -> None:
        """A request a whole class ahead takes over the slot or the blocks of the last running ones."""
        running, head = self._queues.running, self._admission.next()
        if head is None:
            return
        bound = head.rank[0] + self._priority_ageing
        if running[-1].rank[0] < bound or self._admission.can_admit(head):
            return
        lower = len(running) - bisect_left(running, bound, key=lambda request: request.rank[0])
        within_reach = self._tables.pool.available + sum(request.held for request in running[-lower:])
        if not self._tables.fits(head, within_reach - self._tables.groups * (len(running) - lower)):
            return
        if self._loads(head):
            return
        if plan.ahead:
            plan.stalled = True
            return
        for _ in range(lower):
            self.preempt(plan)
            if self._admission.can_admit(head):
                # At once, before the requests that go on take the blocks for this step.
                self._admission.admit(head, plan)
                return

    def _loads(self, head: Request) -> bool:
        """Whether it waits for its blocks first: nobody gives way meanwhile."""
        return self._loading is not None and self._loading.begin(head)

    def _requeue(self, victim: Request, plan: Plan) -> None:
        self._queues.requeue(victim)
        plan.preempted.append(victim.id)
