"""A client that has ended its sending: does it still read, or has it gone?

TCP tells both in the same way, by a FIN. Only data sent to a client that has gone brings the difference to light: its
system answers with a reset. So something harmless is sent now and then, and the socket asked whether a reset came.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

FIRST_LOOK = 0.01
"""Seconds; each look comes after twice as many as the one before."""
LOOK = 1.0
"""Seconds between looks at most."""
SIGN = 30.0
"""Seconds between signs of life."""


class HalfClosed:
    """Aborts the transport once its peer has proved to be gone.

    The event loop does not watch a socket whose reading end is closed, hence the looking. ``sign`` is what may be
    sent at the moment, or empty.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, sign: Callable[[], bytes]
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._sign = sign
        self._wait = FIRST_LOOK
        self._signed = loop.time() - SIGN
        self._timer = loop.call_later(FIRST_LOOK, self._look)

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        peer: socket.socket = self._transport.get_extra_info("socket")
        if peer.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
            return
        now = self._loop.time()
        if now - self._signed >= SIGN and (sign := self._sign()):
            self._signed = now
            self._transport.write(sign)
        self._wait = min(2 * self._wait, LOOK)
        self._timer = self._loop.call_later(self._wait, self._look)
