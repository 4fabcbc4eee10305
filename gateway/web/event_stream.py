"""A streamed answer on its way to the client, whose connection is kept alive while there is nothing to say.

What stands between a client and the gateway (load balancers, proxies, NAT) cuts a connection on which nothing moves,
mostly after 30 to 60 seconds; a model can think for longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from starlette.types import Send

from gateway.web.responses import Headers

_KIND: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """Within its ``with`` block, ``beat`` is sent whenever nothing else was for ``every`` seconds (0: never).

    The head goes with the first that is sent, be it a beat: ``headers`` are those that are known then.
    """

    __slots__ = ("_beat", "_beating", "_every", "_headers", "_quiet", "_send", "_timer", "begun")

    def __init__(self, send: Send, headers: Callable[[], Headers], *, beat: bytes, every: float) -> None:
        self.begun = False
        """The head has been sent: what goes wrong from here on is told in the stream."""
        self._send = send
        self._headers = headers
        self._beat = beat
        self._every = every
        self._quiet = False
        """Nothing was sent since the timer rang last."""
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        if self._every:
            # Rings twice within the time: the first finds that something was sent, the second that nothing was.
            self._timer = asyncio.get_running_loop().call_later(self._every / 2, self._ring)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    async def write(self, data: bytes) -> None:
        """Send whole events. Nothing at all is the head alone."""
        if self._beating is not None:
            await self._settle(self._beating)
        if not self.begun:
            await self._begin()
        if data:
            self._quiet = False
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        """Send the last events."""
        if self._beating is not None:
            await self._settle(self._beating)
        self._stop()
        if not self.begun:
            await self._begin()
        await self._send({"type": "http.response.body", "body": data})

    async def _begin(self) -> None:
        self.begun = True
        await self._send(
            {"type": "http.response.start", "status": 200, "headers": [*_KIND, *self._headers()]}
        )

    async def _settle(self, beating: asyncio.Task[None]) -> None:
        """One sends at a time: a client that does not read may hold up a beat."""
        await asyncio.wait([beating])

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._beating is not None:
            self._beating.cancel()

    def _ring(self) -> None:
        loop = asyncio.get_running_loop()
        if self._quiet and self._beating is None:
            self._beating = loop.create_task(self._beat_once())
        self._quiet = not self._quiet
        self._timer = loop.call_later(self._every / 2, self._ring)

    async def _beat_once(self) -> None:
        try:
            if not self.begun:
                await self._begin()
            await self._send({"type": "http.response.body", "body": self._beat, "more_body": True})
        finally:
            self._beating = None
