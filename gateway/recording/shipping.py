"""Segments on their way from this machine's disk to where recordings are kept, and out of there when their time comes.

A closed segment's content is written first, its row in the database after it, and only then is its file removed: what a
crash, a full disk or a server that is away leaves behind is found here again, by this process or by the next. A segment
whose writer is gone is closed, and put away, by whoever sees it first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gateway.databases.database import DatabaseError
from gateway.files.blobs import BlobError, Blobs
from gateway.recording.recording_table import RecordingTable
from gateway.recording.segment import SegmentError, SegmentFile

log = logging.getLogger(__name__)

MOST_WAITING = 16
"""Closed segments that may wait for a store that is away; nothing more is recorded until they are fewer."""
RETRY = 10.0
"""Seconds after which a store that failed is tried again."""
ADOPT_EVERY = 30.0
SWEEP_EVERY = 600.0


class Shipping:
    """One process's. ``turn`` is called again and again, in one thread at a time; ``put`` in any."""

    def __init__(
        self,
        spool: Path,
        table: RecordingTable,
        blobs: Blobs,
        *,
        retention: float,
        max_bytes: int,
        sweeps: bool,
        imports: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``spool`` holds segments until they are put away; all workers of a machine have the same.

        ``imports``: what it puts away came from elsewhere, and its age counts from now. ``sweeps``: whether this
        process deletes what is older than ``retention`` seconds, or beyond ``max_bytes``.
        """
        self.blobs = blobs
        self.table = table
        self._spool = spool
        self._retention = retention
        self._max_bytes = max_bytes
        self._sweeps = sweeps
        self._imports = imports
        self._clock = clock
        self._closed: list[SegmentFile] = []
        self._lock = threading.Lock()
        self._due = {"ship": 0.0, "adopt": 0.0, "sweep": 0.0}
        """When each is tried next."""

    @property
    def waiting(self) -> int:
        """Closed segments that are not yet put away."""
        return len(self._closed)

    @property
    def is_full(self) -> bool:
        return len(self._closed) >= MOST_WAITING

    def put(self, segment: SegmentFile) -> None:
        """It is closed, and to be put away."""
        with self._lock:
            self._closed.append(segment)

    def turn(self) -> None:
        """All that is due. Raises nothing that a store that is away would raise: that is logged, and tried again."""
        for name, work in (("adopt", self._adopt), ("ship", self._ship), ("sweep", self._sweep)):
            now = self._clock()
            if now < self._due[name]:
                continue
            try:
                self._due[name] = now + work()
            except (BlobError, DatabaseError, OSError) as error:
                self._due[name] = now + RETRY
                log.warning("recorded requests cannot be put away now, and are tried again: %s", error)

    def ship_all(self) -> None:
        """Now, whenever it was tried last. Raises ``BlobError``, ``DatabaseError`` and ``OSError``."""
        self._ship()

    def release(self) -> None:
        """Nothing more is put away here: others may."""
        for segment in self._closed:
            segment.release()
        self._closed = []

    def _ship(self) -> float:
        while self._closed:
            segment = self._closed[0]
            self._keep(segment)
            segment.remove()
            with self._lock:
                self._closed.pop(0)
        return 0.0

    def _keep(self, segment: SegmentFile) -> None:
        if not segment.parts:
            return
        self.blobs.delete(segment.name)  # what an attempt before this one may have left
        writer = self.blobs.writer(segment.name)
        try:
            segment.read_all(writer.write)
            writer.commit()
        except BaseException:
            with suppress(BlobError):
                writer.abort()
            raise
        since = self._clock() if self._imports else None
        if not self.table.enter(segment.name, segment.size, segment.parts, since):
            self.blobs.delete(segment.name)  # all of it is of tenants whose keys were deleted

    def _adopt(self) -> float:
        mine = {segment.path for segment in self._closed}
        for path in sorted(self._spool.glob("*.segment")) if self._spool.is_dir() else ():
            if path in mine:
                continue
            try:
                found = SegmentFile.adopt(path)
            except SegmentError as error:
                log.error("'%s' is no segment that can be read, and is set aside: %s", path, error)
                path.rename(path.with_suffix(".damaged"))
                continue
            if found is not None:
                self.put(found)
        return ADOPT_EVERY

    def _sweep(self) -> float:
        if not self._sweeps or not self.table.exists:
            return SWEEP_EVERY
        due = self.table.begin_sweep(self._clock() - self._retention, self._max_bytes)
        for segment in due:
            self.blobs.delete(segment)
            self.table.gone(segment)
        return 0.0 if due else SWEEP_EVERY
