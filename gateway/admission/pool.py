"""A backend's slots: how many answers, and how many tokens, may be in flight at once, and which request is next.

A request takes a slot for each answer that it asks for: ``n`` answers are ``n`` sequences to the server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import ceil

from gateway.admission.adaptive_limit import SILENCE, AdaptiveLimit
from gateway.admission.fair_queue import FairQueue, QueueTerms, Waiter
from gateway.admission.fair_shares import FairShares, Flow
from gateway.admission.idle_share import IdleShare
from gateway.admission.shared_slots import SharedSlots
from gateway.admission.speed import SpeedEstimator

LOOK_FOR_IDLE = 0.25
"""Seconds between two looks for idle capacity, of which other workers and engines do not tell."""


@dataclass(slots=True, eq=False)
class SlotLease:
    """A request's slots at a backend, or its position in the queue for them. To be released, whatever happens."""

    _pool: Pool
    tokens: int
    terms: QueueTerms
    answers: int = 1
    """It takes a slot for each."""
    tier: str = ""
    tenant: str = ""
    service: float | None = None
    """Expected seconds from dispatch to the last token; None where nothing is known yet."""
    granted_at: float | None = None
    """On the pool's clock."""
    reclaim: Callable[[], None] | None = None
    """Asks the holder to give it back; None for what nobody may ask back."""
    asked_back: bool = False
    beside_lines: bool = False
    """What can be asked back was in flight when it was granted."""
    _waiter: Waiter[SlotLease] | None = None
    _queued: bool = False
    """It was."""
    _wakeup: asyncio.Future[None] | None = None
    _released: bool = False
    _finished: int = 0

    @property
    def is_granted(self) -> bool:
        return self.granted_at is not None

    @property
    def position(self) -> int:
        """In the queue, 1 being next; 0 once granted."""
        return self._pool.queue_of(self).position(self._waiter) if self._waiter is not None else 0

    @property
    def expected_wait(self) -> float | None:
        """Seconds; None where nothing is known yet."""
        if self._waiter is None:
            return 0.0
        return self._pool.expected_wait(
            self._pool.queue.tokens_ahead(self._waiter), self.tokens, self.terms, self.answers
        )

    async def wait(self, seconds: float) -> bool:
        """Wait so long at most; whether it is granted."""
        if not self.is_granted:
            loop = asyncio.get_running_loop()
            self._wakeup, end = loop.create_future(), loop.time() + seconds
            look = SILENCE if self.reclaim is None else LOOK_FOR_IDLE
            while not self.is_granted and (left := end - loop.time()) > 0:
                await asyncio.wait((self._wakeup,), timeout=min(left, look))
                self._pool.on_waiting()
        return self.is_granted

    def grant(self, now: float) -> None:
        """For the pool alone."""
        self.granted_at = now
        self._waiter = None
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def enqueue(self, waiter: Waiter[SlotLease]) -> None:
        """For the pool alone."""
        self._waiter = waiter
        self._queued = True

    def correct_tokens(self, tokens: int) -> None:
        """Replace the estimate by the ``tokens`` that were used, in the accounts of its tenant and tier."""
        if self._queued and self.reclaim is None:
            self._pool.queue.correct(self.tier, self.terms, self.tenant, tokens - self.tokens)

    @property
    def flow(self) -> Flow:
        return Flow(self.tier, self.tenant, self.terms.weight)

    @property
    def unfinished(self) -> int:
        """Answers that are not complete."""
        return self.answers - self._finished

    def release_one(self) -> None:
        """One of several answers is complete: its slot goes to the next in the queue."""
        if self.is_granted and not self._released and self._finished < self.answers - 1:
            self._finished += 1
            self._pool.free(self, 1)
            self._pool.count_idle()
            self._pool.grant_next()

    def release(self) -> None:
        """Give up the slots, or the position in the queue. Idempotent."""
        if self._released:
            return
        self._released = True
        if self._waiter is not None:
            self._pool.queue_of(self).remove(self._waiter)
            self._waiter = None
        elif self.is_granted:
            self._pool.leases.pop(self, None)
            self._pool.free(self, self.unfinished)
            self._pool.tokens_in_flight -= self.tokens
            self._pool.idle_released(self)
        self._pool.grant_next()


