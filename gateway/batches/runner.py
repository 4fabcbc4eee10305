"""Owns batches in turn with the other workers and replicas, and runs them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter

from gateway.batches.batch import Batch
from gateway.batches.batch_run import BatchRun, Stop
from gateway.batches.batch_table import BatchTable
from gateway.batches.host import Host
from gateway.batches.pace import Pace
from gateway.databases.database import DatabaseError

log = logging.getLogger(__name__)

BEAT = 1.0
"""Seconds between two renewals of what is owned, and looks for what nobody owns or what was cancelled."""
LEASE = 10.0
"""Seconds after which others may take what was not renewed."""
MOST = 16
"""Batches that one worker runs side by side."""
FORGET_EVERY = 3600.0
"""Seconds between two looks for what is too old to be kept, at most."""
CLOSING = 3.0
"""Seconds in which what ran here is written down when the worker stops."""


class BatchRunner:
    """One per worker; it outlives policies."""

    def __init__(self, host: Host, *, lease: float = LEASE, beat: float = BEAT) -> None:
        self.owner = secrets.token_hex(8)
        self._host = host
        self._pace = Pace()
        self._lease = lease
        self._beat = beat
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._woken = asyncio.Event()
        self._renewed = time.monotonic()
        self._failed = False
        self._forget_at = 0.0

    def wake(self) -> None:
        """There may be something to do: look at once."""
        self._woken.set()

    def policy_changed(self) -> None:
        """What lines wait for may be over: a drained backend is in use again, a limit is a higher one."""
        for run, _ in self._runs.values():
            run.policy_changed()
        self.wake()

    async def run(self) -> None:
        """Until cancelled; ``aclose`` it then."""
        while True:
            self._woken.clear()
            try:
                await self._look()
                self._failed = False
            except DatabaseError as error:
                if not self._failed:
                    log.warning("batches wait, their database does not answer: %s", error)
                self._failed = True
            except Exception:
                log.exception("batches could not be looked after; it is tried again")
            if time.monotonic() - self._renewed > 0.8 * self._lease:
                self._stop_all("lost")
            self._show()
            try:
                async with asyncio.timeout(self._beat):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def aclose(self) -> None:
        """Stop what runs here, so that another worker, or this one's successor, goes on with it at once."""
        self._stop_all("released")
        tasks = [task for _, task in self._runs.values()]
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=CLOSING)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await asyncio.to_thread(self._host.table().release, self.owner)
        except DatabaseError as error:
            log.warning("batches of this worker are free in %g s only: %s", self._lease, error)

    async def _look(self) -> None:
        table = self._host.table()
        if not table.exists:
            self._renewed = time.monotonic()
            return
        for run, _ in self._runs.values():
            if run.table is not table:
                run.stop("lost")  # the policy names another database now
        if not self._host.settings().enabled:
            self._stop_all("released")
        await self._renew(table)
        if len(self._runs) < MOST and self._host.settings().enabled:
            for batch in await self._claimed(table):
                self._start(table, batch)
        await self._forget(table)

    async def _claimed(self, table: BatchTable) -> list[Batch]:
        most = MOST - len(self._runs)
        return await asyncio.to_thread(table.claim, self.owner, self._lease, most, [*self._runs])

    async def _renew(self, table: BatchTable) -> None:
        if not self._runs:
            self._renewed = time.monotonic()
            return
        began = time.monotonic()
        owned = await asyncio.to_thread(table.renew, self.owner, self._lease)
        self._renewed = began
        for name, (run, _) in self._runs.items():
            status, expires_at = owned.get(name, ("", 0))
            if not status:
                run.stop("lost")  # or it has just ended
            elif status == "cancelling":
                run.stop("cancelled")
            elif expires_at <= time.time():
                run.stop("expired")

    def _start(self, table: BatchTable, batch: Batch) -> None:
        if batch.id in self._runs:
            return
        run = BatchRun(self._host, table, self.owner, batch, self._pace)
        task = asyncio.create_task(run.run(), name=batch.id)
        self._runs[batch.id] = run, task
        task.add_done_callback(lambda _: self._ended(batch.id))
        if batch.expires_at <= time.time():
            run.stop("expired")

    def _ended(self, id: str) -> None:
        del self._runs[id]
        self.wake()

    def _stop_all(self, why: Stop) -> None:
        for run, _ in self._runs.values():
            run.stop(why)

    async def _forget(self, table: BatchTable) -> None:
        if time.monotonic() >= self._forget_at:
            keep = self._host.settings().keep
            self._forget_at = time.monotonic() + min(FORGET_EVERY, max(self._beat, keep / 10))
            await asyncio.to_thread(table.forget, int(time.time() - keep))

    def _show(self) -> None:
        runs = [run for run, _ in self._runs.values()]
        lines = {"pending": sum(run.pending for run in runs), "running": sum(run.running for run in runs)}
        self._host.show(lines, Counter(run.batch.status for run in runs))
