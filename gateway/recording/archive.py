"""What was recorded, for who asks: listed, read, added to and deleted, beside running gateways. All of it waits."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from gateway.databases.database import DatabaseError
from gateway.files.blobs import BlobError, BlobMissing, BlobReader
from gateway.recording.data_keys import DataKeys
from gateway.recording.opening import RecordingPlaces
from gateway.recording.recorded_request import RecordedRequest
from gateway.recording.recording_table import Recorded
from gateway.recording.recordings import SEGMENT
from gateway.recording.segment import SegmentError, SegmentFile, frames
from gateway.recording.shipping import Shipping

log = logging.getLogger(__name__)

_PER_FRAME = 1_000
"""Requests that are sealed together."""
_EVER = float("inf")


class Archive:
    """Methods raise ``DatabaseError``, ``BlobError``, ``SecretError`` and ``KeyNotOurs``."""

    def __init__(self, places: RecordingPlaces) -> None:
        self._places = places
        self._keys = DataKeys(places.table, places.secret)

    def listed(self, tenant: str | None = None) -> list[Recorded]:
        return self._places.table.recorded(tenant) if self._places.table.exists else []

    def read(
        self, tenants: Collection[str] = (), *, since: float = 0.0, until: float = _EVER
    ) -> Iterator[RecordedRequest]:
        """Requests that came from ``since`` to ``until`` (Unix time), of these tenants, or of all: segment by segment,
        and so nearly in order. A segment that is gone, or was damaged, is logged and passed over."""
        if not self._places.table.exists:
            return
        until = min(until, 1e12)
        keys = [key for key in self._keys.all() if not tenants or key.tenant in tenants]
        by_id = {key.id: key for key in keys}
        for segment in self._places.table.segments([key.id.hex() for key in keys], since, until):
            reader = self._places.blobs.reader(segment, 0)
            try:
                for frame in frames(_Buffered(reader)):
                    key = by_id.get(frame.key_id)
                    if key is None or frame.ended < since or frame.began >= until:
                        continue
                    yield from (one for one in frame.requests_of(key) if since <= one.at < until)
            except (SegmentError, BlobMissing) as error:
                log.error("segment %s cannot be read on: %s", segment, error or "its content is gone")
            finally:
                reader.close()

    def delete(self, tenant: str) -> int:
        """All that was recorded of the tenant, by its data key first: from then on no copy can be read, whoever has
        it. Returns how many requests that were."""
        if not self._places.table.exists:
            return 0
        found = self._places.table.forget(tenant)
        self._keys.forget(tenant)
        # What is left there to delete is found by the gateway's sweep, too.
        with suppress(BlobError, DatabaseError):
            for segment in self._places.table.begin_sweep(0.0, 2**62):
                self._places.blobs.delete(segment)
                self._places.table.gone(segment)
        return found

    def add(self, requests: Iterable[RecordedRequest]) -> int:
        """Requests from elsewhere, each for the tenant that it names. Where an error ends it, what had been put away
        by then stays. Returns how many."""
        shipping = Shipping(
            self._places.spool,
            self._places.table,
            self._places.blobs,
            retention=0.0,
            max_bytes=0,
            sweeps=False,
            imports=True,
        )
        held: dict[str, list[RecordedRequest]] = defaultdict(list)
        added = 0
        segment = SegmentFile.create(self._places.spool)
        try:
            for one in requests:
                waiting = held[one.tenant]
                waiting.append(one)
                if len(waiting) >= _PER_FRAME:
                    segment.append(self._keys.of(one.tenant), held.pop(one.tenant))
                added += 1
                if segment.size >= SEGMENT:
                    shipping.put(segment)
                    shipping.ship_all()
                    segment = SegmentFile.create(self._places.spool)
            for tenant, waiting in held.items():
                segment.append(self._keys.of(tenant), waiting)
        except BaseException:
            segment.remove()
            raise
        shipping.put(segment)
        shipping.ship_all()
        return added

    def close(self) -> None:
        self._places.blobs.close()


class _Buffered:
    """Small reads of a reader that is far away, out of large ones."""

    def __init__(self, reader: BlobReader) -> None:
        self._reader = reader
        self._held = b""

    def read(self, size: int) -> bytes:
        if not self._held:
            self._held = self._reader.read(max(size, 2**20))
        found, self._held = self._held[:size], self._held[size:]
        return found
