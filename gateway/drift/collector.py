"""Counts what ended, in a thread of its own, and adds it to the common hours once a minute.

A worker that is killed loses what it counted since: at most a minute of sketches, and no request.
"""

from __future__ import annotations

import logging
import threading

from gateway.databases.database import DatabaseError
from gateway.drift.hour_sketch import HourSketch
from gateway.drift.seen import Seen
from gateway.drift.table import HOUR, MOST_SERIES, DriftTable, Place
from gateway.observe.batch_writer import BatchWriter

log = logging.getLogger(__name__)

PAUSE = 0.5
"""Seconds in which requests come together before they are counted."""
MOST_HOURS = 3
"""Hours that wait for a database that is away; then the oldest are lost."""
_LONGEST_NAME = 256


class Collector:
    """One for each worker."""

    def __init__(self, table: DriftTable) -> None:
        self.table = table
        self._writer: BatchWriter[Seen] = BatchWriter("drift", self._count, pause=PAUSE)
        self._lock = threading.Lock()
        self._hours: dict[tuple[int, Place], HourSketch] = {}
        self._flushing = threading.Lock()

    def add(self, one: Seen) -> None:
        self._writer.add(one)

    def flush(self) -> None:
        """Blocks: add what was counted to the table. What fails waits for the next time."""
        with self._flushing:
            self._writer.flush(10.0)
            self._flush()

    def close(self) -> None:
        """Blocks for some seconds at most."""
        self._writer.close()
        with self._flushing:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            hours, self._hours = self._hours, {}
        if not hours:
            return
        try:
            self.table.add(hours)
        except DatabaseError as error:
            self._writer.warn(
                log, "what was counted of drifts cannot be written (%s); it is tried again", error
            )
            self._again(hours)

    def _again(self, hours: dict[tuple[int, Place], HourSketch]) -> None:
        with self._lock:
            for where, sketch in self._hours.items():
                hours.setdefault(where, HourSketch()).merge(sketch)
            newest = sorted({hour for hour, _ in hours})[-MOST_HOURS:]
            self._hours = {where: sketch for where, sketch in hours.items() if where[0] in newest}

    def _count(self, batch: list[Seen]) -> None:
        with self._lock:
            for one in batch:
                where = int(one.at // HOUR * HOUR), Place(one.model[:_LONGEST_NAME], one.route)
                sketch = self._hours.get(where)
                if sketch is None:
                    if len(self._hours) >= MOST_SERIES * MOST_HOURS:
                        continue
                    sketch = self._hours[where] = HourSketch()
                try:
                    one.count(sketch)
                except Exception:
                    log.exception("%s could not be counted for drifts", one.ended.request_id)
