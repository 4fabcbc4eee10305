"""Input guards: requests are scanned before any other stage reads them; masked originals return in the answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from gateway.guards.guards import Guard, Guards, TenantGuards
from gateway.guards.requests.marks import marked
from gateway.guards.requests.mask import Unmasker
from gateway.guards.requests.screening import Screening, scan_input
from gateway.guards.scans.background import BackgroundScans
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunks, Handler, Stage


def guard_input(guards: Guards, flags: BackgroundScans, metrics: Metrics, *, replies: bool = True) -> Stage:
    """A tenant without input guards passes untouched. ``replies``: a guard may answer in the model's place."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            mine = guards.of_call(call)
            after = following
            if mine.spotlight or mine.canary:
                after = partial(_linked, partial(marking, mine, after))
            if mine.input:
                after = partial(_linked, partial(guarded, mine.input, after))
            if mine.input_flags:
                after = partial(_linked, partial(flagged, mine.input_flags, after))
            return after(call)

        async def flagged(flagging: Sequence[Guard], after: Handler, call: Call) -> Chunks:
            request = call.request  # as the caller wrote it
            background = flags.of(call, flagging, "input")
            try:
                async with aclosing(_read(after, call)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            finally:
                background.start(lambda: scan_input(request))

        async def marking(mine: TenantGuards, after: Handler, call: Call) -> Chunks:
            call.request = await marked(call.request, spotlight=mine.spotlight, canary=mine.canary)
            async with aclosing(_read(after, call)) as chunks:
                async for chunk in chunks:
                    yield chunk

        async def guarded(acting: Sequence[Guard], after: Handler, call: Call) -> Chunks:
            screening = Screening(call, acting, metrics, replies=replies)
            originals = await screening.run()
            if screening.support is not None:
                for chunk in screening.support.chunks(call):
                    yield chunk
                return
            if not originals:
                async with aclosing(_read(after, call)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            call.sink = None  # all that comes may change
            async with aclosing(after(call)) as chunks:
                unmasker = Unmasker(originals, call.request)
                async for chunk in chunks:
                    for ready in unmasker.feed(chunk):
                        yield ready
                for ready in unmasker.end():
                    yield ready

        return handle

    return stage


def _linked(handler: Handler, call: Call) -> Chunks:
    """The stream of ``handler``, past which pieces may go to the call's sink."""
    chunks = handler(call)
    call.relays(chunks)
    return chunks


def _read(handler: Handler, call: Call) -> Chunks:
    """The stream of ``handler``, of which each piece is passed on as it is."""
    chunks = handler(call)
    call.looks_on(chunks)
    return chunks
