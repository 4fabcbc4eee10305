"""uvicorn's HTTP/1.1 connection, with bounds on what a client may make us wait for and remember.

uvicorn limits neither the size of a request's head, nor the time a client takes to send it, nor the time it takes to
read its answer, so that a few slow connections could hold every file descriptor and all memory. A disconnect is
reported by a plain call (``CONNECTION_STATE`` in the scope), where ASGI would need a task for each request to wait for
it.

Two things that uvicorn rejects are accepted here: an ``Upgrade`` header, which a server may ignore (RFC 9110, section
7.8), and a client that half-closes its connection while it waits for its answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import BadRequest, GatewayError, Overloaded
from gateway.server.connection_limits import ConnectionLimiter
from gateway.server.cycle import CONNECTION_STATE, ConnectionState, Cycle
from gateway.server.half_close import HalfClosed

SLOW = 10.0
"""Seconds after which a request that is still coming in makes room, where there is none, for others."""


class Connection(HttpToolsProtocol):
    max_head: ClassVar[int] = 64 * 1024
    """Bytes of request line and headers, or of chunk extensions and trailers on end; a little more can come in with
    one read."""
    patience: ClassVar[float] = 30.0
    """Seconds in which nothing of a request's body comes, or a head does not end. Between requests, keep-alive rules.
    As long a body may go on that was answered before its end."""
    stall: ClassVar[float] = 30.0
    """Seconds in which a client must take a tenth of what waits for it, all buffers being full."""
    max_rest: ClassVar[int] = 32 * 2**20
    """Bytes of a body that are passed over when its answer has been given before its end."""
    max_pipeline: ClassVar[int] = 100
    """Requests that may wait for the answer to the one before."""
    limiter: ClassVar[ConnectionLimiter | None] = None
    """Bounds the number of connections."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._idle = 0
        """Bytes read since the request was last got on with."""
        self._went_on = False
        self._whole = False
        self._heard = self._began = self.loop.time()
        self._sweeper: asyncio.TimerHandle | None = None
        self._lingers = False
        self._passed_over = 0
        self._stalled: asyncio.TimerHandle | None = None
        self._hangup = ConnectionState(self._proven)
        self._half_closed: HalfClosed | None = None
        self._answering: RequestResponseCycle | None = None
        """Of requests that were sent one behind the other uvicorn knows the last alone."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._sweeper = self.loop.call_later(self.patience, self._sweep)
        if self.limiter is None:
            self._hangup.proven = True
        elif self.limiter.enter(self):
            self.timeout_keep_alive = min(self.timeout_keep_alive, self.patience)  # type: ignore[assignment]
        else:
            self._tell(
                Overloaded(
                    "This gateway has as many connections as it can. Try again in a moment.",
                    code="too_many_connections",
                    retry_after=1.0,
                )
            )
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._stalled is not None:
            self._stalled.cancel()
        if self._half_closed is not None:
            self._half_closed.cancel()
        if self.limiter is not None:
            self.limiter.left(self)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)
        self._hangup.happened()

    # what the limiter asks

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def rests(self) -> bool:
        slow = not self._whole and self.loop.time() - self._began > SLOW
        return slow or self.timeout_keep_alive_task is not None

    def leave(self) -> None:
        self.transport.abort()

    def _proven(self) -> None:
        self.timeout_keep_alive = self.config.timeout_keep_alive
        if self.limiter is not None:
            self.limiter.know(self)

    # a client that does not read

    def pause_writing(self) -> None:
        super().pause_writing()
        waiting = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(self.stall, self._watch_writing, waiting, waiting // 10)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    def _watch_writing(self, before: int, least: int) -> None:
        """A client that takes nothing of its answer would hold its place at a backend for ever."""
        waiting = self.transport.get_write_buffer_size()
        if before - waiting > least:
            self._stalled = self.loop.call_later(self.stall, self._watch_writing, waiting, least)
        else:
            self.transport.abort()

    # what a client sends

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that has said all it will still gets its answer, if it is there to read it."""
        if not self._whole or self.cycle.response_complete:
            return False
        self.cycle.keep_alive = False
        self._half_closed = HalfClosed(self.loop, self.transport, self._sign_of_life)
        return True

    def _sign_of_life(self) -> bytes:
        # With requests in the queue the answer under way is another's than the last one's.
        cycle = self.cycle
        if self.pipeline or self.flow.write_paused or not isinstance(cycle, Cycle):
            return b""
        return cycle.sign_of_life()

    def data_received(self, data: bytes) -> None:
        self._went_on = False
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        # A head that begins within this read is counted from the next: before it may stand another's body.
        self._idle = 0 if self._went_on else self._idle + len(data)
        if self._idle > self.max_head:
            self._refuse(
                431, f"The request's headers are larger than {self.max_head} bytes.", "headers_too_large"
            )

    def _feed(self, data: bytes | memoryview) -> None:
        """Raises ``httptools.HttpParserError``.

        At an offer of another protocol the parser stops behind the head, and takes the message to have no body. A new
        one then gets the head without the offer, and all that follows.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = memoryview(data)[offer.args[0] :]
            if self.parser.get_method() == b"CONNECT":
                raise httptools.HttpParserError("this is no proxy")
            head = self._head_without_offer()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
            self.parser.feed_data(head)

    def _head_without_offer(self) -> bytes:
        first = b"%b %b HTTP/%b" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        lines = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([first, *lines, b"", b""])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._went_on = True
        self._whole = False
        self._passed_over = 0
        self._heard = self._began = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are passed over (RFC 9110, section 6.5.1): among the headers they could name another caller.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # it is to be read again
        self._in_head, self._went_on = False, True
        self.scope[CONNECTION_STATE] = self._hangup  # type: ignore[literal-required]
        super().on_headers_complete()
        if isinstance(self.cycle, RequestResponseCycle):
            # uvicorn has no other place to say which class it is to be; nothing of it has run yet.
            self.cycle.__class__ = Cycle
        if len(self.pipeline) > self.max_pipeline:
            raise ValueError("too many requests that wait")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._went_on = True
        if not self.cycle.response_complete:
            self._heard = self.loop.time()
        else:
            self._passed_over += len(body)
            if self._passed_over > self.max_rest:
                self.transport.close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._whole = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "This is no HTTP/1.1 request that can be understood.", "invalid_http")

    def _refuse(self, status: int, message: str, code: str) -> None:
        cycle = self.cycle
        free = cycle is None or cycle.response_complete
        if not free and not (self._in_head or self._whole or self.pipeline or cycle.response_started):
            # The body of the request in hand is at fault, and nothing was said of it yet.
            cycle.disconnected = free = True
        self._in_head = False
        if free:  # else it would land amid another's answer
            error = BadRequest(message, code=code)
            error.status = status
            self._tell(error)
        self.transport.close()

    def _tell(self, error: GatewayError) -> None:
        body = orjson.dumps(error.body())
        lines = [
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            *((b"retry-after: %d" % error.retry_after,) if error.retry_after else ()),
            b"connection: close",
        ]
        self.transport.write(STATUS_LINE[error.status] + b"\r\n".join((*lines, b"", body)))

    def _sweep(self) -> None:
        answering = self._whole and self.cycle is not None and not self.cycle.response_complete
        silence = self.loop.time() - self._heard
        wait = self.patience
        if self.transport.is_closing():
            # What is still to be written keeps it open, until somebody takes it.
            if self._lingers:
                self.transport.abort()
            self._lingers = True
        elif silence < self.patience:
            wait -= silence
        elif not (answering or self.timeout_keep_alive_task or self.flow.read_paused):
            self.transport.close()
        self._sweeper = self.loop.call_later(wait, self._sweep)
