"""The stream of a guarded answer: read ahead by a task, scanned, released or cut."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.errors import AnswerUnjudged
from gateway.guards.actions.guards import Guard
from gateway.guards.streaming.chunk_buffer import ChunkBuffer
from gateway.guards.streaming.guarded_answer import GuardedAnswer
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import CUT
from gateway.types import Call, Chunk, Chunks, Handler

KEEP_ALIVE = 5.0
"""Seconds between two comments to a client that waits for a verdict: proxies close idle connections."""
RESTARTED = 15.0
"""Seconds in which what a guard asks is back, as a rule."""
AT_ONCE = 32
"""Held chunks that leave between two turns of the event loop."""


async def guarded(
    call: Call, guards: Sequence[Guard], metrics: Metrics, following: Handler, *, held: float = KEEP_ALIVE
) -> Chunks:
    buffer = ChunkBuffer(following(call))
    answer = GuardedAnswer(call, guards, metrics, buffer.wake)
    discarded: list[GuardedAnswer] = []

    def discard() -> bool:
        nonlocal answer
        if answer.shown or answer.cut is not None:
            return False
        answer.stop()
        discarded.append(answer)
        buffer.ready.clear()
        answer = GuardedAnswer(call, guards, metrics, buffer.wake)
        return True

    if answer.delays:
        call.discard = discard
    for guard in guards:
        metrics.guard_streams.labels(guard.name).inc()
    keep_alive = _KeepAlive(buffer, held) if answer.holds and call.request.stream else None
    try:
        while True:
            await buffer.wait()
            ended = buffer.ended  # read before taking, so that nothing is left behind
            current = answer
            for chunk in buffer.take():
                if chunk.comment is None:
                    current.feed(chunk)
                else:
                    yield chunk
            if ended and buffer.error is None:
                current.finish()
            if current is answer and current.cut is None:
                await current.scan()
            if current is not answer:
                continue  # discarded meanwhile
            for number, chunk in enumerate(answer.release(), 1):
                if not number % AT_ONCE:
                    chunk.more = False
                    await asyncio.sleep(0)
                yield chunk
            if answer.cut is not None:
                break
            if ended:
                if buffer.error is not None:
                    raise buffer.error  # what is held was not cleared, and is dropped
                if answer.is_done:
                    answer.scanned = True
                    return
            if keep_alive is not None and keep_alive.is_due() and answer.is_holding:
                yield Chunk(comment="held")
        buffer.stop(CUT)
        await buffer.aclose()
        if call.line is not None and (silent := answer.unjudged_by) is not None:
            raise AnswerUnjudged(
                f"The guard '{silent.name}' could not judge the answer, three times in a row.",
                retry_after=RESTARTED,
            )
        for chunk in answer.final_chunks():
            yield chunk
    finally:
        call.discard = None  # which would hold the call, and the call it
        if keep_alive is not None:
            keep_alive.stop()
        answer.note()
        answer.stop()
        await buffer.aclose()
        for one in (*discarded, answer):
            await one.aclose()


class _KeepAlive:
    """Wakes the consumer every few seconds."""

    def __init__(self, buffer: ChunkBuffer, interval: float) -> None:
        self._inbox = buffer
        self._interval = interval
        self._fired = False
        self._timer = asyncio.get_running_loop().call_later(interval, self._fire)

    def is_due(self) -> bool:
        """Once for each interval."""
        fired, self._fired = self._fired, False
        return fired

    def stop(self) -> None:
        self._timer.cancel()

    def _fire(self) -> None:
        self._fired = True
        self._inbox.wake()
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._fire)
