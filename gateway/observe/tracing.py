"""A request's context in a distributed trace (https://www.w3.org/TR/trace-context/), and its receipt and log line."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Iterable

from gateway.observe.events import log_event
from gateway.observe.receipts import Receipts
from gateway.types import Call

log = logging.getLogger("gateway.requests")

TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def trace_context(parent: str) -> tuple[str, str]:
    """The trace id and flags of the caller's ``traceparent``, or of a new trace."""
    if parent and TRACEPARENT.fullmatch(parent):
        return parent[3:35], parent[53:55]
    return f"{random.getrandbits(128):032x}", "00"


def sent_trace_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The trace id in a request's headers, as ASGI has them; None where there is none."""
    for name, value in headers:
        if name == b"traceparent":
            parent = value.decode("latin-1")
            return parent[3:35] if TRACEPARENT.fullmatch(parent) else None
    return None


def trace_id_of(call: Call) -> str | None:
    """The trace id of a call that has passed the stage ``trace``."""
    parent = call.headers.get("traceparent", "")
    return parent[3:35] or None


def close_request(
    receipts: Receipts, call: Call, trace_id: str, status: int, error: str | None = None
) -> None:
    """Store the receipt of a request that has ended, and log one line. ``error`` is why it failed."""
    seconds = round(time.perf_counter() - call.started, 6)
    notes = call.receipt.notes
    who = call.principal.key_id
    notes["trace"] = {"trace_id": trace_id, "key": who, "status": status, "seconds": seconds}
    receipts.keep(call.principal.tenant, call.receipt)
    level = level_of(status)
    if not log.isEnabledFor(level):
        return
    meter, quota = notes.get("meter", {}), notes.get("quota", {})
    attempts = notes.get("fallback", {}).get("attempts")
    # What our own queue refused was not sent.
    backend = attempts[-1]["backend"] if attempts and attempts[-1].get("admitted", True) else None
    model, tenant = call.request.model, call.principal.tenant
    message = f"{call.request_id} {model} {status} {seconds * 1000:.1f} ms"
    if error is not None:
        message += f" {error} tenant={tenant} backend={backend or '-'}"
    log_event(
        log,
        level,
        "request",
        message,
        *(call.request_id, trace_id, tenant, who, model, backend, status, error),
        *(meter.get("prompt_tokens"), meter.get("completion_tokens")),
        *(quota.get("unit"), quota.get("units"), quota.get("cost_usd"), seconds),
    )


def level_of(status: int) -> int:
    """The level of a request's log line: failures are warnings, internal ones errors."""
    if status < 400 or status == 499:
        return logging.INFO
    return logging.ERROR if status == 500 else logging.WARNING
