"""Stores each request's receipt for ``/v1/requests/{id}``, off the request's own path."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import orjson

from gateway.observe.batch_writer import SECONDS_TO_CLOSE, BatchWriter
from gateway.stores.store import Store, StoreDown
from gateway.types import Receipt

TTL = 3600.0
"""Seconds for which a receipt can be looked up."""

log = logging.getLogger(__name__)


class Receipts:
    """Owns the store, and writes to it in batches (``gateway.observe.batch_writer``).

    When the store is down or falls far behind, receipts are lost, not requests.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._loop = asyncio.get_running_loop()
        self._writer = BatchWriter("receipts", self._write)

    def keep(self, tenant: str, receipt: Receipt) -> None:
        """It may be kept again when more is known of it."""
        self._writer.add((tenant, receipt))

    async def find(self, tenant: str, request_id: str) -> dict[str, Any] | None:
        """The receipt of one of the tenant's requests. Raises ``StoreDown``."""
        for owner, receipt in self._writer.waiting():
            if receipt.request_id == request_id and owner == tenant:
                return cast("dict[str, Any]", orjson.loads(_body(receipt)))
        value = await self.store.get(_key(tenant, request_id))
        return None if value is None else orjson.loads(value)

    async def written(self) -> None:
        """Wait until no receipt waits to be stored."""
        await asyncio.to_thread(self._writer.flush)

    async def aclose(self) -> None:
        """Store what is still waiting, within a few seconds, and close the store."""
        await asyncio.to_thread(self._writer.close)
        if late := len(self._writer.waiting()):
            log.warning("%d receipts were not stored in time", late)
        await self.store.aclose()

    def _write(self, batch: list[tuple[str, Receipt]]) -> None:
        """Runs in the writer's thread; the store is the event loop's."""
        bodies = {}
        for tenant, receipt in batch:
            try:
                bodies[_key(tenant, receipt.request_id)] = _body(receipt)
            except TypeError:
                self._writer.lost += 1
                log.exception("the receipt of %s is lost to a bug", receipt.request_id)
        storing = asyncio.run_coroutine_threadsafe(self.store.put(bodies, TTL), self._loop)
        try:
            storing.result(SECONDS_TO_CLOSE)
        except (StoreDown, TimeoutError) as error:
            storing.cancel()
            self._writer.lost += len(bodies)
            message = "receipts are lost (%d so far): %s"
            self._writer.warn(log, message, self._writer.lost, str(error) or "the event loop is blocked")


def _key(tenant: str, request_id: str) -> str:
    # A tenant's name can hold a colon but no space: no tenant can spell out another's key.
    return f"receipt:{tenant} {request_id}"


def _body(receipt: Receipt) -> bytes:
    return orjson.dumps(
        {
            "id": receipt.request_id,
            "object": "tollgate.receipt",
            "created": round(receipt.created, 3),
            "stages": receipt.notes,
        }
    )
