"""Keeps each request's receipt for ``/v1/requests/{id}``, off the request's own path."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from itertools import islice
from typing import Any, cast

import orjson

from gateway.stores.store import Store, StoreDown
from gateway.types import Receipt

TTL = 3600.0
"""Seconds for which a receipt can be looked up."""
BACKLOG = 10_000
BATCH = 256
PAUSE = 0.05
"""Seconds between two batches: what comes together is written together."""
WARN_EVERY = 60.0
SECONDS_TO_CLOSE = 3.0

log = logging.getLogger(__name__)


class Receipts:
    """Owns the store, and writes to it from a task of its own.

    When the store is down or falls far behind, receipts are lost, not requests.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, Receipt] = {}
        self._writing: dict[str, Receipt] = {}
        """Taken from those that wait: one that is kept again meanwhile is written again."""
        self._dropped = 0
        self._warned = float("-inf")
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._writer = asyncio.create_task(self._write())

    def keep(self, tenant: str, receipt: Receipt) -> None:
        """It may be kept again when more is known of it."""
        if len(self._waiting) >= BACKLOG:
            self._dropped += 1
            return
        self._waiting[_key(tenant, receipt.request_id)] = receipt
        if len(self._waiting) == 1:
            self._idle.clear()
            self._more.set()

    async def find(self, tenant: str, request_id: str) -> dict[str, Any] | None:
        """The receipt of one of the tenant's requests. Raises ``StoreDown``."""
        key = _key(tenant, request_id)
        if receipt := self._waiting.get(key) or self._writing.get(key):
            return cast("dict[str, Any]", orjson.loads(orjson.dumps(_body(receipt))))
        value = await self._store.get(key)
        return None if value is None else orjson.loads(value)

    async def written(self) -> None:
        """Wait until nothing is waiting."""
        await self._idle.wait()

    async def _write(self) -> None:
        while True:
            await self._more.wait()
            self._writing = dict(islice(self._waiting.items(), BATCH))
            for key in self._writing:
                del self._waiting[key]
            try:
                await self._store.put_many(self._bodies(self._writing), TTL)
            except StoreDown as error:
                self._lose(len(self._writing), error)
            except Exception:
                self._dropped += len(self._writing)
                log.exception("%d receipts are lost to a bug", len(self._writing))
            self._writing = {}
            if not self._waiting:
                self._more.clear()
                self._idle.set()
                await asyncio.sleep(PAUSE)

    def _lose(self, count: int, error: StoreDown) -> None:
        """Told once a minute: a store that is away fails every batch."""
        self._dropped += count
        now = time.monotonic()
        if now - self._warned >= WARN_EVERY:
            self._warned = now
            log.warning("receipts are lost (%d so far): %s", self._dropped, error)

    def _bodies(self, batch: Mapping[str, Receipt]) -> dict[str, bytes]:
        bodies = {}
        for key, receipt in batch.items():
            try:
                bodies[key] = orjson.dumps(_body(receipt))
            except TypeError:
                self._dropped += 1
                log.exception("the receipt of %s is lost to a bug", receipt.request_id)
        return bodies

    async def aclose(self) -> None:
        """Store what is still waiting, within a few seconds, and close the store."""
        try:
            async with asyncio.timeout(SECONDS_TO_CLOSE):
                await self.written()
        except TimeoutError:
            log.warning("%d receipts were not stored in time", len(self._waiting) + len(self._writing))
        self._writer.cancel()
        await self._store.aclose()


def _key(tenant: str, request_id: str) -> str:
    # A tenant's name can hold a colon but no space: no tenant can spell out another's key.
    return f"receipt:{tenant} {request_id}"


def _body(receipt: Receipt) -> dict[str, Any]:
    return {
        "id": receipt.request_id,
        "object": "tollgate.receipt",
        "created": round(receipt.created, 3),
        "stages": receipt.notes,
    }
