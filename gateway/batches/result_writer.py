"""Writes lines' results, several at a time, in the order in which nothing is lost and nothing is charged twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import accumulate

from gateway.batches.batch import Batch, Sums
from gateway.batches.batch_table import BatchTable, LeaseLost
from gateway.batches.host import Host
from gateway.batches.line import LineResult
from gateway.databases.database import DatabaseError

log = logging.getLogger(__name__)

PAUSE = 0.05
"""Seconds in which results come together."""
AT_ONCE = 256
SIZE = 16 * 2**20
"""Characters of results that are written at once, and beyond which lines wait until they are."""
RETRY = 1.0
"""Seconds after which a write that failed is tried again."""


class ResultWriter:
    """Of one batch. First the ledger has a line's charge on disk, then the line its result: a process that dies in
    between leaves a line that runs again, whose charge the ledger then knows."""

    def __init__(
        self, host: Host, table: BatchTable, owner: str, batch: Batch, lost: Callable[[], None]
    ) -> None:
        """``lost`` is called where another owner has the batch."""
        self._host = host
        self._table = table
        self._owner = owner
        self._id = batch.id
        self._lost = lost
        self._waiting: list[LineResult] = []
        self._size = 0
        self._added = asyncio.Event()
        self._written = asyncio.Condition()
        self._gone = False
        self._task = asyncio.create_task(self._run())
        self.sums = batch.sums
        """Of what is written."""

    async def add(self, result: LineResult) -> None:
        """Waits where the database is far behind, for as long as that is so."""
        async with self._written:
            await self._written.wait_for(lambda: self._gone or self._has_room())
        self._waiting.append(result)
        self._size += len(result.written)
        self._added.set()

    async def flush(self) -> None:
        """Wait until all is written, or the batch is another's."""
        async with self._written:
            await self._written.wait_for(lambda: self._gone or not self._waiting)

    async def aclose(self) -> None:
        """Without waiting: what is not written runs again."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _has_room(self) -> bool:
        return len(self._waiting) < 4 * AT_ONCE and self._size < SIZE

    def _next(self) -> list[LineResult]:
        """The first at any rate."""
        sums = accumulate(len(one.written) for one in self._waiting[:AT_ONCE])
        return self._waiting[: max(1, sum(1 for size in sums if size <= SIZE))]

    async def _run(self) -> None:
        while True:
            await self._added.wait()
            await asyncio.sleep(PAUSE)
            results = self._next()
            try:
                await self._host.recorded()
                sums = await asyncio.to_thread(self._table.settle, self._owner, self._id, results)
            except LeaseLost:
                await self._give_up()
                return
            except DatabaseError as error:
                log.warning(
                    "results of batch %s cannot be written, which is tried again: %s", self._id, error
                )
                await asyncio.sleep(RETRY)
                continue
            except Exception:
                log.exception("results of batch %s cannot be written", self._id)
                await asyncio.sleep(RETRY)
                continue
            self._count(sums)
            async with self._written:
                del self._waiting[: len(results)]
                self._size -= sum(len(one.written) for one in results)
                if not self._waiting:
                    self._added.clear()
                self._written.notify_all()

    def _count(self, sums: Sums) -> None:
        self.sums += sums
        for outcome, lines in (("completed", sums.completed), ("failed", sums.failed)):
            if lines:
                self._host.count(outcome, lines)

    async def _give_up(self) -> None:
        async with self._written:
            self._gone = True
            self._waiting.clear()
            self._size = 0
            self._written.notify_all()
        self._lost()
