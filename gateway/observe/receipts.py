"""Stores each request's receipt for ``/v1/requests/{id}``, off the request's own path."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from typing import Any, cast

import orjson

from gateway.control.peers import Peers
from gateway.observe.batch_writer import SECONDS_TO_CLOSE, BatchWriter
from gateway.observe.receipt_codec import ReceiptCodec
from gateway.stores.memory import MemoryStore
from gateway.stores.store import Store, StoreDown
from gateway.types import Receipt

TTL = 3600.0
"""Seconds for which a receipt can be looked up."""
IN_MEMORY = 8 * 2**20
"""Bytes of them, at most, in a worker's own memory: some 17,000."""
DO = "receipt"
"""What the workers call it when they ask one another."""
_UNTIL_ENDED = (0.03, 0.06)
"""Seconds between two looks for a receipt of another worker, whose request may just be ending."""
_UNTIL_STORED = (0.03, 0.06, 0.12, 0.24, 0.48)
"""The same, of another gateway, which first stores it."""
_MOST_WAITING = 100
_MADE_UP = re.compile(r"req_([0-9a-f]{11})[0-9a-f]{13}")
"""An id that a gateway gave, with its time in milliseconds."""

log = logging.getLogger(__name__)


class Receipts:
    """Owns the store, and writes to it in batches (``gateway.observe.batch_writer``).

    When the store is down or falls far behind, receipts are lost, not requests.
    """

    def __init__(self, store: Store, peers: Peers | None = None) -> None:
        """``peers`` are the other workers of this machine, which each keep their own in memory, or are about to store
        them."""
        self.store = store
        self._peers = peers
        self._pauses: tuple[float, ...] = () if peers is None or peers.alone else _UNTIL_ENDED
        self._codec: ReceiptCodec | None = ReceiptCodec()
        if not isinstance(store, MemoryStore):
            self._pauses = _UNTIL_STORED
            self._codec = None  # gateways of other versions read them there
        self._late = 0
        self._loop = asyncio.get_running_loop()
        self._writer = BatchWriter("receipts", self._write)

    def keep(self, tenant: str, receipt: Receipt) -> None:
        """It may be kept again when more is known of it."""
        self._writer.add((tenant, receipt))

    async def find(self, tenant: str, request_id: str) -> dict[str, Any] | None:
        """The receipt of one of the tenant's requests. Raises ``StoreDown``.

        Who answers a request stores its receipt a moment later, so that nobody waits for that; another process that is
        asked for it in this moment looks again, for a second at most.
        """
        found = await self._find(tenant, request_id)
        if found is not None or not self._pauses or not _may_come(request_id) or self._late >= _MOST_WAITING:
            return found
        self._late += 1
        try:
            for pause in self._pauses:
                await asyncio.sleep(pause)
                if (found := await self._find(tenant, request_id)) is not None:
                    break
        finally:
            self._late -= 1
        return found

    async def _find(self, tenant: str, request_id: str) -> dict[str, Any] | None:
        found = await self.find_here(tenant, request_id)
        if found is not None or self._peers is None:
            return found
        try:
            asked = {"do": DO, "id": request_id, "tenants": [tenant]}
            answers = await self._peers.ask_others(asked)
        except TimeoutError:
            raise StoreDown("A worker that may have it does not answer.") from None
        return next((answer["receipt"] for answer in answers if "receipt" in answer), None)

    async def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What this worker itself has, for the others."""
        for tenant in asked["tenants"]:
            if (found := await self.find_here(str(tenant), str(asked["id"]))) is not None:
                return {"receipt": found}
        return {}

    async def find_here(self, tenant: str, request_id: str) -> dict[str, Any] | None:
        """One that this worker stores, or that is in its store. Raises ``StoreDown``."""
        for owner, receipt in self._writer.waiting():
            if receipt.request_id == request_id and owner == tenant:
                return cast("dict[str, Any]", orjson.loads(_body(receipt)))
        value = await self.store.get(_key(tenant, request_id))
        if value is not None and self._codec is not None:
            value = self._codec.decode(value)
        return None if value is None else orjson.loads(value)

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
                body = _body(receipt)
            except TypeError:
                self._writer.lost += 1
                log.exception("the receipt of %s is lost to a bug", receipt.request_id)
                continue
            coded = body if self._codec is None else self._codec.encode(body)
            bodies[_key(tenant, receipt.request_id)] = coded
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


def _may_come(request_id: str) -> bool:
    made = _MADE_UP.fullmatch(request_id)
    return made is not None and abs(time.time() - int(made[1], 16) / 1000) < TTL


def _body(receipt: Receipt) -> bytes:
    return orjson.dumps(
        {
            "id": receipt.request_id,
            "object": "tollgate.receipt",
            "created": round(receipt.created, 3),
            "stages": receipt.notes,
        }
    )
