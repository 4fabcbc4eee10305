"""The outermost stage: the request's place in a distributed trace, its receipt, and one log line when it ends."""

from __future__ import annotations

import random
from contextlib import aclosing

from gateway.errors import GatewayError
from gateway.observe.outcome import outcome_of, reason_of
from gateway.observe.receipts import Receipts
from gateway.observe.tracing import close, place_of
from gateway.types import Call, Chunks, Handler, Stage


def trace(receipts: Receipts) -> Stage:
    """Continues the caller's trace, or begins one, and hands it upstream."""

    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            trace_id, flags = place_of(call.headers.get("traceparent", ""))
            span = f"{random.getrandbits(64):016x}"
            call.headers = {**call.headers, "traceparent": f"00-{trace_id}-{span}-{flags}"}
            status, reason = 200, None
            try:
                async with aclosing(following(call)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except BaseException as error:
                status, reason = outcome_of(error).status, reason_of(error)
                if isinstance(error, GatewayError):
                    error.logged = True
                raise
            finally:
                close(receipts, call, trace_id, status, reason)

        return handle

    return stage
