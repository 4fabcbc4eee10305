"""uvicorn's HTTP/1.1 connection, with bounds on what a client may make us wait for and remember.

uvicorn limits neither the size of a request's head nor the time a client takes to send one, so that a few slow or
talkative connections could hold every file descriptor and all memory. It also tells of a client that hangs up by a
plain call (``HANGUP`` in the scope), where ASGI would need a task for each request just to wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.errors import BadRequest

HANGUP = "tollgate.hangup"
"""In the scope: the ``Hangup`` of the request's connection."""


class Hangup:
    """Calls whoever serves the connection's present request when its client has gone."""

    __slots__ = ("call", "gone")

    def __init__(self) -> None:
        self.gone = False
        self.call: Callable[[], object] | None = None

    def happened(self) -> None:
        self.gone = True
        if self.call is not None:
            self.call()


class Connection(HttpToolsProtocol):
    max_head: ClassVar[int] = 64 * 1024
    """Bytes of request line and headers; a little more can come in with one read."""
    patience: ClassVar[float] = 30.0
    """Seconds of silence while a request is awaited or not yet whole. Between requests, keep-alive rules."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._head = 0
        self._began = False
        self._whole = False
        self._heard = self.loop.time()
        self._sweeper: asyncio.TimerHandle | None = None
        self._hangup = Hangup()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._sweeper = self.loop.call_later(self.patience, self._sweep)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        super().connection_lost(exc)
        self._hangup.happened()

    def data_received(self, data: bytes) -> None:
        self._began = False
        super().data_received(data)
        if self._in_head:
            # A head that begins within this read is counted from the next: before it may stand another's body.
            self._head = 0 if self._began else self._head + len(data)
            if self._head > self.max_head:
                self._refuse(
                    431, f"The request's headers are larger than {self.max_head} bytes.", "headers_too_large"
                )
        else:
            self._heard = self.loop.time()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._began = True
        self._whole = False
        self._heard = self.loop.time()

    def on_headers_complete(self) -> None:
        self._in_head = False
        self.scope[HANGUP] = self._hangup  # type: ignore[literal-required]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._whole = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "This is no HTTP/1.1 request that can be understood.", "invalid_http")

    def _refuse(self, status: int, message: str, code: str) -> None:
        self._in_head = False
        if self.cycle is None or self.cycle.response_complete:  # else it would land amid another's answer
            body = orjson.dumps(BadRequest(message, code=code).body())
            head = (
                b"content-type: application/json",
                b"content-length: %d" % len(body),
                b"connection: close",
            )
            self.transport.write(STATUS_LINE[status] + b"\r\n".join((*head, b"", body)))
        self.transport.close()

    def _sweep(self) -> None:
        answering = self._whole and self.cycle is not None and not self.cycle.response_complete
        resting = self.timeout_keep_alive_task is not None
        silence = self.loop.time() - self._heard
        if silence >= self.patience and not (answering or resting or self.flow.read_paused):
            self.transport.close()
            return
        wait = self.patience - silence if silence < self.patience else self.patience
        self._sweeper = self.loop.call_later(wait, self._sweep)
