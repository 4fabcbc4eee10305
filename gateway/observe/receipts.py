"""Keeps each request's receipt for ``/v1/requests/{id}``, off the request's own path."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import orjson

from gateway.stores.store import Store, StoreDown
from gateway.types import Receipt

TTL = 3600.0
"""Seconds for which a receipt can be looked up."""
BACKLOG = 10_000
SECONDS_TO_CLOSE = 3.0

log = logging.getLogger(__name__)


class Receipts:
    """Owns the store, and writes to it from a task of its own.

    When the store is down or falls far behind, receipts are lost, not requests.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: asyncio.Queue[tuple[str, Receipt]] = asyncio.Queue(BACKLOG)
        self._dropped = 0
        self._writer = asyncio.create_task(self._write())

    def keep(self, tenant: str, receipt: Receipt) -> None:
        try:
            self._waiting.put_nowait((_key(tenant, receipt.request_id), receipt))
        except asyncio.QueueFull:
            self._dropped += 1

    async def find(self, tenant: str, request_id: str) -> dict[str, Any] | None:
        """The receipt of one of the tenant's requests. Raises ``StoreDown``."""
        value = await self._store.get(_key(tenant, request_id))
        return None if value is None else orjson.loads(value)

    async def _write(self) -> None:
        while True:
            key, receipt = await self._waiting.get()
            try:
                await self._store.put(key, orjson.dumps(_body(receipt)), TTL)
            except StoreDown as error:
                self._dropped += 1
                log.warning("a receipt is lost (%d so far): %s", self._dropped, error)
            except Exception:
                self._dropped += 1
                log.exception("the receipt of %s is lost to a bug", receipt.request_id)
            finally:
                self._waiting.task_done()

    async def aclose(self) -> None:
        """Store what is still waiting, within a few seconds, and close the store."""
        try:
            async with asyncio.timeout(SECONDS_TO_CLOSE):
                await self._waiting.join()
        except TimeoutError:
            log.warning("%d receipts were not stored in time", self._waiting.qsize())
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
