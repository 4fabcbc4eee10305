"""A request's place in a distributed trace (https://www.w3.org/TR/trace-context/), and what is told when it ends."""

from __future__ import annotations

import logging
import random
import re
import time

from gateway.observe.receipts import Receipts
from gateway.types import Call

log = logging.getLogger("gateway.requests")

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def place_of(parent: str) -> tuple[str, str]:
    """The trace id and flags of the caller's ``traceparent``; those of a new trace where it is none."""
    if parent and _TRACEPARENT.fullmatch(parent):
        return parent[3:35], parent[53:55]
    return f"{random.getrandbits(128):032x}", "00"


def close(receipts: Receipts, call: Call, trace_id: str, status: int) -> None:
    """Keep the receipt of a request that has ended, and log one line about it."""
    seconds = round(time.perf_counter() - call.started, 6)
    call.receipt.notes["trace"] = {"trace_id": trace_id, "status": status, "seconds": seconds}
    tenant = call.principal.tenant
    receipts.keep(tenant, call.receipt)
    if log.isEnabledFor(logging.INFO):
        who = {"request_id": call.request_id, "tenant": tenant, "trace_id": trace_id}
        log.info("%s %s %d %.1f ms", call.request_id, call.request.model, status, seconds * 1000, extra=who)
