"""A backend's places: how many answers, and how many of their tokens, may be under way at once, and who is next.

A request takes a place for each answer that it asks for: ``n`` of them are ``n`` requests to whoever computes them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from math import ceil

from gateway.admission.fair_queue import FairQueue, Terms, Waiter
from gateway.admission.gradient import SILENCE, Gradient
from gateway.admission.predictor import Speeds
from gateway.engine_figures import EngineFigures
from gateway.policy.schema import AnthropicBackend, OpenAIBackend, Policy


@dataclass(slots=True, eq=False)
class Place:
    """A request's places at a backend, or its claim to them. Whatever becomes of the request, ``release`` them."""

    _pool: Pool
    cost: int
    terms: Terms
    answers: int = 1
    """It takes a place for each."""
    service: float | None = None
    """Seconds from then on that the request is expected to take; None where nothing is known yet."""
    granted: float | None = None
    """When it was given, on the pool's clock."""
    _waiter: Waiter[Place] | None = None
    _flow: tuple[str, str] | None = None
    """The tier and the tenant on whose account it is, where it had to stand in line."""
    _woken: asyncio.Future[None] | None = None
    _released: bool = False
    _ended: int = 0

    @property
    def held(self) -> bool:
        return self.granted is not None

    @property
    def position(self) -> int:
        """In the line, 1 being next; 0 once the place is given."""
        return self._pool.queue.position(self._waiter) if self._waiter is not None else 0

    @property
    def expected_wait(self) -> float | None:
        """Seconds; None where nothing is known yet."""
        if self._waiter is None:
            return 0.0
        return self._pool.expected_wait(
            self._pool.queue.cost_ahead(self._waiter), self.cost, self.terms, self.answers
        )

    @property
    def share(self) -> float:
        """The part of the backend that it takes up."""
        return self._pool.share(self.cost, self.answers)

    async def wait(self, seconds: float) -> bool:
        """Wait so long at most; True once the place is given."""
        if not self.held:
            loop = asyncio.get_running_loop()
            self._woken, end = loop.create_future(), loop.time() + seconds
            while not self.held and (left := end - loop.time()) > 0:
                await asyncio.wait((self._woken,), timeout=min(left, SILENCE))
                self._pool.stir()
        return self.held

    def grant(self, now: float) -> None:
        """For the pool alone."""
        self.granted = now
        self._waiter = None
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def stand(self, waiter: Waiter[Place]) -> None:
        """For the pool alone."""
        self._waiter = waiter
        self._flow = (waiter.lane.tier, waiter.tenant.name)

    def used(self, tokens: int) -> None:
        """What the request really came to: its tenant's and its tier's next turns come the sooner or later for it."""
        if self._flow is not None:
            tier, tenant = self._flow
            self._pool.queue.correct(tier, self.terms, tenant, tokens - self.cost)

    @property
    def open(self) -> int:
        """Its answers that are not complete."""
        return self.answers - self._ended

    def one_ended(self) -> None:
        """One of its answers is complete, and others are not: its place is given to whoever is next."""
        if self.held and not self._released and self._ended < self.answers - 1:
            self._ended += 1
            self._pool.in_flight -= 1
            self._pool.serve()

    def release(self) -> None:
        """Give the place, or the claim, to whoever is next. Once is enough, more does no harm."""
        if self._released:
            return
        self._released = True
        if self._waiter is not None:
            self._pool.queue.remove(self._waiter)
            self._waiter = None
        elif self.held:
            self._pool.held.pop(self, None)
            self._pool.in_flight -= self.open
            self._pool.tokens -= self.cost
        self._pool.serve()


