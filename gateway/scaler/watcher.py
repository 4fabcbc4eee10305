"""Follows one target: reads its figures every few seconds, and says what they ask for."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping

from gateway.scaler.figures import Figures, NoFigures, Reader
from gateway.scaler.history import History, Lead
from gateway.scaler.target import Target

log = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds: who waits for the first engine waits for this, too."""
STALE = 60.0
"""Seconds after which figures say nothing any more."""
WORTH_WAKING = 0.1
"""Of what one engine is to have: less is foretold at night, too, and wakes nobody."""
MOST_WAIT = 2.0
"""Times as many engines as there are, at most, because requests wait."""


def per_engine(target: Target) -> dict[str, float]:
    """What one engine is to have of each metric: a HorizontalPodAutoscaler divides the metric's value by it."""
    found = {"demand": target.requests}
    if target.engines:
        found["kv-usage"] = 100 * target.kv_usage
        if target.queue_seconds:
            found["queue-wait"] = 100.0
    return found


class Watcher:
    def __init__(
        self,
        name: str,
        target: Target,
        reader: Reader,
        history: History,
        *,
        every: float = EVERY,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``name`` is for the log, ``every`` in seconds. ``clock`` tells Unix time."""
        self.target, self.history = target, history
        self.lead = Lead(target.lead)
        self.changed = asyncio.Condition()
        """Notified at each reading."""
        self.begun = asyncio.Event()
        """Set after the first one."""
        self.asked_at = time.monotonic()
        """When KEDA asked last."""
        self._name, self._reader, self._every, self._clock = name, reader, every, clock
        self._read_at = -math.inf
        self._figures = Figures(0.0)
        self._wait = 0.0
        """Mean seconds in the queue, of those who left it since the reading before."""
        self._why = "nothing was read yet"

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("%s: figures could not be read; it is tried again", self._name)
            self.begun.set()
            await asyncio.sleep(self._every)

    async def look(self) -> None:
        """Read once. What cannot be read is logged as it begins."""
        try:
            figures = await self._reader.read(self.target)
        except NoFigures as error:
            if self._why != str(error):
                log.warning("%s: %s", self._name, error)
            self._why = str(error)
        else:
            if self._why and self._read_at > 0:
                log.warning("%s: figures are read again", self._name)
            now = self._clock()
            self._wait = _mean_wait(self._figures.queued, figures.queued)
            self._figures, self._read_at, self._why = figures, now, ""
            self.history.add(now, figures.demand)
            if self.target.engines:
                wanted = math.ceil(self.metrics()["demand"] / self.target.requests)
                self.lead.note(now, figures.engines, wanted)
        async with self.changed:
            self.changed.notify_all()

    def metrics(self) -> dict[str, float]:
        """The values of what ``per_engine`` has. Raises ``NoFigures`` if they are stale: KEDA has its ``fallback``."""
        now = self._clock()
        if not 0 <= now - self._read_at <= STALE:  # a clock may be set back
            raise NoFigures(self._why or "nothing was read for a minute")
        figures, longest = self._figures, self.target.queue_seconds
        values = {
            "demand": max(figures.demand, self._coming(now)),
            "kv-usage": 100 * figures.kv_usage,
            "queue-wait": 100
            * max(1, figures.engines)
            * min(MOST_WAIT, self._wait / longest if longest else 0),
        }
        return {name: values[name] for name in per_engine(self.target)}

    def active(self) -> bool:
        """Whether one engine at least is needed. Raises ``NoFigures``."""
        self.metrics()
        return self._figures.demand > 0 or self._coming(self._clock()) >= WORTH_WAKING * self.target.requests

    def _coming(self, now: float) -> float:
        if not self.target.forecast:
            return 0.0
        return self.history.forecast(now, self.lead.seconds) or 0.0


def _mean_wait(before: Mapping[str, tuple[float, float]], now: Mapping[str, tuple[float, float]]) -> float:
    """Seconds, of those who left the queue in between, at gateways that were read both times and did not begin anew."""
    seconds = waits = 0.0
    for address, (its_seconds, its_waits) in now.items():
        seconds_before, waits_before = before.get(address, (math.inf, math.inf))
        if its_waits > waits_before and its_seconds >= seconds_before:
            seconds += its_seconds - seconds_before
            waits += its_waits - waits_before
    return seconds / waits if waits else 0.0
