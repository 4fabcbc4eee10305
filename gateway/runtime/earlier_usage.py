"""What callers have used in this day and month, from the ledger into the counters of their limits."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Self

from gateway.databases.database import Database, DatabaseError
from gateway.observe.window_usage import read_window_usage
from gateway.policy.schema import Policy
from gateway.quota.quotas import Quotas

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between attempts to read a ledger that does not answer."""


class EarlierUsage:
    """Counters in memory start with their process, and those of a store may have been lost with it."""

    def __init__(self, quotas: Quotas, ledger: Database, policy: Policy) -> None:
        self._quotas = quotas
        self._ledger = ledger
        self._policy = policy
        self._trying: asyncio.Task[None] | None = None

    @classmethod
    async def counted(cls, quotas: Quotas, ledger: Database, policy: Policy) -> Self:
        """Once it is counted; where the ledger cannot be read, it goes on trying in the background."""
        earlier = cls(quotas, ledger, policy)
        try:
            await earlier._count()
        except DatabaseError as error:
            log.warning(
                "earlier usage is unknown: the ledger '%s' cannot be read (%s); it is tried again",
                ledger,
                error,
            )
            earlier._trying = asyncio.create_task(earlier._keep_trying())
        return earlier

    async def aclose(self) -> None:
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)

    async def _count(self) -> None:
        usage = await asyncio.to_thread(read_window_usage, self._ledger, time.time())
        await self._quotas.remember(usage, self._policy)

    async def _keep_trying(self) -> None:
        pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            try:
                await self._count()
            except DatabaseError:
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                log.info("earlier usage is known: the ledger '%s' was read", self._ledger)
                return
