"""One call's answer as server-sent events: chunk by chunk, or, where no stage changes them, past all stages at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from starlette.types import Scope, Send

from gateway.errors import GatewayError
from gateway.types import Chunk
from gateway.web.event_stream import EVENTS, EventStream
from gateway.web.sending import Headers
from gateway.wire.dialect import EventWriter

MAX_WRITE = 2**16
"""Bytes of events that are put into one write at most."""


class StreamWriter(EventStream):
    """An ``EventStream`` of ``events``. It is its call's ``Sink``."""

    __slots__ = ("_events", "_pending", "is_open", "looking", "source")

    def __init__(
        self,
        events: EventWriter,
        send: Send,
        headers: Callable[[], Headers],
        *,
        every: float,
        scope: Scope,
        kind: bytes = EVENTS,
    ) -> None:
        super().__init__(
            send, headers, heartbeat=events.comment("waiting"), every=every, scope=scope, kind=kind
        )
        self._events = events
        self._pending = b""
        """Events that are to leave in one write with those that follow at once."""
        self.source: object = None
        self.looking: list[Callable[[Chunk, Sequence[str]], object]] = []
        self.is_open = False

    async def write_all(self, first: Chunk, rest: AsyncIterator[Chunk]) -> bytes:
        """Chunks that came together leave in one write: a write costs as much as a dozen chunks do.

        Returns what is left to be written with the end.
        """
        if not self.begun:
            await self.write(b"")
        self._pending = self._event(first)
        if not first.more:
            await self._flush()
        self.is_open = self._write is not None
        try:
            async for chunk in rest:
                self._pending += self._event(chunk)
                if self._pending and (not chunk.more or len(self._pending) > MAX_WRITE):
                    await self._flush()
        except GatewayError:
            await self._flush()
            raise
        return self._pending

    def pass_on(self, like: Chunk, texts: Sequence[str]) -> bool:
        write = self._write
        if (
            write is None
            or self._pending
            or self._sending is not None
            or not write(self._events.pieces, like, texts)
        ):
            return False
        self._quiet = False
        for look in self.looking:
            look(like, texts)
        return True

    async def caught_up(self) -> None:
        """The task that writes is the one that reads."""

    async def _flush(self) -> None:
        data, self._pending = self._pending, b""
        await self.write(data)

    def _event(self, chunk: Chunk) -> bytes:
        return self._events.event(chunk) if chunk.comment is None else self._events.comment(chunk.comment)
