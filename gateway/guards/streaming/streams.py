"""The stream of a guarded answer: read ahead by a task if it is a stream, scanned, released or cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

from gateway.errors import AnswerUnjudged
from gateway.guards.guards import Guard
from gateway.guards.streaming.chunk_buffer import ChunkBuffer
from gateway.guards.streaming.guarded_answer import GuardedAnswer
from gateway.guards.streaming.guarded_choice import Held
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import CUT
from gateway.types import Call, Chunk, Chunks, Handler

KEEP_ALIVE = 5.0
"""Seconds between two comments to a client that waits for a verdict: proxies close idle connections."""
RESTARTED = 15.0
"""Seconds in which what a guard asks is back, as a rule."""
AT_ONCE = 32
"""Held chunks that leave between two turns of the event loop."""


def guarded(
    call: Call, guards: Sequence[Guard], metrics: Metrics, following: Handler, *, held: float = KEEP_ALIVE
) -> Chunks:
    for guard in guards:
        metrics.guard_streams.labels(guard.name).inc()
    if not call.request.stream and all(guard.limit is None for guard in guards):
        return _whole(_Guarded(call, guards, metrics), following)
    chunks = _stream(call, guards, metrics, following, held)
    call.relays(chunks)
    return chunks


async def _whole(guarded: _Guarded, following: Handler) -> Chunks:
    """An answer of which nothing can leave, nor be cut, before all of it has come."""
    call = guarded.call
    call.discard = guarded.discard
    try:
        async with aclosing(following(call)) as chunks:
            async for chunk in chunks:
                if chunk.comment is None:
                    guarded.answer.feed(chunk)
                else:
                    yield chunk
        answer = guarded.answer
        answer.finish()
        await answer.scan()
        for number, chunk in enumerate(answer.release(), 1):
            if not number % AT_ONCE:
                chunk.more = False
                await asyncio.sleep(0)
            yield chunk
        answer.scanned = True
        for chunk in guarded.final_chunks():
            yield chunk
    finally:
        call.discard = None  # which would hold the call, and the call it
        guarded.answer.note()
        await guarded.aclose()


async def _stream(
    call: Call, guards: Sequence[Guard], metrics: Metrics, following: Handler, held: float
) -> Chunks:
    guarded = _GuardedStream(call, guards, metrics, following)
    buffer = guarded.buffer
    if guarded.answer.delays:
        call.discard = guarded.discard
    keep_alive = _KeepAlive(buffer, held) if guarded.answer.holds and call.request.stream else None
    try:
        while True:
            await buffer.wait()
            ended = buffer.ended  # read before taking, so that nothing is left behind
            answer = guarded.answer
            for chunk in guarded.take_unwritten():
                yield chunk
            for chunk in buffer.take():
                if chunk.comment is None:
                    answer.feed(chunk)
                else:
                    yield chunk
            if ended and buffer.error is None:
                answer.finish()
            if answer is guarded.answer and answer.cut is None:
                await answer.scan()
            if answer is not guarded.answer:
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
        for chunk in guarded.final_chunks():
            yield chunk
    finally:
        call.discard = call.sink = None  # which would hold the call, and the call them
        if keep_alive is not None:
            keep_alive.stop()
        guarded.answer.note()
        await guarded.aclose()


def _pass(*_: object) -> None:
    """Nobody waits for a verdict on what is whole but who asked for it."""


class _Guarded:
    """An answer under guard, and those before it that were discarded."""

    def __init__(
        self, call: Call, guards: Sequence[Guard], metrics: Metrics, wake: Callable[..., None] = _pass
    ) -> None:
        self.call = call
        self._guards, self._metrics, self._wake = guards, metrics, wake
        self.answer = self._fresh()
        self._discarded: list[GuardedAnswer] = []

    def _fresh(self) -> GuardedAnswer:
        return GuardedAnswer(self.call, self._guards, self._metrics, self._wake)

    def discard(self) -> bool:
        """Another answer is to come in place of this one. False if its caller has seen something of it."""
        if self.answer.shown or self.answer.cut is not None:
            return False
        self.answer.stop()
        self._discarded.append(self.answer)
        self.answer = self._fresh()
        return True

    def final_chunks(self) -> list[Chunk]:
        """The end of an answer that was cut. Raises ``AnswerUnjudged`` where its line of a batch may be asked again."""
        if self.call.line is not None and (silent := self.answer.unjudged_by) is not None:
            raise AnswerUnjudged(
                f"The guard '{silent.name}' could not judge the answer, three times in a row.",
                retry_after=RESTARTED,
            )
        return self.answer.final_chunks()

    async def aclose(self) -> None:
        for one in (*self._discarded, self.answer):
            await one.aclose()


class _GuardedStream(_Guarded):
    """One that is passed on while it comes. It is the ``Sink`` of pieces; ``buffer`` has what takes the usual way."""

    def __init__(self, call: Call, guards: Sequence[Guard], metrics: Metrics, following: Handler) -> None:
        self.source: object = None
        self.looking: list[Callable[[Chunk, Sequence[str]], object]] = []
        self.is_open = True
        self._client = call.sink
        if call.sink is not None:
            call.sink = self  # which is open though that of the client may not be
        chunks = following(call)
        call.looks_on(chunks)
        self.buffer = ChunkBuffer(chunks)
        self._unwritten: list[Chunk] = []
        """What has been released, and could not be written at once."""
        super().__init__(call, guards, metrics, self.buffer.wake)

    def discard(self) -> bool:
        if not super().discard():
            return False
        self.buffer.ready.clear()
        return True

    def take_unwritten(self) -> list[Chunk]:
        chunks, self._unwritten = self._unwritten, []
        return chunks

    def pass_on(self, like: Chunk, texts: Sequence[str]) -> bool:
        """Take pieces as they are read, while all wait for them, and write what they release. False, and nothing is
        done, where there is something to see to before them."""
        answer, buffer = self.answer, self.buffer
        if answer.cut is not None or not buffer.is_waited_for:
            return False
        answer.feed_pieces(like, texts)
        for look in self.looking:
            look(like, texts)
        if not answer.is_due:
            return True
        answer.look()
        if leaving := answer.leaving():
            self._release(answer, leaving)
        if self._unwritten or answer.cut is not None or answer.has_open:
            buffer.wake()
        return True

    async def caught_up(self) -> None:
        if self.answer.cut is None:
            await self.buffer.caught_up()

    def _release(self, answer: GuardedAnswer, leaving: Sequence[Held]) -> None:
        """To the client, where it is not to be waited for, and all are pieces of one text."""
        client = self._client
        pieces = answer.released_texts(leaving) if client is not None and client.is_open else None
        if client is None or pieces is None:
            self._unwritten += answer.released(leaving)
        elif not client.pass_on(*pieces):
            like, texts = pieces
            self._unwritten += [like.with_text(text, more=True) for text in texts[:-1]]
            self._unwritten.append(like.with_text(texts[-1]))

    async def aclose(self) -> None:
        self.answer.stop()
        await self.buffer.aclose()
        await super().aclose()


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
