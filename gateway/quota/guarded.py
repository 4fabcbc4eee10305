"""What becomes of quotas while the store is away: as the policy's ``on_store_failure`` says."""

from __future__ import annotations

from gateway.errors import Overloaded
from gateway.quota.counters import Elastic, Verdict
from gateway.quota.limits import Amounts, Limits
from gateway.quota.memory import MemoryCounters
from gateway.quota.redis import PROBE_EVERY, RedisCounters
from gateway.stores.store import StoreDown

UNMETERED = Verdict(admitted=True)
BOTH = "both"
"""Let in by the store, and extended while it was away."""


class GuardedCounters:
    """Counters in Redis, with a way on when it fails."""

    def __init__(self, store: RedisCounters, local: MemoryCounters) -> None:
        self._store = store
        self._local = local
        self._elsewhere: dict[str, str] = {}
        """Requests under way that the store let pass by being away, and how."""

    async def reserve(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None = None
    ) -> Verdict:
        """Raises ``Overloaded`` with ``closed``, and nothing else."""
        try:
            return await self._store.reserve(request_id, limits, amounts, elastic)
        except StoreDown as error:
            self._refuse_closed(limits, error)
        verdict = UNMETERED
        if limits.on_store_failure == "local":
            verdict = await self._local.reserve(request_id, limits, amounts, elastic)
        if verdict.admitted and limits.settles:
            self._elsewhere[request_id] = limits.on_store_failure
        return verdict

    async def extend(
        self, request_id: str, limits: Limits, amounts: Amounts, elastic: Elastic | None = None
    ) -> Verdict:
        """As ``reserve``. What the store let in before it went away is held locally, too, from here on."""
        where = self._elsewhere.get(request_id)
        if where is None:
            try:
                return await self._store.extend(request_id, limits, amounts, elastic)
            except StoreDown as error:
                self._refuse_closed(limits, error)
            if limits.on_store_failure == "open":
                return UNMETERED
            verdict = await self._local.reserve(request_id, limits, amounts, elastic)
            if verdict.admitted:
                self._elsewhere[request_id] = BOTH
            return verdict
        if where == "open":
            return UNMETERED
        return await self._local.extend(request_id, limits, amounts, elastic)

    def settle(self, request_id: str, limits: Limits, used: Amounts) -> None:
        where = self._elsewhere.pop(request_id, None)
        if where is None or where == BOTH:
            self._store.settle(request_id, limits, used)
        if where == "local" or where == BOTH:
            self._local.settle(request_id, limits, used)

    def _refuse_closed(self, limits: Limits, error: StoreDown) -> None:
        if limits.on_store_failure == "closed":
            raise Overloaded(
                "The gateway cannot reach the store that holds its quotas, and its policy is to refuse requests "
                "until it can. Try again shortly.",
                code="store_unavailable",
                retry_after=2 * PROBE_EVERY,
            ) from error

    async def aclose(self) -> None:
        await self._store.aclose()
