"""One guard at work on one request: its scans by two checks, bounded in time, and the facts about them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Literal

from gateway.findings import Finding
from gateway.guards.guards import Guard
from gateway.guards.scanners.scanner import Origin, Unscanned, Verdict
from gateway.observe.metrics import Metrics
from gateway.types import Call, Json

log = logging.getLogger(__name__)

PATIENCE = 3
"""Failed scans of one answer or request after which the rest are not attempted."""
_CHECKS = ("none", "fast", "model", "judge", "webhook")
_STRICTEST = ("block", "redact", "mask", "flag")
"""Of several actions in one request or answer the receipt has the first."""


class Inspection:
    """``direction`` is ``input`` or ``output``."""

    unscanned = ""
    """Why a text could not be scanned; empty if all were."""
    skipped: frozenset[Origin] = frozenset()
    """Origins of texts that the guard is not made for."""
    _action = "pass"
    _check = "none"
    _score = 0.0
    _scans = 0
    _misses = 0
    _seconds = 0.0

    def __init__(
        self,
        guard: Guard,
        direction: Literal["input", "output"],
        metrics: Metrics,
        call: Call | None = None,
    ) -> None:
        """``call`` is the request that is inspected."""
        self.guard = guard
        self._call = call
        self._owner = call.principal.tenant if call is not None else ""
        self._direction = direction
        self._metrics = metrics
        self._labels: dict[str, int] = {}

    async def turn(self) -> None:
        """Wait until a piece may be scanned."""
        await self.guard.turns.take(self._owner)

    def quick(self, text: str, origin: Origin) -> Verdict | None:
        """The fast check's verdict. None where it has none. Raises ``Unscanned``."""
        began = time.perf_counter()
        try:
            verdict = self.guard.scanner.quick(text, origin)
        except Exception as error:
            raise self._failed("fast", began, error) from None
        if verdict is None:
            self._timed("fast", began, "open")
        else:
            self._timed(verdict.check, began, "found" if verdict.findings else "clean")
            self._record(verdict)
        return verdict

    def quick_all(self, pieces: Sequence[tuple[str, Origin]]) -> list[Verdict | None]:
        """The same for several pieces at once. Raises ``Unscanned`` for all of them."""
        quick = self.guard.scanner.quick
        began = time.perf_counter()
        try:
            verdicts = [quick(text, origin) for text, origin in pieces]
        except Exception as error:
            raise self._failed("fast", began, error) from None
        self._record_all(verdicts, time.perf_counter() - began)
        return verdicts

    async def quick_offloaded(self, pieces: Sequence[tuple[str, Origin]]) -> list[Verdict | None]:
        """The same for several pieces in another process, which is killed after the guard's ``timeout``."""
        offload = self.guard.offload
        if offload is None:
            return self.quick_all(pieces)
        if self._misses >= PATIENCE:
            raise Unscanned("unavailable")
        began = time.perf_counter()
        try:
            verdicts = await offload.quick(self._owner, pieces)
        except Exception as error:
            raise self._failed("fast", began, error) from None
        self._record_all(verdicts, time.perf_counter() - began)
        return verdicts

    async def thorough(self, texts: Sequence[str], origin: Origin) -> list[Verdict]:
        """What the fast check left open. Raises ``Unscanned``."""
        if self._misses >= PATIENCE:
            raise Unscanned("unavailable")
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self.guard.config.timeout):
                verdicts = await self.guard.scanner.thorough(texts, origin, self._call)
            if len(verdicts) != len(texts):
                raise Unscanned("not every text has a verdict")
        except Exception as error:
            raise self._failed(self.guard.slow_check, began, error) from None
        found = any(verdict.findings for verdict in verdicts)
        self._timed(verdicts[0].check if verdicts else "model", began, "found" if found else "clean")
        for verdict in verdicts:
            self._record(verdict)
        return verdicts

    def found(self, findings: Sequence[Finding], action: str = "") -> None:
        """Count findings that are acted on: as the guard, or who found them, says, unless ``action`` is named."""
        counts: dict[str, int] = {}
        for finding in findings:
            self._labels[finding.label] = self._labels.get(finding.label, 0) + 1
            done = action or self.guard.action_on(finding)
            counts[done] = counts.get(done, 0) + 1
        for done, count in counts.items():
            if self._action not in _STRICTEST or done not in _STRICTEST:
                self._action = done
            else:
                self._action = min(self._action, done, key=_STRICTEST.index)
            self._metrics.guard_hits.labels(self.guard.name, self._direction, done).inc(count)

    def missed(self, reason: str) -> None:
        """A text was not scanned."""
        self.unscanned = self.unscanned or reason
        self._misses += 1
        self._metrics.guard_unscanned.labels(self.guard.name, self._direction).inc()

    def facts(self) -> dict[str, Json]:
        """For the receipt; never holds any text."""
        config = self.guard.config
        refused = bool(self.unscanned) and config.refuses_unjudged
        facts: dict[str, Json] = {
            "direction": self._direction,
            "action": "block" if refused else self._action,
            "labels": dict(self._labels),
            "check": self._check,
            "score": round(self._score, 3),
            "scans": self._scans,
            "seconds": round(self._seconds, 6),
        }
        if self.skipped:
            facts["not_scanned"] = sorted(self.skipped)
        return {**facts, "unscanned": self.unscanned} if self.unscanned else facts

    def _record_all(self, verdicts: Sequence[Verdict | None], seconds: float) -> None:
        scans: dict[tuple[str, str], int] = {}
        for verdict in verdicts:
            if verdict is None:
                kind = ("fast", "open")
            else:
                kind = (verdict.check, "found" if verdict.findings else "clean")
                self._record(verdict)
            scans[kind] = scans.get(kind, 0) + 1
        for (check, outcome), times in scans.items():
            self._count(check, seconds / len(verdicts), outcome, times)

    def _record(self, verdict: Verdict) -> None:
        if verdict.score or verdict.findings:
            self._score = max(self._score, verdict.score, *(finding.score for finding in verdict.findings))
        if verdict.check == self._check:
            return
        if verdict.check not in _CHECKS or _CHECKS.index(verdict.check) > _CHECKS.index(self._check):
            self._check = verdict.check if verdict.check in _CHECKS else "model"

    def _timed(self, check: str, began: float, outcome: str) -> None:
        self._count(check, time.perf_counter() - began, outcome)

    def _count(self, check: str, seconds: float, outcome: str, times: int = 1) -> None:
        self._scans += times
        self._seconds += seconds * times
        self._metrics.guard_scans.labels(self.guard.name, check, outcome).inc(times)
        self._metrics.guard_seconds.labels(self.guard.name, check).observe_each(seconds, times)

    def _failed(self, check: str, began: float, error: Exception) -> Unscanned:
        self._timed(check, began, "unscanned")
        if isinstance(error, TimeoutError):
            return Unscanned(f"no verdict within {self.guard.config.timeout:g} s")
        if isinstance(error, Unscanned):
            self.guard.complaints.tell(str(error))
            return Unscanned("unavailable")
        # The error's message may hold the text.
        log.error("guard '%s' failed with %s", self.guard.name, type(error).__name__)
        return Unscanned("failed")
