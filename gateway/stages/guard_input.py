"""Input guards: requests are scanned before any other stage reads them; masked originals return in the answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from gateway.guards.actions.background import BackgroundScans
from gateway.guards.actions.guards import Guard, Guards, TenantGuards
from gateway.guards.actions.marks import marked
from gateway.guards.actions.mask import Unmasker
from gateway.guards.actions.screening import Screening, scan_input
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunks, Handler, Stage


def guard_input(guards: Guards, flags: BackgroundScans, metrics: Metrics, *, replies: bool = True) -> Stage:
    """A tenant without input guards passes untouched. ``replies``: a guard may answer in the model's place."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            mine = guards.of_call(call)
            after = marking(mine) if mine.spotlight or mine.canary else following
            chunks = guarded(call, mine.input, after) if mine.input else after(call)
            return flagged(call, mine.input_flags, chunks) if mine.input_flags else chunks

        async def flagged(call: Call, flagging: Sequence[Guard], following: Chunks) -> Chunks:
            request = call.request  # as the caller wrote it
            background = flags.of(call, flagging, "input")
            try:
                async with aclosing(following) as chunks:
                    async for chunk in chunks:
                        yield chunk
            finally:
                background.start(lambda: scan_input(request))

        def marking(mine: TenantGuards) -> Handler:
            async def handler(call: Call) -> Chunks:
                call.request = await marked(call.request, spotlight=mine.spotlight, canary=mine.canary)
                async with aclosing(following(call)) as chunks:
                    async for chunk in chunks:
                        yield chunk

            return handler

        async def guarded(call: Call, acting: Sequence[Guard], after: Handler) -> Chunks:
            screening = Screening(call, acting, metrics, replies=replies)
            originals = await screening.run()
            if screening.support is not None:
                for chunk in screening.support.chunks(call):
                    yield chunk
                return
            async with aclosing(after(call)) as chunks:
                if not originals:
                    async for chunk in chunks:
                        yield chunk
                    return
                unmasker = Unmasker(originals, call.request)
                async for chunk in chunks:
                    for ready in unmasker.feed(chunk):
                        yield ready
                for ready in unmasker.end():
                    yield ready

        return handle

    return stage
