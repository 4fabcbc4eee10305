"""Which requests are let in: those that fit, can wait, and are likely to be done in time; and whose time has passed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from engine.core.block_tables import BlockTables
from engine.core.context_caps import context_limit
from engine.core.deadlines import Deadlines
from engine.core.forks import Forks
from engine.core.latency_estimator import Kind, LatencyEstimator
from engine.core.request import Request
from engine.core.request_queues import RequestQueues
from engine.errors import ContextLengthExceeded, DeadlineUnreachable, QueueFull


class Intake:
    def __init__(
        self,
        queues: RequestQueues,
        tables: BlockTables,
        forks: Forks,
        *,
        max_tokens: int,
        max_waiting: int,
        context_caps: Sequence[tuple[int, int]],
        priority_ageing: float,
        clock: Callable[[], float],
    ) -> None:
        """``max_tokens``: of any request's prompt and answer together."""
        self.max_waiting = max_waiting
        self.latency = LatencyEstimator(queues.max_num_seqs)
        self.deadlines = Deadlines()
        self._queues = queues
        self._tables = tables
        self._forks = forks
        self._max_tokens = max_tokens
        self._context_caps = sorted(context_caps)
        self._priority_ageing = priority_ageing
        self._clock = clock
        self._arrivals = itertools.count()

    @property
    def num_waiting(self) -> int:
        """Waiting sequences, those included that begin when their siblings' prompt is computed."""
        return len(self._queues.waiting) + len(self._queues.loading) + len(self._forks)

    def context_limit(self, priority: int) -> int:
        """Most tokens of a request's prompt and answer together."""
        return context_limit(self._max_tokens, self._context_caps, priority)

    def submit(self, request: Request) -> None:
        """Raises ``ContextLengthExceeded`` if it could never run, ``QueueFull`` if too many wait already, and
        ``DeadlineUnreachable`` if it is hardly going to be done in time."""
        queues = self._queues
        limit = self.context_limit(request.priority)
        if request.longest + 1 > limit:
            asked = request.longest + 1 - request.prompt_length
            raise ContextLengthExceeded(request.prompt_length, asked, limit=limit)
        group = 1 + len(request.siblings)
        # A group larger than the bound is accepted where it has the engine to itself.
        capacity = queues.free_slots + self.max_waiting
        if request.tenant and queues.tenants[request.tenant]:
            # An eighth is reserved for tenants without open requests.
            capacity -= self.max_waiting // 8
        if queues.by_id and self.num_waiting + group > capacity:
            raise QueueFull(self.num_waiting)
        request.rank = (request.submitted - self._priority_ageing * request.priority, next(self._arrivals))
        for _ in request.siblings:
            next(self._arrivals)
        request.kind, request.estimated = self._estimate(request)
        if request.deadline is not None:
            needed = self.latency.soonest(request.kind, request.estimated)
            allowed = request.deadline - self._clock()
            if needed > allowed or allowed <= 0:
                if allowed > 0:
                    self.latency.doubt(request.kind)
                raise DeadlineUnreachable(needed, allowed)
            self.watch(request)
        queues.open(request)
        self._forks.add(request)
        queues.waiting.add(request)

    def watch(self, request: Request) -> None:
        """Until its deadline, if it has one."""
        if request.deadline is not None:
            self.deadlines.add(request.deadline, request.id, self._queues.by_id.keys())

    def expired(self) -> Iterator[tuple[Request, float]]:
        """Requests whose deadline passed before they ever ran, and the seconds that each would still need. The caller
        drops them. A preempted one has begun its answer."""
        if not self.deadlines:
            return
        now = self._clock()
        while (request_id := self.deadlines.pop(now)) is not None:
            request = self._queues.by_id.get(request_id)
            if request is not None and not request.started:
                yield request, self._estimate(request)[1]

    def learn(self, request: Request) -> None:
        """From one that is done."""
        self.latency.finish(request.generated)
        if request.kind is not None:
            self.latency.compare(request.kind, request.estimated, self._clock() - request.submitted)

    def _estimate(self, request: Request) -> tuple[Kind, float]:
        """Its kind, and the seconds that it takes, were it submitted now."""
        ahead = self._queues.waiting.ahead(request) + 1 - self._queues.free_slots
        # The look-up in the prefix cache also tells whom its prompt may overtake.
        missing = request.prompt_length - self._tables.hit_tokens(request)
        seconds = self.latency.estimate(missing, request.params.max_tokens, ahead)
        return self.latency.kind(request.tenant, ahead), seconds
