"""What becomes of quotas while the store is away: as the policy's ``on_store_failure`` says."""

from __future__ import annotations

from gateway.errors import Overloaded
from gateway.quota.counters import Verdict
from gateway.quota.limits import Amounts, Limits
from gateway.quota.memory import MemoryCounters
from gateway.quota.redis import PROBE_EVERY, RedisCounters
from gateway.stores.store import StoreDown

UNMETERED = Verdict(admitted=True)


class GuardedCounters:
    """Counters in Redis, with a way on when it fails."""

    def __init__(self, store: RedisCounters, local: MemoryCounters) -> None:
        self._store = store
        self._local = local
        self._elsewhere: dict[str, str] = {}
        """Requests under way that the store let pass by being away, and how."""

    async def reserve(self, request_id: str, limits: Limits, amounts: Amounts) -> Verdict:
        """Raises ``Overloaded`` with ``closed``, and nothing else."""
        try:
            return await self._store.reserve(request_id, limits, amounts)
        except StoreDown as error:
            if limits.on_store_failure == "closed":
                raise Overloaded(
                    "The gateway cannot reach the store that holds its quotas, and its policy is to refuse requests "
                    "until it can. Try again shortly.",
                    code="store_unavailable",
                    retry_after=2 * PROBE_EVERY,
                ) from error
        verdict = UNMETERED
        if limits.on_store_failure == "local":
            verdict = await self._local.reserve(request_id, limits, amounts)
        if verdict.admitted and limits.settles:
            self._elsewhere[request_id] = limits.on_store_failure
        return verdict

    def settle(self, request_id: str, limits: Limits, reserved: Amounts, used: Amounts) -> None:
        where = self._elsewhere.pop(request_id, None)
        if where is None:
            self._store.settle(request_id, limits, reserved, used)
        elif where == "local":
            self._local.settle(request_id, limits, reserved, used)

    async def aclose(self) -> None:
        await self._store.aclose()
