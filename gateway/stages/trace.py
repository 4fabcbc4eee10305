"""The outermost stage: the request's place in a distributed trace, its receipt, and one log line when it ends."""

from __future__ import annotations

import logging
import random
import re
import time
from contextlib import aclosing

from gateway.observe.outcome import outcome_of
from gateway.observe.receipts import Receipts
from gateway.types import Call, Chunks, Handler, Stage

log = logging.getLogger("gateway.requests")

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def trace(receipts: Receipts) -> Stage:
    """Continues the caller's trace, or begins one, and hands it upstream (https://www.w3.org/TR/trace-context/)."""

    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            parent = call.headers.get("traceparent", "")
            trace_id = parent[3:35] if _TRACEPARENT.fullmatch(parent) else f"{random.getrandbits(128):032x}"
            flags = parent[53:55] if _TRACEPARENT.fullmatch(parent) else "00"
            call.headers = {
                **call.headers,
                "traceparent": f"00-{trace_id}-{random.getrandbits(64):016x}-{flags}",
            }
            status = 200
            try:
                async with aclosing(following(call)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except BaseException as error:
                status = outcome_of(error).status
                raise
            finally:
                seconds = round(time.perf_counter() - call.started, 6)
                call.receipt.note("trace", trace_id=trace_id, status=status, seconds=seconds)
                receipts.keep(call.principal.tenant, call.receipt)
                if log.isEnabledFor(logging.INFO):
                    who = {"tenant": call.principal.tenant, "trace_id": trace_id}
                    facts = (call.request_id, call.request.model, status, seconds * 1000)
                    log.info("%s %s %d %.1f ms", *facts, extra={"request_id": call.request_id, **who})

        return handle

    return stage
