"""A request's context in a distributed trace (https://www.w3.org/TR/trace-context/)."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

from gateway.types import Call

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
    """The trace id of a call that ``record`` has begun."""
    parent = call.headers.get("traceparent", "")
    return parent[3:35] or None
