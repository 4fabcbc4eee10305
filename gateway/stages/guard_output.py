"""Output guards: answers are scanned before the caller or a cache has them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from gateway.guards.actions.background import BackgroundScans
from gateway.guards.actions.guards import Guard, Guards
from gateway.guards.streaming.streams import guarded
from gateway.guards.streaming.transcript import Transcript
from gateway.observe.metrics import Metrics
from gateway.types import Call, Chunks, Handler, Stage


def guard_output(guards: Guards, flags: BackgroundScans, metrics: Metrics) -> Stage:
    """A tenant without output guards passes untouched, and so does what no guard reads: embeddings, and all that is
    passed on as it comes, which the receipt says."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            mine = guards.of_call(call)
            if not (mine.output or mine.output_flags):
                return following(call)
            if not call.request.generates:
                if call.request.api is not None:
                    call.receipt.note("guard_output", unread=[call.request.api])
                return following(call)
            observed = flagged(mine.output_flags) if mine.output_flags else following
            return guarded(call, mine.output, metrics, observed) if mine.output else observed(call)

        def flagged(flagging: Sequence[Guard]) -> Handler:
            def handle(call: Call) -> Chunks:
                chunks = observed(call)
                if call.sink is not None:
                    call.sink.source = chunks
                return chunks

            async def observed(call: Call) -> Chunks:
                transcript = Transcript()
                call.on_discard(transcript.clear)
                background = flags.of(call, flagging, "output")
                for guard in flagging:
                    metrics.guard_streams.labels(guard.name).inc()
                try:
                    async with aclosing(following(call)) as chunks:
                        if (sink := call.sink) is not None:
                            if sink.source is chunks:
                                sink.looking.append(transcript.passed)
                            else:
                                call.sink = None
                        async for chunk in chunks:
                            transcript.add(chunk)
                            yield chunk
                finally:
                    background.start(transcript.scan_input)

            return handle

        return handle

    return stage
