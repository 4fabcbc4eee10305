"""What callers write, before anyone else sees it; and their own words back in the answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from gateway.guards.guards import Guard, Guards
from gateway.guards.mask import Unmasking
from gateway.guards.screening import Screening
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunks, Handler, Stage


def guard_input(guards: Guards, metrics: Metrics) -> Stage:
    """A tenant without input guards passes untouched."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            applicable = guards.of(call.principal.tenant).input
            return guarded(call, applicable) if applicable else following(call)

        async def guarded(call: Call, applicable: Sequence[Guard]) -> Chunks:
            originals = await Screening(call, applicable, metrics).run()
            async with aclosing(following(call)) as chunks:
                if not originals:
                    async for chunk in chunks:
                        yield chunk
                    return
                unmasking = Unmasking(originals, call.request)
                async for chunk in chunks:
                    for ready in unmasking.feed(chunk):
                        yield ready
                for ready in unmasking.end():
                    yield ready

        return handle

    return stage
