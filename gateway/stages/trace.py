"""The request's place in a distributed trace, its receipt, and one log line when it ends."""

from __future__ import annotations

import random
from functools import partial

from gateway.errors import GatewayError
from gateway.observe.outcome import outcome_of, reason_of
from gateway.observe.receipts import Receipts
from gateway.observe.tracing import close_request, trace_context
from gateway.types import Call


class TraceRecorder:
    """Continues the caller's trace, or begins one, and sends it upstream."""

    __slots__ = ("_call", "_flags", "_receipts", "_trace_id")

    chunk = None

    def __init__(self, receipts: Receipts, call: Call) -> None:
        self._receipts = receipts
        self._call = call
        self._trace_id, self._flags = trace_context(call.headers.get("traceparent", ""))

    async def begin(self) -> None:
        parent = f"00-{self._trace_id}-{random.getrandbits(64):016x}-{self._flags}"
        self._call.headers = {**self._call.headers, "traceparent": parent}

    def end(self, error: BaseException | None) -> None:
        status, reason = 200, None
        if error is not None:
            status, reason = outcome_of(error).status, reason_of(error)
            if isinstance(error, GatewayError):
                error.logged = True
        close_request(self._receipts, self._call, self._trace_id, status, reason)


def trace(receipts: Receipts) -> partial[TraceRecorder]:
    return partial(TraceRecorder, receipts)
