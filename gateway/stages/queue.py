"""Waits for a place at the backend, in fair order, and gives it back whatever happens."""

from __future__ import annotations

from contextlib import aclosing

from gateway.admission import gate
from gateway.admission.gate import Entry
from gateway.admission.pool import Pools
from gateway.admission.shedding import Standings
from gateway.errors import Overloaded
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunks, Handler, Stage, Usage


def queue(pools: Pools, metrics: Metrics, *, quiet: float = 0.5, interval: float = 1.0) -> Stage:
    """A streaming client that waits is told of its position when its tier's patience is over, or after ``quiet``
    seconds if it asked for that, and then every ``interval``.

    What is told is the answer's beginning, with the status 200. Until then a refusal is a status and a Retry-After,
    which clients heed.
    """

    standings = Standings()

    def enter(call: Call) -> Entry:
        try:
            return gate.enter(call, pools, standings)
        except Overloaded as error:
            refused(call, error)
            raise

    async def stand(call: Call, entry: Entry) -> Chunks:
        waiting = metrics.pool_waiting.labels(entry.pool.name)
        waiting.inc()
        silence = quiet if call.positions else call.policy.tier(call.principal.tier).patience
        try:
            async with aclosing(gate.wait(call, entry, quiet=silence, interval=interval)) as news:
                async for comment in news:
                    yield comment
        except Overloaded as error:
            refused(call, error)
            raise
        finally:
            waiting.dec()
            note(call, entry)

    def note(call: Call, entry: Entry) -> None:
        if not call.shadow:
            metrics.queue_seconds.labels(entry.pool.name, call.principal.tier).observe(entry.waited)
        call.receipt.note(
            "queue",
            pool=entry.pool.name,
            waited=round(entry.waited, 6),
            position=entry.position,
            saturation=round(entry.saturation, 3),
        )

    def refused(call: Call, error: Overloaded) -> None:
        if not call.shadow:
            metrics.shed.labels(call.principal.tier, error.code or "").inc()
        call.receipt.note("queue", refused=error.code, retry_after=error.retry_after)

    def stage(following: Handler) -> Handler:
        async def handle(call: Call) -> Chunks:
            entry = enter(call)
            clock = entry.pool.clock
            in_flight = None
            usage: Usage | None = None
            try:
                if entry.place.held:
                    note(call, entry)
                else:
                    async with aclosing(stand(call, entry)) as news:
                        async for comment in news:
                            yield comment
                if call.purse is not None:
                    call.cap = await call.purse.hold(call)
                sent = clock()
                call.hints = gate.hints(call, sent)
                metrics.dispatch_seconds.labels(call.model).observe(sent - call.started)
                in_flight = metrics.pool_in_flight.labels(entry.pool.name)
                in_flight.inc()
                first_token: float | None = None
                async with aclosing(following(call)) as chunks:
                    async for chunk in chunks:
                        if first_token is None and chunk.delta is not None:
                            first_token = entry.begins(call)
                        if chunk.finish_reason is not None:
                            entry.place.one_ended()
                        if chunk.usage is not None:
                            usage = chunk.usage
                        yield chunk
                entry.learn(call, first_token, 0 if usage is None else usage.completion)
            finally:
                if in_flight is not None:
                    in_flight.dec()
                if usage is not None:
                    entry.place.used(usage.prompt + usage.completion)
                entry.place.release()

        return handle

    return stage
