"""A worker's recordings: requests that have ended come in, segments go out; nobody waits for either.

``add`` queues, a thread of its own renders, encrypts and appends to the open segment, and the event loop's task closes
old segments and has them put away (``Shipping``). What cannot be kept, as too much waits, a disk is full or a store is
away, is lost and counted. A process that is killed loses what it has not yet written, a second's; an open segment is
closed by who finds it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from gateway.databases.database import DatabaseError
from gateway.files.blobs import BlobError
from gateway.observe.batch_writer import BatchWriter, TryAgain
from gateway.observe.metrics import Metrics
from gateway.recording.data_key import DataKey
from gateway.recording.data_keys import DataKeys, KeyNotOurs
from gateway.recording.masking import TextMasker
from gateway.recording.operator_secret import SecretError
from gateway.recording.recorded_request import RecordedRequest
from gateway.recording.segment import SegmentFile
from gateway.recording.shipping import Shipping
from gateway.recording.snapshot import Snapshot

log = logging.getLogger(__name__)

SEGMENT = 16 * 2**20
"""Bytes at which a segment is closed."""
PAUSE = 1.0
"""Seconds in which requests come together: a frame holds more of them, and compresses better."""
MOST_BYTES = 64 * 2**20
"""Of all that waits to be written, approximately."""
RETRY = 1.0
TICK = 1.0
SECONDS_TO_MASK = 30.0
SECONDS_TO_CLOSE = 3.0
_AT_ONCE = 4
"""Texts that are masked side by side."""

_Item = tuple[Snapshot, TextMasker | None, int]


class Recordings:
    """Owned by the runtimes that share it; made on the event loop."""

    def __init__(
        self, spool: Path, keys: DataKeys, shipping: Shipping, metrics: Metrics, *, rotate: float
    ) -> None:
        """``rotate``: seconds after which a segment is closed that is not full."""
        self.shipping = shipping
        self._spool = spool
        self._keys = keys
        self._metrics = metrics
        self._rotate = rotate
        self._loop = asyncio.get_running_loop()
        self._writer: BatchWriter[_Item] = BatchWriter("recordings", self._write, pause=PAUSE)
        self._added = self._taken = 0
        """Bytes that came to be written, and those of them that do not wait any more."""
        self._lock = threading.Lock()
        """Of the open segment."""
        self._segment: SegmentFile | None = None
        self._opened = 0.0
        self._refused = self._written = self._lost = self._unmasked = 0
        self._told = (0, 0, 0)
        self._threads = ThreadPoolExecutor(1, "recordings-shipping")
        self._task = asyncio.create_task(self._run(), name="recordings")

    def add(self, kept: Snapshot, masker: TextMasker | None) -> None:
        """Never waits. ``masker``: where its text is to be kept."""
        size = kept.size
        is_full = self.shipping.is_full or self._added - self._taken + size > MOST_BYTES
        self._refused += is_full
        if is_full or not self._writer.add((kept, masker, size)):
            message = "requests are not recorded (%d so far): too much waits to be put away"
            self._writer.warn(log, message, self.lost)
            return
        self._added += size

    @property
    def lost(self) -> int:
        """Requests that were to be recorded, and are not."""
        return self._refused + self._lost + self._writer.lost

    async def idle(self) -> None:
        """Wait until all that was added is in a segment, and all closed segments are put away."""
        await asyncio.to_thread(self._writer.flush)

    async def aclose(self) -> None:
        """Write and put away what waits, within a few seconds each; what remains is found by the next process."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._writer.close)
        closing = self._loop.run_in_executor(self._threads, self._close)
        await asyncio.wait([closing], timeout=SECONDS_TO_CLOSE)
        self._threads.shutdown(wait=False)
        self._count()

    def rotate(self, older_than: float = 0.0) -> None:
        """Close the open segment where it is so old. Raises ``OSError``; it is closed all the same."""
        with self._lock:
            if self._segment is not None and time.monotonic() - self._opened >= older_than:
                self._close_segment(self._segment)

    def _close(self) -> None:
        try:
            self.rotate()
            self.shipping.ship_all()
        except (BlobError, DatabaseError, OSError) as error:
            log.warning(
                "%d segments wait to be put away by the next gateway: %s", self.shipping.waiting, error
            )
        finally:
            self.shipping.release()
            self.shipping.blobs.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._loop.run_in_executor(self._threads, self._turn)
                self._count()
            except Exception:
                log.exception("recordings could not be put away; it is tried again")
            await asyncio.sleep(TICK)

    def _turn(self) -> None:
        with suppress(OSError):  # the disk is full: what is in the segment stays there
            self.rotate(self._rotate)
        self.shipping.turn()

    def _count(self) -> None:
        """Metrics are the event loop's."""
        now = (self._written, self.lost, self._unmasked)
        for outcome, before, count in zip(("written", "lost", "without_text"), self._told, now, strict=True):
            if count > before:
                self._metrics.recorded.labels(outcome).inc(count - before)
        self._told = now
        self._metrics.recordings_waiting.set(self.shipping.waiting)

    def _write(self, batch: list[_Item]) -> None:
        """Runs in the writer's thread."""
        try:
            keys = {
                tenant: self._keys.of(tenant) for tenant in {item[0].ended.principal.tenant for item in batch}
            }
        except DatabaseError as error:
            self._writer.warn(log, "requests cannot be recorded now: %s; it is tried again", error)
            raise TryAgain(RETRY) from error
        except (KeyNotOurs, SecretError) as error:
            self._taken += sum(size for _, _, size in batch)
            self._lost += len(batch)
            self._writer.warn(log, "requests are not recorded (%d so far): %s", self.lost, error)
            return
        self._taken += sum(size for _, _, size in batch)
        self._mask(batch)
        rows: dict[str, list[RecordedRequest]] = {}
        for kept, _, _ in batch:
            key = keys[kept.ended.principal.tenant]
            try:
                rows.setdefault(key.tenant, []).append(kept.recorded(key))
            except Exception:
                self._lost += 1
                log.exception("the record of %s is lost to a bug", kept.ended.request_id)
        for tenant, requests in rows.items():
            try:
                self._append(keys[tenant], requests)
                self._written += len(requests)
            except OSError as error:
                self._lost += len(requests)
                self._writer.warn(log, "requests are not recorded (%d so far): %s", self.lost, error)

    def _append(self, key: DataKey, requests: list[RecordedRequest]) -> None:
        with self._lock:
            if self._segment is None:
                self._segment = SegmentFile.create(self._spool)
                self._opened = time.monotonic()
            self._segment.append(key, requests)
            if self._segment.size >= SEGMENT:
                self._close_segment(self._segment)

    def _close_segment(self, segment: SegmentFile) -> None:
        """With the lock."""
        self._segment = None
        self.shipping.put(segment)
        segment.sync()

    def _mask(self, batch: list[_Item]) -> None:
        """Guards are the event loop's; this thread waits for it."""
        wanted = [
            (kept, masker) for kept, masker, _ in batch if masker is not None and kept.answer is not None
        ]
        if not wanted:
            return
        masking = asyncio.run_coroutine_threadsafe(_masked(wanted), self._loop)
        try:
            self._unmasked += masking.result(SECONDS_TO_MASK)
        except TimeoutError:
            masking.cancel()
            self._unmasked += sum(kept.text is None for kept, _ in wanted)


async def _masked(wanted: list[tuple[Snapshot, TextMasker]]) -> int:
    """How many texts are not kept, as they could not be judged."""
    slots = asyncio.Semaphore(_AT_ONCE)
    missed = 0

    async def mask(kept: Snapshot, masker: TextMasker) -> None:
        nonlocal missed
        answer, principal = kept.answer, kept.ended.principal
        if answer is None:
            return
        async with slots:
            try:
                kept.text = await masker.masked(answer, principal, kept.route)
            except Exception as error:  # whose message may hold the text
                log.error("a text could not be masked: %s", type(error).__name__)
        missed += kept.text is None

    await asyncio.gather(*(mask(*one) for one in wanted))
    return missed
