"""The drifts of the policy in force: who counts, who looks each hour, who is told."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.control.audit_log import Actor, AuditLog
from gateway.databases.database import DatabaseError
from gateway.databases.opening import open_tables
from gateway.drift.collector import Collector
from gateway.drift.seen import asks_for_json, seen
from gateway.drift.table import DRIFT, DriftTable, FoundDrift
from gateway.drift.watch import judge_hours
from gateway.metering.bill import Bill
from gateway.observe.accounting import RequestAccounting
from gateway.observe.callbacks import Callbacks
from gateway.observe.ended import Ended
from gateway.observe.metrics import Metrics
from gateway.policy.schema import DriftSettings, LedgerSettings, Policy
from gateway.recording.kept_answer import KeptAnswer
from gateway.types import Call

log = logging.getLogger(__name__)

EVERY = 60.0
"""Seconds between two looks."""
WATCH = Actor("gateway", "drift")
"""Whose findings are nobody's."""
_MOST_ANSWERS = 1_000
"""Whose JSON is kept at once."""


class Drift:
    """One per worker; it outlives policies. Nothing runs while the policy has no ``drift``."""

    def __init__(
        self,
        state_dir: Path,
        callbacks: Callbacks,
        metrics: Metrics,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state_dir = state_dir
        self._callbacks = callbacks
        self._metrics = metrics
        self._clock = clock
        self._settings: DriftSettings | None = None
        self._where: LedgerSettings | None = None
        self._collector: Collector | None = None
        self._running: asyncio.Task[None] | None = None
        self._answers: dict[int, KeptAnswer] = {}
        """Of requests that are on their way and ask for JSON, by the receipt's identity."""
        self._down = False

    @property
    def settings(self) -> DriftSettings | None:
        return self._settings

    @property
    def table(self) -> DriftTable | None:
        return self._collector.table if self._collector is not None else None

    async def update(self, policy: Policy) -> None:
        self._settings = policy.drift
        if policy.drift is None:
            await self.aclose()
            return
        if self._collector is None or self._where != policy.ledger:
            before, self._where = self._collector, policy.ledger
            self._collector = Collector(DriftTable(open_tables(DRIFT, policy.ledger, self._state_dir)))
            if before is not None:
                await asyncio.to_thread(before.close)
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name="drift")

    def begin(self, call: Call) -> KeptAnswer | None:
        """What is to have the text of its answer: where JSON is asked for, to see whether it is some."""
        if call.line is not None or not asks_for_json(call.request) or len(self._answers) >= _MOST_ANSWERS:
            return None
        answer = self._answers[id(call.receipt)] = KeptAnswer(call.request, call.model)
        return answer

    def ended(self, call: Call, ended: Ended) -> None:
        answer = self._answers.pop(id(call.receipt), None)
        if self._collector is not None and call.line is None:  # whose pace and kind are those of no caller
            self._collector.add(seen(call, ended, self._clock(), answer))

    async def aclose(self) -> None:
        """What was counted up to now goes into the common hours."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        collector, self._collector = self._collector, None
        if collector is not None:
            await asyncio.to_thread(collector.close)
            self._metrics.drifts.sample({})

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Once. What fails is logged, and tried again at the next look."""
        collector, settings = self._collector, self._settings
        if collector is None or settings is None:
            return
        table = collector.table
        try:
            await asyncio.to_thread(collector.flush)
            await asyncio.to_thread(judge_hours, table, settings, self._clock())
            for one in await asyncio.to_thread(table.claim):
                await self._tell(one)
            lasting = await asyncio.to_thread(table.lasting)
            self._metrics.drifts.sample({(one.model, one.route, one.measure): 1.0 for one in lasting})
            self._down = False
        except DatabaseError as error:
            if not self._down:
                log.warning("drifts are not looked for while their database is away: %s", error)
            self._down = True
        except Exception:
            log.exception("drifts could not be looked for; it is tried again")

    async def _tell(self, one: FoundDrift) -> None:
        facts: dict[str, Any] = {
            "route": one.route,
            "measure": one.measure,
            "since": one.since,
            **one.facts,
        }
        log.warning(
            "drift of '%s' at %s: %s was %s, and is %s (by %s)",
            *(one.model, one.route, one.measure, one.facts.get("before"), one.facts.get("now")),
            one.facts.get("test"),
        )
        try:
            await asyncio.to_thread(
                lambda: AuditLog(self._state_dir).add(WATCH, "drift.found", one.model, **facts)
            )
        except OSError as error:
            log.error("the drift of '%s' is missing from the audit log: %s", one.model, error)
        self._callbacks.drift_found(one.model, one.route, one.measure, one.since, one.facts)


class DriftAccounting:
    """Where the policy looks for drifts: around the accounting that there would be without."""

    def __init__(self, accounting: RequestAccounting, drift: Drift) -> None:
        self._accounting = accounting
        self._drift = drift

    def record(self, call: Call, ended: Ended) -> None:
        self._accounting.record(call, ended)
        self._drift.ended(call, ended)

    def record_for_house(self, call: Call, bill: Bill) -> None:
        self._accounting.record_for_house(call, bill)
