"""A response of server-sent events, with heartbeats while there is no data.

Load balancers, proxies and NAT cut connections without traffic, mostly after 30 to 60 seconds; a model can think for
longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from starlette.types import Scope, Send

from gateway.server.cycle import CONNECTION_STATE, ConnectionState, WriteEvents
from gateway.web.sending import Headers

EVENTS = b"text/event-stream; charset=utf-8"
_HEAD: Headers = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """Within its ``with`` block, ``heartbeat`` is sent whenever nothing else was for ``every`` seconds (0: never).

    The head is sent with the first data, be it a heartbeat: ``headers`` returns those that are known then.
    """

    __slots__ = (
        *("_every", "_headers", "_heartbeat", "_kind", "_quiet", "_scope", "_send", "_sending", "_timer"),
        *("_write", "begun"),
    )

    def __init__(
        self,
        send: Send,
        headers: Callable[[], Headers],
        *,
        heartbeat: bytes,
        every: float,
        scope: Scope | None = None,
        kind: bytes = EVENTS,
    ) -> None:
        """In ``scope`` our own server says how events are written at once. ``kind`` is the content type."""
        self.begun = False
        """The head has been sent: from here on errors are events in the stream."""
        self._send = send
        self._scope = scope
        self._write: WriteEvents | None = None
        self._headers = headers
        self._kind = kind
        self._heartbeat = heartbeat
        self._every = every
        self._quiet = False
        """Nothing was sent since the timer fired last."""
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        if self._every:
            # It fires twice in ``every``: the first time may find that something was sent, the second that nothing was.
            self._timer = asyncio.get_running_loop().call_later(self._every / 2, self._fired)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    async def write(self, data: bytes) -> None:
        """Send whole events; empty data sends the head alone."""
        if self._sending is not None:
            await self._settle(self._sending)
        if not self.begun:
            await self._begin()
        if data:
            self._quiet = False
            if self._write is None or not self._write(lambda: data):
                await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes) -> None:
        """Send the last events."""
        if self._sending is not None:
            await self._settle(self._sending)
        self._stop()
        if not self.begun:
            await self._begin()
        await self._send({"type": "http.response.body", "body": data})

    async def _begin(self) -> None:
        self.begun = True
        headers = [(b"content-type", self._kind), *_HEAD, *self._headers()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if self._scope is not None:
            connection: ConnectionState = self._scope[CONNECTION_STATE]
            self._write = connection.write_events

    async def _settle(self, sending: asyncio.Task[None]) -> None:
        """One sends at a time: a client that does not read may delay a heartbeat."""
        await asyncio.wait([sending])

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sending is not None:
            self._sending.cancel()

    def _fired(self) -> None:
        loop = asyncio.get_running_loop()
        if self._quiet and self._sending is None:
            self._sending = loop.create_task(self._send_heartbeat())
        self._quiet = not self._quiet
        self._timer = loop.call_later(self._every / 2, self._fired)

    async def _send_heartbeat(self) -> None:
        try:
            if not self.begun:
                await self._begin()
            await self._send({"type": "http.response.body", "body": self._heartbeat, "more_body": True})
        finally:
            self._sending = None