class Pool:
    """One backend's. It outlives policies: their limits are put in place under the requests that are on their way.

    ``places`` and ``tokens_limit`` are this worker's part; None is no limit.
    """

    def __init__(self, name: str, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.name = name
        self.clock = clock
        self.places: int | None = None
        self.tokens_limit: int | None = None
        self.in_flight = 0
        """Answers, which is places that are taken."""
        self.tokens = 0
        """Of those in flight."""
        self.queue: FairQueue[Place] = FairQueue()
        self.speeds = Speeds(clock)
        self.held: dict[Place, None] = {}
        """In the order in which they were given."""
        self._gradient: Gradient | None = None
        """Where nobody says how much the backend can take."""

    @property
    def limited(self) -> bool:
        return self.places is not None or self.tokens_limit is not None

    def limit(self, places: int | None, tokens: int | None, *, adapts: bool = False) -> None:
        """From now on. What is in flight beyond a smaller limit may finish. What ``adapts`` has places by latency."""
        self._gradient = (self._gradient or Gradient(self.clock)) if adapts else None
        if self._gradient is not None:
            places = self._gradient.limit
        if (places, tokens) == (self.places, self.tokens_limit):
            return
        self.places, self.tokens_limit = places, tokens
        self.speeds.forget_throughput()
        self.serve()

    def take(self, tier: str, terms: Terms, tenant: str, cost: int, answers: int = 1) -> Place:
        """A place, given at once where there is room and nobody is before; otherwise a claim, in line for it."""
        place = Place(self, cost, terms, answers)
        if not self.limited or (not self.queue and self._opens(cost, terms, answers)):
            self._give(place)
        else:
            place.stand(self.queue.push(tier, terms, tenant, cost, self.clock(), place))
            self.serve()
        return place

    def stir(self) -> None:
        """Somebody has waited for a while."""
        if self._gradient is not None and self.queue and self._gradient.grow_in_silence():
            self.places = self._gradient.limit
            self.serve()

    def answered(self, place: Place, kind: Hashable, seconds: float) -> None:
        """It took so long to begin an answer to a request of this kind."""
        gradient, sent = self._gradient, place.granted
        if gradient is not None and sent is not None and gradient.learn(kind, seconds, sent, self.in_flight):
            self.places = gradient.limit
            self.serve()

    def renew(self, terms_of: Callable[[str], Terms]) -> None:
        """Other terms hold for those in line, by tier."""
        self.queue.renew(terms_of)
        self.serve()

    def serve(self) -> None:
        """Give places to those in line while there is room."""
        while self.queue:
            now = self.clock()
            head = self.queue.head(now, self._taken())
            if head is None or not self.fits(head.cost, head.item.answers):
                return
            self.queue.take(head, now)
            self._give(head.item)

    def _give(self, place: Place) -> None:
        self.in_flight += place.answers
        self.tokens += place.cost
        self.held[place] = None
        place.grant(self.clock())

    def fits(self, cost: int, answers: int = 1) -> bool:
        """What is larger than the whole limit runs alone."""
        if not self.in_flight:
            return True
        if self.places is not None and self.in_flight + answers > self.places:
            return False
        return self.tokens_limit is None or self.tokens + cost <= self.tokens_limit

    def _opens(self, cost: int, terms: Terms, answers: int) -> bool:
        """As ``fits``, for a tier that may be held back."""
        return self.fits(cost, answers) and (
            terms.below >= 1.0 or not self.in_flight or self._taken() < terms.below
        )

    def has_room(
        self,
        cost: int,
        terms: Terms = Terms(),  # noqa: B008  (it is frozen)
        answers: int = 1,
    ) -> bool:
        """Would a request of ``cost`` tokens start at once? Those that are held back for it are not in its way."""
        if not self.limited:
            return True
        if not self._opens(cost, terms, answers):
            return False
        return not self.queue or self.queue.head(self.clock(), self._taken()) is None

    def share(self, cost: int, answers: int = 1) -> float:
        """The part of the backend that a request of ``cost`` tokens takes; 0 where there is no limit."""
        of_places = answers / self.places if self.places is not None else 0.0
        of_tokens = cost / self.tokens_limit if self.tokens_limit is not None else 0.0
        return min(1.0, max(of_places, of_tokens))

    def _taken(self) -> float:
        of_places = self.in_flight / self.places if self.places is not None else 0.0
        of_tokens = self.tokens / self.tokens_limit if self.tokens_limit is not None else 0.0
        return min(1.0, max(of_places, of_tokens))

    @property
    def saturation(self) -> float:
        """0 to 1: the fullest of places, tokens, and the engine's own state where it is known."""
        engine = self.speeds.engine
        taken = self._taken()
        return taken if engine is None else max(taken, engine.saturation)

    @property
    def load(self) -> int:
        """Answers in flight, and requests in line."""
        return self.in_flight + len(self.queue)

    def expected_wait(self, ahead: int, cost: int, terms: Terms, answers: int = 1) -> float | None:
        """Seconds until a request of ``cost`` tokens, with ``ahead`` tokens to be served before it, has its place."""
        wait = self.speeds.expected_wait(ahead + self._missing(cost, terms.below, answers))
        return None if wait is None else wait / max(terms.below, 0.01)

    def expected_wait_of_new(
        self, tier: str, terms: Terms, tenant: str, cost: int, answers: int = 1
    ) -> float | None:
        if self.has_room(cost, terms, answers):
            return 0.0
        ahead = self.queue.cost_ahead_of_new(tier, terms, tenant, cost)
        return self.expected_wait(ahead, cost, terms, answers)

    def drain_time(self, to: float) -> float | None:
        """Seconds until the line is gone and saturation has come down to ``to``, if nobody else comes."""
        excess = max(0.0, self.saturation - to) * self.tokens
        return self.speeds.expected_wait(self.queue.cost + excess)

    def _missing(self, cost: int, below: float, answers: int) -> float:
        """Tokens that must finish before ``cost`` more fit, and less than the share ``below`` is taken."""
        if not self.in_flight:
            return 0.0
        missing = 0.0
        if self.places is not None:
            room = max(answers, ceil(self.places * below))
            too_many = min(self.in_flight, self.in_flight + answers - room)
            missing = too_many * self.tokens / self.in_flight
        if self.tokens_limit is not None:
            too_much = self.tokens - min(self.tokens_limit - cost, self.tokens_limit * below)
            missing = max(missing, min(self.tokens, too_much))
        return max(0.0, missing)


class Pools:
    """All backends' pools by name, of one of ``workers`` processes that share the limits: ``worker``, from 1."""

    def __init__(
        self, workers: int = 1, worker: int = 1, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.workers = max(1, workers)
        self.worker = worker
        self.clock = clock
        self._pools: dict[str, Pool] = {}

    def update(self, policy: Policy) -> None:
        """Take over a policy's limits. Backends that are gone keep their pools while requests are on their way."""
        for name in [name for name in self._pools if name not in policy.backends]:
            if not self._pools[name].load:
                del self._pools[name]
        for name, backend in policy.backends.items():
            places, tokens = self.part(backend.max_concurrency), self.part(backend.max_tokens_in_flight)
            # The bundled engine has a fair line of its own, and tells how full it is.
            adapts = places is tokens is None and isinstance(backend, OpenAIBackend | AnthropicBackend)
            self.of(name).limit(places, tokens, adapts=adapts)

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def part(self, limit: int | None) -> int | None:
        """This worker's part of a limit, at least 1. The parts add up to the limit, unless it is below ``workers``."""
        if limit is None:
            return None
        whole, left = divmod(limit, self.workers)
        return max(1, whole + (self.worker <= left))

    def of(self, name: str) -> Pool:
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = Pool(name, clock=self.clock)
        return pool

    def saturation(self, name: str) -> float:
        return self.of(name).saturation

    def load(self, name: str) -> int:
        return self.of(name).load

    def has_room(self, name: str, tokens: int) -> bool:
        """Would a request of so many tokens start at once? Not where an engine says that it has a line of its own."""
        pool = self.of(name)
        engine = pool.speeds.engine
        return pool.has_room(tokens) and (engine is None or engine.saturation < 1.0)

    def tell(self, name: str, figures: EngineFigures | None) -> None:
        """What an engine says of itself, or that it says nothing."""
        self.of(name).speeds.tell(figures)
