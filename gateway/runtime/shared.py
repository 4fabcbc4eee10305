"""What this worker has that its siblings may be asked for: receipts, stored responses, requests in the background."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.control.peers import Handler
from gateway.observe import receipts
from gateway.runtime.background_requests import CANCEL, BackgroundRequests
from gateway.runtime.runtime import Runtime
from gateway.stores import workers_memory
from gateway.stores.workers_memory import WorkersMemory


def handlers(current: Callable[[], Runtime], background: BackgroundRequests) -> dict[str, Handler]:
    """By what the workers ask one another (``gateway.control.peers``)."""

    async def receipt(asked: Mapping[str, Any]) -> dict[str, Any]:
        return await current().receipts.answer(asked)

    async def stored(asked: Mapping[str, Any]) -> dict[str, Any]:
        responses = current().responses
        store = responses.store if responses is not None else None
        return await store.answer(asked) if isinstance(store, WorkersMemory) else {}

    return {receipts.DO: receipt, workers_memory.DO: stored, CANCEL: background.answer}
