"""Waits for a slot at the backend, in fair order, and releases it however the request ends."""

from __future__ import annotations

from contextlib import aclosing

from gateway.admission.gate import Admission, admit, engine_headers
from gateway.admission.pools import Pools
from gateway.admission.shedding import TierRules
from gateway.errors import Overloaded
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunks, Handler, Stage, Usage


def queue(pools: Pools, metrics: Metrics, *, quiet: float = 0.5, interval: float = 1.0) -> Stage:
    """A streaming client that waits gets its position when its tier's patience is over, or after ``quiet`` seconds if
    it asked for that, and then every ``interval``.

    A position begins the answer, with the status 200. Until then a refusal has a status and a Retry-After header,
    which clients heed.
    """
    rules = TierRules()

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            chunks = queued(call)
            if call.splice is not None:
                call.splice.made(chunks)
            return chunks

        async def queued(call: Call) -> Chunks:
            try:
                admission = admit(call, pools, rules)
            except Overloaded as error:
                refused(call, error)
                raise
            lease, clock = admission.lease, admission.pool.clock
            in_flight = None
            usage: Usage | None = None
            try:
                if lease.is_granted:
                    note(call, admission)
                else:
                    async with aclosing(waiting(call, admission)) as positions:
                        async for position in positions:
                            yield position
                if call.allowance is not None:
                    call.cap = await call.allowance.hold(call)
                sent = clock()
                call.hints = engine_headers(call, sent)
                metrics.dispatch_seconds[(call.model,)].observe(sent - call.started)
                in_flight = metrics.pool_in_flight[(admission.pool.name,)]
                in_flight.inc()
                first_token: float | None = None
                async with aclosing(following(call)) as chunks:
                    if call.splice is not None:
                        call.splice.reads(chunks)  # a piece of text is neither the first nor the last
                    async for chunk in chunks:
                        if first_token is None and chunk.delta is not None:
                            first_token = admission.first_token(call)
                        if chunk.finish_reason is not None:
                            lease.release_one()
                        if chunk.usage is not None:
                            usage = chunk.usage
                        yield chunk
                admission.completed(call, first_token, 0 if usage is None else usage.completion)
            finally:
                if in_flight is not None:
                    in_flight.dec()
                if usage is not None:
                    lease.correct_tokens(usage.prompt + usage.completion)
                lease.release()

        return handle

    async def waiting(call: Call, admission: Admission) -> Chunks:
        gauge = metrics.pool_waiting[(admission.pool.name,)]
        gauge.inc()
        silence = quiet if call.positions else call.policy.tier(call.principal.tier).patience
        try:
            async with aclosing(admission.wait(call, quiet=silence, interval=interval)) as positions:
                async for position in positions:
                    yield position
        except Overloaded as error:
            refused(call, error)
            raise
        finally:
            gauge.dec()
            note(call, admission)

    def note(call: Call, admission: Admission) -> None:
        waited = admission.waited
        if call.line is not None:
            if admission.lease.is_granted:
                call.line.admitted(waited)
        elif not call.shadow:
            metrics.queue_seconds[admission.pool.name, call.principal.tier].observe(waited)
        call.receipt.note(
            "queue",
            pool=admission.pool.name,
            began=round(admission.arrived - call.started, 6),
            waited=round(waited, 6),
            position=admission.position,
            saturation=round(admission.saturation, 3),
        )

    def refused(call: Call, error: Overloaded) -> None:
        if not call.shadow and call.line is None:
            metrics.shed[call.principal.tier, error.code or ""].inc()
        call.receipt.note("queue", refused=error.code, retry_after=error.retry_after)

    return stage
