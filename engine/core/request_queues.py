"""Every open request, in exactly one of running, waiting, loading and parked."""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable

from engine.core.block_tables import BlockTables
from engine.core.request import Request
from engine.core.shares import Shares
from engine.core.state_slots import NO_SLOT
from engine.core.steps_in_flight import StepsInFlight
from engine.core.waiting_queue import RANK, WaitingQueue


class RequestQueues:
    """A running request has one of the batch's ``max_num_seqs`` slots, and blocks; the others hold nothing."""

    def __init__(self, tables: BlockTables, max_num_seqs: int, *, separate: bool = False) -> None:
        """``separate``: as ``StepsInFlight`` has it."""
        self.max_num_seqs = max_num_seqs
        self.running: list[Request] = []
        """By rank."""
        self.waiting = WaitingQueue()
        self.parked: dict[int, Request] = {}
        """By id: those whose client does not read its tokens. They go on when they are unparked."""
        self.loading: list[Request] = []
        """Those that wait for blocks from another tier of memory: then they are ``loaded``."""
        self.by_id: dict[int, Request] = {}
        self.tenants: Counter[str] = Counter()
        """Open requests of each tenant, parked ones not counted."""
        self.ended: list[int] = []
        """Those that finished or were aborted, and no plan has said so yet."""
        self.steps = StepsInFlight(tables, separate=separate)
        self._tables = tables

    @property
    def free_slots(self) -> int:
        return self.max_num_seqs - len(self.running)

    def open(self, request: Request) -> None:
        """Registers it. The caller puts it into a queue."""
        self.by_id[request.id] = request
        self.tenants[request.tenant] += 1

    def forget(self, request: Request) -> None:
        """Unregisters it. Called before it leaves its queue or gets another id."""
        del self.by_id[request.id]
        if request.id not in self.parked:
            self.tenants -= Counter((request.tenant,))

    def run(self, request: Request) -> None:
        insort(self.running, request, key=RANK)

    def remove(self, request: Request) -> None:
        """Out of running, with its blocks given back, or out of waiting or loading."""
        position = bisect_left(self.running, request.rank, key=RANK)
        if position < len(self.running) and self.running[position] is request:
            del self.running[position]
            self.steps.close(request)
        elif request in self.loading:
            self.loading.remove(request)
        else:
            self.waiting.remove(request)

    def load(self, request: Request) -> None:
        """From waiting to loading."""
        self.waiting.remove(request)
        self.loading.append(request)

    def loaded(self, request: Request) -> None:
        """From loading to waiting, at its place."""
        self.loading.remove(request)
        self.waiting.add(request)

    def requeue(self, request: Request) -> None:
        """From running to waiting: its blocks are given back, its tokens kept."""
        self.remove(request)
        request.draft_tokens = []
        self.waiting.add(request)

    def park(self, request: Request) -> None:
        """Out of running or waiting: at once, or when it is out of the steps in flight."""
        if request in self.steps:
            self.steps.parking[request.id] = request
            return
        self.remove(request)
        request.draft_tokens = []
        request.kind = None
        self.parked[request.id] = request
        self.tenants -= Counter((request.tenant,))

    def spoil(self, requests: Iterable[Request]) -> None:
        """Those that run start again, as the states that layers keep of them are of no use any more: at once, or when
        they are out of the steps in flight."""
        self.steps.spoiled += [request for request in requests if request.state != NO_SLOT]
        self.settle()

    def settle(self) -> None:
        """Those that were to leave running when they are out of all steps, and are by now."""
        for request in list(self.steps.parking.values()):
            if request not in self.steps:
                del self.steps.parking[request.id]
                if self.by_id.get(request.id) is request:
                    self.park(request)
        if self.steps.spoiled:
            for request in self.steps.spoiled:
                # One that has ended, or was parked, has no state any more.
                if request not in self.steps and request.state != NO_SLOT:
                    request.in_flight = request.pending = request.unverified = 0
                    self.requeue(request)
            self.steps.spoiled = [request for request in self.steps.spoiled if request.state != NO_SLOT]

    def unpark(self, request_id: int) -> bool:
        """False if it is not parked, nor about to be."""
        if self.steps.parking.pop(request_id, None) is not None:
            return True
        request = self.parked.pop(request_id, None)
        if request is None:
            return False
        self.tenants[request.tenant] += 1
        self.waiting.add(request)
        return True

    def shares(self) -> Shares:
        return Shares(
            self.running, self.waiting, max_num_seqs=self.max_num_seqs, blocks=self._tables.pool.total
        )

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` unless the queues agree about who holds and wants what."""
        resting = [*self.waiting, *self.loading, *self.parked.values()]
        if any(request.held or request.computed for request in resting):
            raise AssertionError("a request that is not running holds blocks")
        if any(request in self.steps for request in resting):
            raise AssertionError("a request that is not running is part of a step in flight")
        active = [*self.running, *self.waiting, *self.loading]
        if sorted([*(request.id for request in active), *self.parked]) != sorted(self.by_id):
            raise AssertionError("a request is not in exactly one of running, waiting, loading and parked")
        if +self.tenants != Counter(request.tenant for request in active):
            raise AssertionError("the count of tenants' requests is wrong")
        if len(self.running) > self.max_num_seqs:
            raise AssertionError("more requests are running than the batch has slots")
        for queue in (self.running, self.waiting):
            if any(one.rank >= following.rank for one, following in itertools.pairwise(queue)):
                raise AssertionError("a queue is out of order")
        if +self.waiting.by_priority != Counter(request.priority for request in self.waiting):
            raise AssertionError("the count of waiting requests by priority is wrong")
