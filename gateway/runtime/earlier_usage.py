"""What callers have used in this day and month, from the ledger into the counters of their limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from itertools import count
from typing import Self

from gateway.backoff import Backoff
from gateway.databases.database import DatabaseError
from gateway.metering.window_usage import WindowUsage
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.ledger.usage_query import read_window_usage
from gateway.policy.schema import Policy
from gateway.quota.quotas import Quotas

log = logging.getLogger(__name__)

BACKOFF = Backoff(1.0, most=60.0)
"""Between attempts to read a ledger that does not answer."""
SECONDS_TO_ARRIVE = 0.3
"""For what other workers have not yet written: they do so every 50 ms;"""
SECONDS_TO_WRITE = 2.0
"""and for what this one has not."""


class EarlierUsage:
    """Counters in memory start with their process, and those of a store may be lost at any time."""

    def __init__(self, quotas: Quotas, ledger: Ledger, policy: Policy) -> None:
        self._quotas = quotas
        self._rows = ledger
        self._ledger = ledger.database
        self._policy = policy
        self._trying: asyncio.Task[None] | None = None

    @classmethod
    async def counted(cls, quotas: Quotas, ledger: Ledger, policy: Policy) -> Self:
        """Once it is counted; where the ledger cannot be read, it goes on trying in the background."""
        earlier = cls(quotas, ledger, policy)
        quotas.restore_from(earlier.recorded, policy)
        try:
            await earlier._count()
        except DatabaseError as error:
            log.warning(
                "earlier usage is unknown: the ledger '%s' cannot be read (%s); it is tried again",
                ledger.database,
                error,
            )
            earlier._trying = asyncio.create_task(earlier._keep_trying())
        return earlier

    async def recorded(self) -> Sequence[WindowUsage] | None:
        """Of all requests that have ended until now, in every worker; None where the ledger cannot be read, or falls
        behind."""
        await asyncio.sleep(SECONDS_TO_ARRIVE)
        if not await asyncio.to_thread(self._rows.wait_drained, SECONDS_TO_WRITE):
            return None
        try:
            return await asyncio.to_thread(read_window_usage, self._ledger, time.time())
        except DatabaseError as error:
            log.warning("the store's budgets are restored without the ledger '%s': %s", self._ledger, error)
            return None

    async def aclose(self) -> None:
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)

    async def _count(self) -> None:
        usage = await asyncio.to_thread(read_window_usage, self._ledger, time.time())
        await self._quotas.remember(usage, self._policy)

    async def _keep_trying(self) -> None:
        for failures in count(1):
            await asyncio.sleep(BACKOFF.after(failures))
            try:
                await self._count()
            except DatabaseError:
                continue
            log.info("earlier usage is known: the ledger '%s' was read", self._ledger)
            return
