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
from urllib.parse import unquote

import httptools
import orjson
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import BadRequest, GatewayError, Overloaded
from gateway.server.connection_limits import ConnectionLimiter
from gateway.server.cycle import CONNECTION_STATE, ConnectionState, Cycle
from gateway.server.half_close import HalfClosed
from gateway.server.lingering import Lingering

LINGER = 8
"""See ``Connection.max_unread_body``."""
SLOW = 10.0
"""Seconds after which a request that is still being received may be dropped for a new connection."""


class Connection(HttpToolsProtocol):
    max_head: ClassVar[int] = 64 * 1024
    """Bytes of request line and headers, or of chunk extensions and trailers in a row; one read may exceed it."""
    read_timeout: ClassVar[float] = 30.0
    """Seconds without data of a request's body, or until a head is complete; also for the rest of a body that was
    answered before its end. Between requests the keep-alive timeout applies."""
    write_timeout: ClassVar[float] = 30.0
    """Seconds in which a client must read a tenth of what is buffered for it, once the buffers are full."""
    max_unread_body: ClassVar[int] = 32 * 2**20
    """Bytes of a body that are read on, for the sake of the connection, after it was answered before its end; and then
    ``LINGER`` times as many for the sake of the answer, which its client may read only when it has sent all."""
    max_pipeline: ClassVar[int] = 100
    """Pipelined requests."""
    limiter: ClassVar[ConnectionLimiter | None] = None
    """Bounds the number of connections."""
    cycle: Cycle

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._idle_bytes = 0
        """Bytes read since the request last made progress."""
        self._complete = False
        self._idle_since: float | None = None
        """When its last response was complete; None while there is a request."""
        self._received_at = self._began_at = self.loop.time()
        self._sweeper: asyncio.TimerHandle | None = None
        self._lingering = False
        self._discarded = 0
        self._stalled: asyncio.TimerHandle | None = None
        self._state = ConnectionState(self._authenticated, self._linger)
        self._half_closed: HalfClosed | None = None
        self._in_flight: RequestResponseCycle | None = None
        """Of pipelined requests uvicorn keeps the last only."""
        self._scope: dict[str, Any] = {}
        """What the scopes of all requests have."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            CONNECTION_STATE: self._state,
        }
        self._sweeper = self.loop.call_later(self.read_timeout, self._sweep)
        if self.limiter is None:
            self._state.authenticated = True
        elif self.limiter.enter(self):
            self.timeout_keep_alive = min(self.timeout_keep_alive, self.read_timeout)  # type: ignore[assignment]
        else:
            self._send_error(
                Overloaded(
                    "This gateway has reached its limit of connections. Try again in a moment.",
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
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        if self._half_closed is not None:
            self._half_closed.cancel()
            self._half_closed = None  # it holds this object
        if self.limiter is not None:
            self.limiter.closed(self)
        if self._in_flight is not None and not self._in_flight.response_complete:
            self._in_flight.disconnected = True
            self._in_flight.message_event.set()
        super().connection_lost(exc)
        self._state.disconnect()

    def shutdown(self) -> None:
        self._state.stopping = True
        super().shutdown()

    # LimitedConnection

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def idle(self) -> bool:
        slow = not self._complete and self.loop.time() - self._began_at > SLOW
        return slow or self._idle_since is not None

    def abort(self) -> None:
        self.transport.abort()

    def _authenticated(self) -> None:
        self.timeout_keep_alive = self.config.timeout_keep_alive
        if self.limiter is not None:
            self.limiter.authenticated(self)

    # a client that does not read

    def pause_writing(self) -> None:
        super().pause_writing()
        waiting = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(self.write_timeout, self._watch_writing, waiting, waiting // 10)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    def _watch_writing(self, before: int, least: int) -> None:
        """A client that reads nothing of its answer would keep its slot at a backend for ever."""
        waiting = self.transport.get_write_buffer_size()
        if before - waiting > least:
            self._stalled = self.loop.call_later(self.write_timeout, self._watch_writing, waiting, least)
        else:
            self.transport.abort()

    # what a client sends

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that half-closes its connection still gets its answer."""
        if not self._complete or self.cycle.response_complete:
            return False
        self.cycle.keep_alive = False
        self._half_closed = HalfClosed(self.loop, self.transport, self._keepalive)
        return True

    def _keepalive(self) -> bytes:
        # With pipelined requests the response in flight is not that of the last one.
        cycle = self.cycle
        if self.pipeline or self.flow.write_paused:
            return b""
        return cycle.keepalive()

    def data_received(self, data: bytes) -> None:
        self._idle_since = None
        # A head that begins within this read is counted from the next read on: the body before it may be in it, too.
        self._idle_bytes += len(data)
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._feed_again(data, upgrade)
        except httptools.HttpParserError:
            self.send_400_response("")
        if self._idle_bytes > self.max_head:
            self._refuse(
                431, f"The request's headers are larger than {self.max_head} bytes.", "headers_too_large"
            )

    def _feed_again(self, data: bytes | memoryview, upgrade: httptools.HttpParserUpgrade) -> None:
        """Raises ``httptools.HttpParserError``.

        At an ``Upgrade`` header the parser stops behind the head, and assumes that there is no body. A new parser then
        gets the head without that header, and all that follows.
        """
        while True:
            data = memoryview(data)[upgrade.args[0] :]
            if self.parser.get_method() == b"CONNECT":
                raise httptools.HttpParserError("this is no proxy")
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
            self.parser.feed_data(head)
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as another:
                upgrade = another

    def _head_without_upgrade(self) -> bytes:
        first = b"%b %b HTTP/%b" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        lines = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([first, *lines, b"", b""])

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self._in_head = True
        self._idle_bytes = self._discarded = 0
        self._complete = self.expect_100_continue = False
        self._received_at = self._began_at = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """As uvicorn's, but for what it has a setting for that is not made here, and its own class of cycles."""
        parser = self.parser
        if parser.should_upgrade():
            return  # it is parsed again
        self._in_head = False
        self._idle_bytes = 0
        # Trailers come to another list, and to nobody (RFC 9110, section 6.5.1): they could name another caller.
        headers, self.headers = self.headers, []
        expected = dict(headers).get(b"expect")
        if expected is not None:
            self.expect_100_continue = expected.lower() == b"100-continue"
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        version = parser.get_http_version()
        scope: Any = {
            **self._scope,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": headers,
        }
        before = self.cycle
        self.cycle = cycle = Cycle(scope, self, keep_alive=version != "1.0" and parser.should_keep_alive())
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
            return
        self.flow.pause_reading()
        self.pipeline.appendleft((cycle, self.app))
        if len(self.pipeline) > self.max_pipeline:
            raise ValueError("too many pipelined requests")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._in_flight = cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        cycle = self.cycle
        if cycle.response_complete:
            self._discarded += len(body)
            if self._discarded > self.max_unread_body:
                self._linger()
            return
        self._received_at = self.loop.time()
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        if cycle.news is not None:
            cycle.news.set()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._complete = True
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            if cycle.news is not None:
                cycle.news.set()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._keep_alive_for(self.timeout_keep_alive)

    def _keep_alive_for(self, seconds: float) -> None:
        # It runs on through the next requests: to make one and to cancel it takes longer than to parse a head.
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return  # the next response begins anew
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._keep_alive_for(left)
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "This is not a valid HTTP/1.1 request.", "invalid_http")

    def _refuse(self, status: int, message: str, code: str) -> None:
        cycle = self.cycle
        free = cycle is None or cycle.response_complete
        if not free and not (self._in_head or self._complete or self.pipeline or cycle.response_started):
            # The body of the current request is malformed, and nothing was answered yet.
            cycle.disconnected = free = True
        self._in_head = False
        if free:  # else it would land amid another's answer
            error = BadRequest(message, code=code)
            error.status = status
            self._send_error(error)
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        if not self.transport.is_closing() and self.transport.get_protocol() is self:
            Lingering(self.transport, self, seconds=self.read_timeout, most=LINGER * self.max_unread_body)

    def _send_error(self, error: GatewayError) -> None:
        body = orjson.dumps(error.body())
        lines = [
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            *((b"retry-after: %d" % error.retry_after,) if error.retry_after else ()),
            b"connection: close",
        ]
        self.transport.write(STATUS_LINE[error.status] + b"\r\n".join((*lines, b"", body)))

    def _sweep(self) -> None:
        answering = self._complete and self.cycle is not None and not self.cycle.response_complete
        silence = self.loop.time() - self._received_at
        wait = self.read_timeout
        if self.transport.is_closing():
            # Buffered data keeps it open until the client reads it.
            if self._lingering:
                self.transport.abort()
            self._lingering = True
        elif silence < self.read_timeout:
            wait -= silence
        elif not (answering or self._idle_since is not None or self.flow.read_paused):
            self.transport.close()
        self._sweeper = self.loop.call_later(wait, self._sweep)
