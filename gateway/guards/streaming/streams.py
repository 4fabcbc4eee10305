"""The stream of a guarded answer: read by one task, judged, and given out; cut where a guard says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.guards.actions.guards import Guard
from gateway.guards.streaming.chunk_buffer import ChunkBuffer
from gateway.guards.streaming.guarded_answer import GuardedAnswer
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import CUT
from gateway.types import Call, Chunk, Chunks, Handler

HELD = 5.0
"""Seconds between two signs of life to a client that waits for a verdict: proxies close what is silent for long."""
AT_ONCE = 32
"""Chunks of what was held that leave before others have their turn."""


async def guarded(
    call: Call, guards: Sequence[Guard], metrics: Metrics, following: Handler, *, held: float = HELD
) -> Chunks:
    buffer = ChunkBuffer(following(call))
    answer = GuardedAnswer(call, guards, metrics, buffer.wake)
    heart = _Heart(buffer, held) if answer.holds and call.request.stream else None
    try:
        while True:
            await buffer.wait()
            ended = buffer.ended  # asked before taking: then nothing is left behind
            for chunk in buffer.take():
                if chunk.comment is None:
                    answer.feed(chunk)
                else:
                    yield chunk
            if ended and buffer.error is None:
                answer.finish()
            if answer.cut is None:
                await answer.scan()
            for number, chunk in enumerate(answer.release(), 1):
                if not number % AT_ONCE:
                    chunk.more = False
                    await asyncio.sleep(0)
                yield chunk
            if answer.cut is not None:
                break
            if ended:
                if buffer.error is not None:
                    raise buffer.error  # what is held is not judged, and stays
                if answer.is_done:
                    answer.scanned = True
                    return
            if heart is not None and heart.is_due() and answer.is_holding:
                yield Chunk(comment="held")
        buffer.stop(CUT)
        await buffer.aclose()
        for chunk in answer.final_chunks():
            yield chunk
    finally:
        if heart is not None:
            heart.stop()
        answer.note()
        answer.stop()
        await buffer.aclose()
        await answer.aclose()


class _Heart:
    """Wakes the reader every few seconds."""

    def __init__(self, buffer: ChunkBuffer, interval: float) -> None:
        self._inbox = buffer
        self._interval = interval
        self._beaten = False
        self._timer = asyncio.get_running_loop().call_later(interval, self._beat)

    def is_due(self) -> bool:
        """Once for each beat."""
        beaten, self._beaten = self._beaten, False
        return beaten

    def stop(self) -> None:
        self._timer.cancel()

    def _beat(self) -> None:
        self._beaten = True
        self._inbox.wake()
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._beat)
