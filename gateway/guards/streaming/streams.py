"""The stream of a guarded answer: read by one task, judged, and given out; cut where a guard says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.guards.actions.guards import Guard
from gateway.guards.streaming.answer import Answer
from gateway.guards.streaming.inbox import Inbox
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
    inbox = Inbox(following(call))
    answer = Answer(call, guards, metrics, inbox.wake)
    heart = _Heart(inbox, held) if answer.holds and call.request.stream else None
    try:
        while True:
            await inbox.wait()
            ended = inbox.ended  # asked before taking: then nothing is left behind
            for chunk in inbox.take():
                if chunk.comment is None:
                    answer.feed(chunk)
                else:
                    yield chunk
            if ended and inbox.error is None:
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
                if inbox.error is not None:
                    raise inbox.error  # what is held is not judged, and stays
                if answer.is_settled:
                    answer.scanned = True
                    return
            if heart is not None and heart.is_due() and answer.is_holding:
                yield Chunk(comment="held")
        inbox.stop(CUT)
        await inbox.aclose()
        for chunk in answer.last_words():
            yield chunk
    finally:
        if heart is not None:
            heart.stop()
        answer.note()
        answer.stop()
        await inbox.aclose()
        await answer.aclose()


class _Heart:
    """Wakes the reader every few seconds."""

    def __init__(self, inbox: Inbox, interval: float) -> None:
        self._inbox = inbox
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
