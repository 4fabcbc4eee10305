"""What stands in for parts of the gateway that would send, count or keep something: they decide, and do no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from gateway.admission.fair_queue import QueueTerms
from gateway.admission.gate import Admission
from gateway.admission.pool import Pool
from gateway.admission.pools import Pools
from gateway.admission.queue import Queue
from gateway.admission.slot_lease import SlotLease
from gateway.caching.exact import AnswerStore, MemoryAnswerStore
from gateway.guards.scanners.scanner import Origin, Scanner, Unscanned, Verdict
from gateway.observe.metrics import Metrics
from gateway.stores.store import Store
from gateway.types import Call, Chunks


class NothingSent(Exception):
    """Here a request would be sent upstream. No error of the gateway's: nothing is done about it on its way out."""

    def __init__(self, call: Call) -> None:
        super().__init__("nothing is sent")
        self.call = call


async def not_sent(call: Call) -> Chunks:
    """A ``Handler`` in place of the backends."""
    raise NothingSent(call)
    yield


class _Uncounted:
    """Any metric, with any labels."""

    pending = 0

    def __getitem__(self, labels: object) -> _Uncounted:
        return self

    def __call__(self, *given: object, **named: object) -> _Uncounted:
        return self

    def __getattr__(self, name: str) -> _Uncounted:
        return self


class _NoTenants:
    enabled = False


class NoMetrics:
    """In place of ``Metrics``, of which a process has one: another would write into the same files."""

    tenants = _NoTenants()

    def tenant(self, name: str) -> str:
        return ""

    def __getattr__(self, name: str) -> _Uncounted:
        return _Uncounted()


class Nowhere:
    """The ``Lender`` of leases on nothing."""

    def expected_wait(self, ahead: int, tokens: int, terms: QueueTerms, answers: int = 1) -> float | None:
        return None

    def on_waiting(self) -> None: ...

    def take_back(self, lease: SlotLease) -> None: ...

    def take_back_one(self, lease: SlotLease) -> None: ...

    def grant_next(self) -> None: ...


class _ReadSpeed:
    """A backend's speed as it is known; all else is the estimator's own."""

    def __init__(self, speed: Any) -> None:
        self._speed = speed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._speed, name)

    def may_probe(self) -> bool:
        """A probe is a request that is sent."""
        return False


class ReadPool:
    """A pool of which slots are asked for and none is taken; all else is the pool's own."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.speed = _ReadSpeed(pool.speed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def wants_lesson(self) -> bool:
        return False

    def acquire_at_once(
        self, tier: str, terms: QueueTerms, tenant: str, tokens: int, answers: int
    ) -> SlotLease:
        lease = SlotLease(Nowhere(), tokens, terms, answers, tier, tenant)
        lease.grant(self._pool.clock())
        return lease

    def acquire(self, tier: str, terms: QueueTerms, tenant: str, tokens: int, answers: int = 1) -> SlotLease:
        lease = SlotLease(Nowhere(), tokens, terms, answers, tier, tenant)
        if self._pool.has_capacity(tokens, terms, answers, lease.flow):
            lease.grant(self._pool.clock())
        return lease


class ReadPools(Pools):
    """All pools, so."""

    def __init__(self, pools: Pools) -> None:
        super().__init__(pools.workers, pools.worker, clock=pools.clock)
        self._read = pools

    def of(self, name: str) -> Pool:
        return cast(Pool, ReadPool(self._read.of(name)))


class ReadQueue(Queue):
    """Nobody waits in it: who would have to is told how long, and goes on."""

    def __init__(self, pools: Pools, metrics: Metrics) -> None:
        super().__init__(pools, metrics)
        self.waits: dict[str, dict[str, float | int | None]] = {}
        """By backend."""

    async def waiting(self, call: Call, admission: Admission) -> Chunks:
        lease, pool = admission.lease, admission.pool
        wait = pool.expected_wait_of_new(lease.tier, lease.terms, lease.tenant, lease.tokens, lease.answers)
        self.waits[pool.name] = {
            "behind": len(pool.queue),
            "expected_seconds": None if wait is None else round(wait, 3),
            "longest_seconds": round(admission.expires - admission.arrived, 3),
        }
        lease.grant(pool.clock())
        return
        yield


class ReadAnswers:
    """An ``AnswerStore`` that is only read."""

    def __init__(self, answers: AnswerStore) -> None:
        self._answers = answers

    async def get(self, key: str) -> bytes | None:
        answers = self._answers
        return answers.peek(key) if isinstance(answers, MemoryAnswerStore) else await answers.get(key)

    def put(self, key: str, value: bytes, ttl: float) -> None: ...

    def evict(self, key: str) -> None: ...

    async def aclose(self) -> None: ...


class ReadStore:
    """A ``Store`` that is only read."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, values: Mapping[str, bytes], ttl: float) -> None: ...

    async def get(self, key: str) -> bytes | None:
        return await self._store.get(key)

    async def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        return await self._store.get_all(keys)

    async def touch(self, keys: Sequence[str], ttl: float) -> None: ...

    async def delete(self, key: str) -> None: ...

    async def aclose(self) -> None: ...


class UnaskedScanner:
    """A guard's scanner that asks nobody outside, and takes what it cannot judge itself to be clean."""

    def __init__(self, scanner: Scanner, why: str, unjudged: set[str], *, asks: bool) -> None:
        """``unjudged`` is told ``why`` where a text is left open. Without ``asks`` the scanner's slower check is a
        request to others, and not made."""
        self._scanner = scanner
        self._why = why
        self._unjudged = unjudged
        self._asks = asks
        self.origins = scanner.origins
        self.longest = scanner.longest

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        return self._scanner.quick(text, origin)

    async def thorough(self, texts: Sequence[str], origin: Origin, call: Call | None = None) -> list[Verdict]:
        if self._asks:
            try:
                return await self._scanner.thorough(texts, origin, call)
            except Unscanned:
                pass
        self._unjudged.add(self._why)
        return [Verdict() for _ in texts]
