"""Looks hourly for end users who cost far more than others, where a receiver wants to hear of them, beside the loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from gateway.databases.database import DatabaseError
from gateway.observe.callbacks import Callbacks
from gateway.observe.ledger.cost_outliers import find_outliers
from gateway.runtime.runtime import Runtime

log = logging.getLogger(__name__)

EVERY = 3600.0
SPAN = 86_400.0
"""Seconds of requests that are looked at."""
_LOOKS = 10.0
"""Seconds between two looks at whether a receiver wants to hear of it by now."""


async def watch_costs(
    callbacks: Callbacks, current: Callable[[], Runtime], *, every: float = EVERY, looks: float = _LOOKS
) -> None:
    """Until cancelled. One worker of a machine does this; of several replicas the first to see an outlier tells it."""
    due = 0.0
    while True:
        ledger = current().ledger
        if ledger is not None and time.monotonic() >= due and callbacks.wants("cost"):
            due = time.monotonic() + every
            now = time.time()
            try:
                for outlier in await asyncio.to_thread(find_outliers, ledger.database, now - SPAN, now):
                    callbacks.cost_outlier(outlier, SPAN)
            except DatabaseError as error:
                log.warning("the ledger '%s' cannot be searched for outliers: %s", ledger.database, error)
            except Exception:
                log.exception("outliers could not be looked for; it is tried again")
        await asyncio.sleep(looks)
