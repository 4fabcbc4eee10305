"""A client that has half-closed its connection: does it still read, or has it gone?

TCP signals both by a FIN. Only data sent to a client that has gone shows the difference, as its system answers with a
reset. So something harmless is sent now and then, and the socket is checked for a reset.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

FIRST_CHECK = 0.01
"""Seconds; each check comes after twice as many as the one before."""
CHECK = 1.0
"""Seconds between checks at most."""
KEEPALIVE = 30.0
"""Seconds between two keepalives."""


class HalfClosed:
    """Aborts the transport once its peer is gone.

    The event loop does not watch a socket whose reading end is closed, so it is polled. ``keepalive`` returns what may
    be sent at the moment, or nothing.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, keepalive: Callable[[], bytes]
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._keepalive = keepalive
        self._wait = FIRST_CHECK
        self._sent_at = loop.time() - KEEPALIVE
        self._timer = loop.call_later(FIRST_CHECK, self._check)

    def cancel(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        if self._transport.is_closing():
            return
        peer: socket.socket = self._transport.get_extra_info("socket")
        if peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
            return
        now = self._loop.time()
        if now - self._sent_at >= KEEPALIVE and (data := self._keepalive()):
            self._sent_at = now
            self._transport.write(data)
        self._wait = min(2 * self._wait, CHECK)
        self._timer = self._loop.call_later(self._wait, self._check)
