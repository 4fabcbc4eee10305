"""Lines of batches at a backend: they get what nobody else wants, and give it back where others come to wait."""

from __future__ import annotations

from gateway.admission.capacity import Capacity
from gateway.admission.fair_queue import FairQueue, Waiter
from gateway.admission.idle_share import IdleShare
from gateway.admission.slot_lease import SlotLease
from gateway.engine_load import EngineLoad


class IdleLines:
    """One backend's: those that wait for idle capacity, which are in no other figure, and those that have some."""

    def __init__(self, capacity: Capacity) -> None:
        self.queue: FairQueue[SlotLease] = FairQueue()
        self.leases: dict[SlotLease, None] = {}
        """Those granted, in that order. They can be asked back."""
        self.share = IdleShare()
        self._capacity = capacity

    def may_start(self, lease: SlotLease, engine: EngineLoad | None) -> bool:
        """Whether room is left, here and at other workers. ``engine`` has the engine's own figures."""
        capacity = self._capacity
        if not capacity.fits(lease.tokens, lease.answers):
            return False
        most = lease.terms.max_utilization * self.share.value
        shared = capacity.shared
        if shared is not None and shared.wanted_by_others:
            return False
        if engine is not None and engine.saturation >= most and (engine.waiting or engine.running):
            return False
        slots = capacity.slots if shared is None else shared.limit
        if slots is None and engine is not None and engine.slots:
            slots = engine.slots
        in_use = capacity.in_flight if shared is None else shared.in_use
        if slots is not None and in_use and in_use + lease.answers > int(slots * most):
            return False
        tokens = capacity.max_tokens
        if tokens is not None and capacity.tokens_in_flight:
            return capacity.tokens_in_flight + lease.tokens <= tokens * most
        return True

    def started(self, waiter: Waiter[SlotLease], now: float) -> None:
        """The one that waited has been granted."""
        self.queue.take(waiter, now)
        self.leases[waiter.item] = None
        self._capacity.reclaimable_tokens += waiter.item.tokens
        self.count()

    def ended(self, lease: SlotLease) -> None:
        if lease in self.leases:
            del self.leases[lease]
            self._capacity.reclaimable_tokens -= lease.tokens
            self.count()

    def count(self) -> None:
        """Some of their answers have begun or ended."""
        capacity = self._capacity
        if self.leases or capacity.reclaimable_slots:
            capacity.reclaimable_slots = sum(lease.unfinished for lease in self.leases)
            if capacity.shared is not None:
                capacity.shared.set_reclaimable(capacity.reclaimable_slots)

    def ask_back(self, slots: int) -> None:
        """So many for those who wait here, and what other workers are entitled to, from those that came last."""
        missing, shared = slots, self._capacity.shared
        if shared is not None and (wanted := shared.wanted_by_others):
            missing += max(0, wanted - (shared.limit - shared.in_use))
        missing -= sum(lease.unfinished for lease in self.leases if lease.asked_back)
        for lease in reversed([one for one in self.leases if not one.asked_back]):
            if missing <= 0:
                return
            missing -= lease.unfinished
            lease.asked_back = True
            if lease.reclaim is not None:
                lease.reclaim()