class Pool:
    """One backend's slots and queue. It outlives policies, whose limits apply to what is in flight.

    ``max_tokens`` is this worker's share, and so are ``slots`` without ``shared``; None is no limit.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float] = time.perf_counter,
        shared: Callable[[], SharedSlots] | None = None,
    ) -> None:
        """``shared`` makes the slots that this worker shares with others."""
        self.name = name
        self.clock = clock
        self._slots: int | None = None
        self._make_shared = shared
        self._shared: SharedSlots | None = None
        self.max_tokens: int | None = None
        self.in_flight = 0
        """Answers, which is slots in use."""
        self.tokens_in_flight = 0
        self.queue: FairQueue[SlotLease] = FairQueue()
        self.idle_queue: FairQueue[SlotLease] = FairQueue()
        """Of lines of batches, which get what nobody else wants; they are in no other figure."""
        self.idle_leases: dict[SlotLease, None] = {}
        """Those granted that can be asked back, in that order."""
        self.idle_share = IdleShare()
        self._idle_slots = 0
        self._idle_tokens = 0
        self.speed = SpeedEstimator(clock)
        self.leases: dict[SlotLease, None] = {}
        """Those granted, in that order."""
        self._adaptive: AdaptiveLimit | None = None
        """Where the policy sets no limit."""
        self._shares: FairShares | None = None
        """Of a learnt limit, once it was reached."""

    @property
    def slots(self) -> int | None:
        """How many this worker may use now."""
        return self._slots if self._shared is None else self._shared.available

    @property
    def limited(self) -> bool:
        return self._slots is not None or self.max_tokens is not None

    def limit(
        self, slots: int | None, tokens: int | None, *, adaptive: bool = False, in_all: int | None = None
    ) -> None:
        """Set the limits. What is in flight beyond a smaller one may finish. ``adaptive``: slots by latency.

        ``in_all`` are the slots of all workers together, where they share them.
        """
        self._share(in_all)
        self._adaptive = (self._adaptive or AdaptiveLimit(self.clock)) if adaptive else None
        self._shares = None
        if self._adaptive is not None:
            slots = self._adaptive.limit
        if (slots, tokens) == (self._slots, self.max_tokens):
            return
        self._slots, self.max_tokens = slots, tokens
        self.speed.reset_throughput()
        self.grant_next()

    def acquire(self, tier: str, terms: QueueTerms, tenant: str, tokens: int, answers: int = 1) -> SlotLease:
        """A lease, granted at once where there is capacity and nobody waits; otherwise queued."""
        lease = SlotLease(self, tokens, terms, answers, tier, tenant)
        at_once = not self.limited or (not self.queue.size and self._admits(tokens, terms, answers))
        if not at_once or not self._grant(lease):
            lease.enqueue(self.queue.push(tier, terms, tenant, tokens, self.clock(), lease))
            self.grant_next()
        return lease

    def acquire_idle(
        self, tenant: str, tokens: int, answers: int, *, max_utilization: float, reclaim: Callable[[], None]
    ) -> SlotLease:
        """A lease on capacity that nobody else wants: granted once the backend would be no fuller than
        ``max_utilization`` with it, and asked back where others come to wait."""
        terms = QueueTerms(max_utilization=max_utilization)
        lease = SlotLease(self, tokens, terms, answers, tenant=tenant, reclaim=reclaim)
        lease.enqueue(self.idle_queue.push("", lease.terms, tenant, tokens, self.clock(), lease))
        self.grant_next()
        return lease

    def queue_of(self, lease: SlotLease) -> FairQueue[SlotLease]:
        return self.queue if lease.reclaim is None else self.idle_queue

    def on_waiting(self) -> None:
        """A request has waited for a while: an adaptive limit may grow, another worker may have ended."""
        if self._shared is not None or self.idle_queue.size:
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

    def update_terms(self, terms_of: Callable[[str], QueueTerms]) -> None:
        """Apply other terms, by tier, to all that wait."""
        self.queue.update_terms(terms_of)
        self.grant_next()

    def grant_next(self) -> None:
        """Grant leases from the queue while there is capacity."""
        if self.queue.size:
            self._grant_queued()
        if self._shared is not None and self._shared.set_waiting(len(self.queue)):
            self._grant_queued()  # a slot may have become free just before the others could see that this one waits
            self._shared.set_waiting(len(self.queue))
            if self.queue.size:
                self._shared.call_in()
        if self.idle_leases:
            self._ask_back()
        if self.idle_queue.size:
            self._grant_idle()

    def _grant_queued(self) -> None:
        while self.queue.size:
            now = self.clock()
            head = self.queue.head(now, self._utilization())
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

    def _grant_idle(self) -> None:
        """Nobody else waits, here or at other workers, and room is left."""
        while self.idle_queue.size and not self.queue.size:
            now = self.clock()
            head = self.idle_queue.head(now)
            if head is None or not self._is_idle(head.item) or not self._grant(head.item):
                return
            self.idle_queue.take(head, now)
            self.idle_leases[head.item] = None
            self._idle_tokens += head.item.tokens
            self.count_idle()

    def _is_idle(self, lease: SlotLease) -> bool:
        if not self.fits(lease.tokens, lease.answers):
            return False
        most = lease.terms.max_utilization * self.idle_share.value
        engine, shared = self.speed.engine, self._shared
        if shared is not None and shared.wanted_by_others:
            return False
        if engine is not None and engine.saturation >= most and (engine.waiting or engine.running):
            return False
        slots = self._slots if shared is None else shared.limit
        if slots is None and engine is not None and engine.slots:
            slots = engine.slots
        in_use = self.in_flight if shared is None else shared.in_use
        if slots is not None and in_use and in_use + lease.answers > int(slots * most):
            return False
        tokens = self.max_tokens
        if tokens is not None and self.tokens_in_flight:
            return self.tokens_in_flight + lease.tokens <= tokens * most
        return True

    def _ask_back(self) -> None:
        """As many slots as those need who wait, from those who came last."""
        missing = self._missing() if self.queue.size else 0
        if self._shared is not None and (wanted := self._shared.wanted_by_others):
            missing += max(0, wanted - (self._shared.limit - self._shared.in_use))
        missing -= sum(lease.unfinished for lease in self.idle_leases if lease.asked_back)
        for lease in reversed([one for one in self.idle_leases if not one.asked_back]):
            if missing <= 0:
                return
            missing -= lease.unfinished
            lease.asked_back = True
            if lease.reclaim is not None:
                lease.reclaim()

    def _missing(self) -> int:
        """Slots that requests wait for which could have them: those that wait for their tier's turn could not."""
        utilization = self._utilization()
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

    def idle_released(self, lease: SlotLease) -> None:
        """For leases alone."""
        if lease in self.idle_leases:
            del self.idle_leases[lease]
            self._idle_tokens -= lease.tokens
            self.count_idle()

    def count_idle(self) -> None:
        """For leases alone."""
        if self.idle_leases or self._idle_slots:
            self._idle_slots = sum(lease.unfinished for lease in self.idle_leases)
            if self._shared is not None:
                self._shared.set_reclaimable(self._idle_slots)

    def free(self, lease: SlotLease, slots: int) -> None:
        """For leases alone."""
        self.in_flight -= slots
        if self._shares is not None and lease.reclaim is None:
            self._shares.add(lease.flow, -slots)
            if self._slots is None or 2 * self.in_flight < self._slots:
                self._shares = None
        if self._shared is not None:
            self._shared.give_back(slots)

    def _share(self, in_all: int | None) -> None:
        """Begin to share slots, or cease to."""
        if self._shared is None and in_all is not None and self._make_shared is not None:
            self._shared = self._make_shared()
            self._shared.limit = in_all
            self._shared.add(self.in_flight)
        elif self._shared is not None and in_all is None:
            self._shared.close()
            self._shared = None
        elif self._shared is not None and in_all is not None:
            self._shared.limit = in_all
            self.grant_next()

    def _grant(self, lease: SlotLease) -> bool:
        """Whether there were slots; another worker may have taken the last one."""
        if self._shared is not None and not self._shared.take(lease.answers):
            return False
        self.in_flight += lease.answers
        self.tokens_in_flight += lease.tokens
        self.leases[lease] = None
        if self._shares is not None and lease.reclaim is None:
            self._shares.add(lease.flow, lease.answers)
        lease.beside_lines = self._idle_slots > 0
        lease.grant(self.clock())
        return True

    def fits(self, tokens: int, answers: int = 1, *, reclaiming: bool = False) -> bool:
        """Whether there is capacity; ``reclaiming``: once what can be asked back is. What is larger than the whole
        limit runs alone."""
        in_flight, in_tokens = self.in_flight, self.tokens_in_flight
        if reclaiming:
            in_flight, in_tokens = in_flight - self._idle_slots, in_tokens - self._idle_tokens
        if not in_flight and (self._shared is None or self._shared.idle):
            return True
        slots = self.slots
        if slots is not None and in_flight + answers > slots:
            return False
        return self.max_tokens is None or in_tokens + tokens <= self.max_tokens

    def _admits(self, tokens: int, terms: QueueTerms, answers: int, *, reclaiming: bool = False) -> bool:
        """As ``fits``, for a tier that may not use all of the backend."""
        return self.fits(tokens, answers, reclaiming=reclaiming) and (
            terms.max_utilization >= 1.0 or not self.in_flight or self._utilization() < terms.max_utilization
        )

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
        if self._admits(tokens, terms, answers, reclaiming=True) and (
            not self.queue.size or self.queue.head(self.clock(), self._utilization()) is None
        ):
            return True
        return (
            flow is not None
            and not self.queue.waiters_of(flow.tier, flow.tenant)
            and self._is_due(flow, terms, answers)
        )

    def share(self, tokens: int, answers: int = 1) -> float:
        """The share of the backend that a request takes; 0 where there is no limit."""
        slots = self.slots
        of_slots = answers / max(1, slots) if slots is not None else 0.0
        of_tokens = tokens / self.max_tokens if self.max_tokens is not None else 0.0
        return min(1.0, max(of_slots, of_tokens))

    def _utilization(self) -> float:
        """Without what can be asked back."""
        slots, in_flight = self.slots, self.in_flight - self._idle_slots
        of_slots = 0.0 if slots is None else in_flight / slots if slots else 1.0
        in_tokens = self.tokens_in_flight - self._idle_tokens
        of_tokens = in_tokens / self.max_tokens if self.max_tokens is not None else 0.0
        return min(1.0, max(of_slots, of_tokens))

    @property
    def saturation(self) -> float:
        """0 to 1: the fullest of slots, tokens, and the engine's own figure where it is known."""
        engine = self.speed.engine
        utilization = self._utilization()
        if engine is None:
            return utilization
        lines = self._idle_slots / engine.slots if engine.slots else 0.0
        return max(utilization, engine.saturation - lines)

    def saturation_for(self, flow: Flow) -> float:
        """Without what others hold beyond their shares of a learnt limit."""
        slots = self._slots
        if self._adaptive is None or slots is None or 2 * self.in_flight < slots:
            return self.saturation
        return self._fair_shares().utilization(flow, slots)

    @property
    def load(self) -> int:
        """Answers in flight, and queued requests."""
        return self.in_flight + len(self.queue)

    def expected_wait(self, ahead: int, tokens: int, terms: QueueTerms, answers: int = 1) -> float | None:
        """Seconds until a request is granted that has ``ahead`` tokens before it."""
        wait = self.speed.expected_wait(
            ahead + self._tokens_to_finish(tokens, terms.max_utilization, answers)
        )
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

    def _tokens_to_finish(self, tokens: int, max_utilization: float, answers: int) -> float:
        """Tokens that must finish before ``tokens`` more fit and less than ``max_utilization`` is in use."""
        if not self.in_flight:
            return 0.0
        missing = 0.0
        if (slots := self.slots) is not None:
            usable = max(answers, ceil(slots * max_utilization))
            too_many = min(self.in_flight, self.in_flight + answers - usable)
            missing = too_many * self.tokens_in_flight / self.in_flight
        if self.max_tokens is not None:
            too_much = self.tokens_in_flight - min(
                self.max_tokens - tokens, self.max_tokens * max_utilization
            )
            missing = max(missing, min(self.tokens_in_flight, too_much))
        return max(0.0, missing)
