"""A backend's slots and the queue for them: which request is next.

A request takes a slot for each answer that it asks for: ``n`` answers are ``n`` sequences to the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

from gateway.admission.adaptive_limit import AdaptiveLimit
from gateway.admission.capacity import Capacity
from gateway.admission.fair_queue import FairQueue, QueueTerms
from gateway.admission.fair_shares import FairShares, Flow
from gateway.admission.idle_lines import IdleLines
from gateway.admission.prediction_errors import PredictionErrors
from gateway.admission.shared_slots import SharedSlots
from gateway.admission.slot_lease import SlotLease
from gateway.admission.speed import SpeedEstimator
from gateway.admission.wait_chances import WaitChances

ENOUGH = 32
"""Answers of a quiet backend after which another teaches little."""


class Pool(Capacity):
    """One backend's capacity, and who has it and waits for it. It outlives policies, whose limits apply to what is in
    flight."""

    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float] = time.perf_counter,
        shared: Callable[[], SharedSlots] | None = None,
    ) -> None:
        """``shared`` makes the slots that this worker shares with others."""
        super().__init__(shared)
        self.name = name
        self.clock = clock
        self.queue: FairQueue[SlotLease] = FairQueue()
        self.leases: dict[SlotLease, None] = {}
        """Those granted, in that order."""
        self.lines = IdleLines(self)
        self.speed = SpeedEstimator(clock)
        self.chances = WaitChances()
        self.services, self.totals = PredictionErrors(), PredictionErrors()
        """Of requests with a deadline: from dispatch to the end, and from arrival."""
        self._adaptive: AdaptiveLimit | None = None
        """Where the policy sets no limit."""
        self._shares: FairShares | None = None
        """Of a learnt limit, once it was reached."""
        self._lessons = 0

    def limit(
        self, slots: int | None, tokens: int | None, *, adaptive: bool = False, in_all: int | None = None
    ) -> None:
        """Set the limits. What is in flight beyond a smaller one may finish. ``adaptive``: slots by latency.

        ``in_all`` are the slots of all workers together, where they share them.
        """
        if self.share_slots(in_all):
            self.grant_next()
        self._adaptive = (self._adaptive or AdaptiveLimit(self.clock)) if adaptive else None
        self._shares = None
        if self._adaptive is not None:
            slots = self._adaptive.limit
        if (slots, tokens) == (self._slots, self.max_tokens):
            return
        self._slots, self.max_tokens = slots, tokens
        self.limited = slots is not None or tokens is not None
        self.speed.reset_throughput()
        self.grant_next()

    def quiet_saturation(self, answers: int) -> float | None:
        """How full the backend is where that is no matter: it has a learnt limit alone, half of which would not be in
        use even with so many more, and nobody waits. Else None."""
        slots = self._slots
        if (
            self._adaptive is None
            or slots is None
            or 2 * (self.in_flight + answers) > slots
            or self.queue.size
            or self.max_tokens is not None
            or self.speed.engine is not None
        ):
            return None
        return (self.in_flight - self.reclaimable_slots) / slots

    def wants_lesson(self) -> bool:
        """Whether something is to be learned of one more answer, where there is quiet: of each at first, and while
        there is some load; then of every fourth, as what a backend can do without load is known, and changes slowly.
        """
        self._lessons += 1
        return self._lessons <= ENOUGH or self.in_flight >= ENOUGH or self._lessons % 4 == 0

    def acquire_at_once(
        self, tier: str, terms: QueueTerms, tenant: str, tokens: int, answers: int
    ) -> SlotLease:
        """A lease, where ``quiet_saturation`` has found room for it."""
        lease = SlotLease(self, tokens, terms, answers, tier, tenant)
        self._grant(lease)
        return lease

    def acquire(self, tier: str, terms: QueueTerms, tenant: str, tokens: int, answers: int = 1) -> SlotLease:
        """A lease, granted at once where there is capacity and nobody waits; otherwise queued."""
        lease = SlotLease(self, tokens, terms, answers, tier, tenant)
        at_once = not self.limited or (not self.queue.size and self.fits_tier(tokens, terms, answers))
        if not at_once or not self._grant(lease):
            lease.enqueue(self.queue, self.queue.push(tier, terms, tenant, tokens, self.clock(), lease))
            self.grant_next()
        return lease

    def acquire_idle(
        self, tenant: str, tokens: int, answers: int, *, max_utilization: float, reclaim: Callable[[], None]
    ) -> SlotLease:
        """A lease on capacity that nobody else wants: granted once the backend would be no fuller than
        ``max_utilization`` with it, and asked back where others come to wait."""
        terms = QueueTerms(max_utilization=max_utilization)
        lease = SlotLease(self, tokens, terms, answers, tenant=tenant, reclaim=reclaim)
        queue = self.lines.queue
        lease.enqueue(queue, queue.push("", terms, tenant, tokens, self.clock(), lease))
        self.grant_next()
        return lease

    def take_back(self, lease: SlotLease) -> None:
        """For leases alone, as the next: all of it."""
        self.leases.pop(lease, None)
        self._free(lease, lease.unfinished)
        self.tokens_in_flight -= lease.tokens
        if lease.reclaim is not None:
            self.lines.ended(lease)
        self.grant_next()

    def take_back_one(self, lease: SlotLease) -> None:
        self._free(lease, 1)
        self.lines.count()
        self.grant_next()

    def update_terms(self, terms_of: Callable[[str], QueueTerms]) -> None:
        """Apply other terms, by tier, to all that wait."""
        self.queue.update_terms(terms_of)
        self.grant_next()

    def on_waiting(self) -> None:
        """A request has waited for a while: an adaptive limit may grow, another worker may have ended."""
        if self.shared is not None or self.lines.queue.size:
            self.grant_next()
        if self._adaptive is not None and self.queue and self._adaptive.grow_in_silence():
            self._slots = self._adaptive.limit
            self.grant_next()

    def on_first_token(
        self, lease: SlotLease, kind: Hashable, seconds: float, *, quick: bool = False
    ) -> None:
        """An answer to a request of this kind began after ``seconds``; ``quick``: too soon for any queue."""
        adaptive, sent = self._adaptive, lease.granted_at
        if adaptive is None or sent is None:
            return
        if adaptive.learn(kind, seconds, sent, self.in_flight, lease.tenant, quick=quick):
            self._slots = adaptive.limit
            self.grant_next()

    def grant_next(self) -> None:
        """Grant leases from the queue while there is capacity."""
        if self.queue.size:
            self._grant_queued()
        if self.shared is not None and self.shared.set_waiting(len(self.queue)):
            self._grant_queued()  # a slot may have become free just before the others could see that this one waits
            self.shared.set_waiting(len(self.queue))
            if self.queue.size:
                self.shared.call_in()
        if self.lines.leases:
            self.lines.ask_back(self._missing() if self.queue.size else 0)
        if self.lines.queue.size:
            self._grant_idle()

    def _grant_queued(self) -> None:
        while self.queue.size:
            now = self.clock()
            head = self.queue.head(now, self.utilization)
            if head is None or not self.fits(head.tokens, head.item.answers):
                self._grant_shares(now)
                return
            if not self._grant(head.item):
                return
            self.queue.take(head, now)

    def _grant_shares(self, now: float) -> None:
        """To those that have less than their share of a learnt limit, whoever holds the rest."""
        if self._adaptive is None:
            return
        for waiter in list(self.queue.heads(now)):
            waiters = waiter.tenant.waiters
            while waiters and self._is_due(
                waiters[0].item.flow, waiters[0].item.terms, waiters[0].item.answers
            ):
                self._grant(waiters[0].item)
                self.queue.take_early(waiters[0])

    def _grant_idle(self) -> None:
        """Nobody else waits, here or at other workers, and room is left."""
        lines, engine = self.lines, self.speed.engine
        while lines.queue.size and not self.queue.size:
            now = self.clock()
            head = lines.queue.head(now)
            if head is None or not lines.may_start(head.item, engine) or not self._grant(head.item):
                return
            lines.started(head, now)

    def _grant(self, lease: SlotLease) -> bool:
        """Whether there were slots; another worker may have taken the last one."""
        if self.shared is not None and not self.shared.take(lease.answers):
            return False
        self.in_flight += lease.answers
        self.tokens_in_flight += lease.tokens
        self.leases[lease] = None
        if self._shares is not None and lease.reclaim is None:
            self._shares.add(lease.flow, lease.answers)
        lease.beside_lines = self.reclaimable_slots > 0
        lease.grant(self.clock())
        return True

    def _free(self, lease: SlotLease, slots: int) -> None:
        self.in_flight -= slots
        if self._shares is not None and lease.reclaim is None:
            self._shares.add(lease.flow, -slots)
            if self._slots is None or 2 * self.in_flight < self._slots:
                self._shares = None
        if self.shared is not None:
            self.shared.give_back(slots)

    def _missing(self) -> int:
        """Slots that requests wait for which could have them: those that wait for their tier's turn could not."""
        utilization = self.utilization
        head = self.queue.head(self.clock(), utilization)
        if head is None:
            return 0
        wanted = sum(
            waiter.item.answers
            for waiter in self.queue.waiters()
            if (most := waiter.tier_queue.terms.max_utilization) >= 1.0 or utilization < most
        )
        free = 0 if self.slots is None else max(0, self.slots - self.in_flight)
        return max(wanted - free, head.item.answers - free, 1)

    def has_capacity(
        self,
        tokens: int,
        terms: QueueTerms = QueueTerms(),  # noqa: B008  (it is frozen)
        answers: int = 1,
        flow: Flow | None = None,
    ) -> bool:
        """Whether a request would start at once. Waiting requests that may not use this capacity do not count, nor
        does what is asked back for it. ``flow`` has its share of a learnt limit."""
        if not self.limited:
            return True
        if self.fits_tier(tokens, terms, answers, reclaiming=True) and (
            not self.queue.size or self.queue.head(self.clock(), self.utilization) is None
        ):
            return True
        return (
            flow is not None
            and not self.queue.waiters_of(flow.tier, flow.tenant)
            and self._is_due(flow, terms, answers)
        )

    def _is_due(self, flow: Flow, terms: QueueTerms, answers: int) -> bool:
        """Whether a tenant may have so many more slots because its share of a learnt limit is not in use."""
        slots = self._slots
        if self._adaptive is None or slots is None:
            return False
        shares = self._fair_shares()
        if terms.max_utilization < 1.0 and shares.utilization(flow, slots) >= terms.max_utilization:
            return False
        return shares.allow(flow, answers, limit=slots, in_flight=self.in_flight)

    def _fair_shares(self) -> FairShares:
        if self._shares is None:
            self._shares = FairShares(lease for lease in self.leases if lease.reclaim is None)
        return self._shares

    def saturation_for(self, flow: Flow) -> float:
        """Without what others hold beyond their shares of a learnt limit."""
        slots = self._slots
        if self._adaptive is None or slots is None or 2 * self.in_flight < slots:
            return self.saturation
        return self._fair_shares().utilization(flow, slots)

    @property
    def saturation(self) -> float:
        """0 to 1: the fullest of slots, tokens, and the engine's own figure where it is known."""
        engine = self.speed.engine
        utilization = self.utilization
        if engine is None:
            return utilization
        lines = self.reclaimable_slots / engine.slots if engine.slots else 0.0
        return max(utilization, engine.saturation - lines)

    @property
    def load(self) -> int:
        """Answers in flight, and queued requests."""
        return self.in_flight + len(self.queue)

    def expected_wait(self, ahead: int, tokens: int, terms: QueueTerms, answers: int = 1) -> float | None:
        """Seconds until a request is granted that has ``ahead`` tokens before it."""
        wait = self.speed.expected_wait(ahead + self.tokens_to_finish(tokens, terms.max_utilization, answers))
        return None if wait is None else wait / max(terms.max_utilization, 0.01)

    def expected_wait_of_new(
        self, tier: str, terms: QueueTerms, tenant: str, tokens: int, answers: int = 1
    ) -> float | None:
        if self.has_capacity(tokens, terms, answers, Flow(tier, tenant, terms.weight)):
            return 0.0
        ahead = self.queue.tokens_ahead_of_new(tier, terms, tenant, tokens)
        return self.expected_wait(ahead, tokens, terms, answers)

    def drain_time(self, to: float) -> float | None:
        """Seconds until the queue is empty and saturation down to ``to``, if nothing else arrives."""
        excess = max(0.0, self.saturation - to) * self.tokens_in_flight
        return self.speed.expected_wait(self.queue.tokens + excess)
