"""The end of a connection whose client still sends when it has its answer.

A socket that is closed with bytes unread answers with a reset, and a reset may destroy the answer before its reader
sees it: most clients send a whole body before they read. So the writing end is closed first, and what still comes is
thrown away for a while (RFC 9112, section 9.6).
"""

from __future__ import annotations

import asyncio

SILENCE = 5.0
"""Seconds without a byte after which it is over."""


class Lingering(asyncio.Protocol):
    """Takes the transport over from ``before``, which is told of its loss."""

    def __init__(
        self, transport: asyncio.Transport, before: asyncio.Protocol, *, seconds: float, most: int
    ) -> None:
        """It is over after ``seconds``, or ``most`` bytes."""
        self._transport = transport
        self._before = before
        self._left = most
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._end = loop.time() + seconds
        self._timer = loop.call_later(min(SILENCE, seconds), self._silent)
        self._last = loop.time()
        transport.set_protocol(self)
        transport.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._last = self._loop.time()
        self._left -= len(data)
        if self._left < 0 or self._last > self._end:
            self._transport.close()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._before.pause_writing()

    def resume_writing(self) -> None:
        self._before.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._before.connection_lost(exc)

    def _silent(self) -> None:
        now = self._loop.time()
        end = min(self._last + SILENCE, self._end)
        if now >= end:
            self._transport.close()
        else:
            self._timer = self._loop.call_later(end - now, self._silent)
