"""uvicorn's HTTP/1.1 connection, with bounds on what a client may make us wait for and remember.

uvicorn limits neither the size of a request's head nor the time a client takes to send one, so that a few slow or
talkative connections could hold every file descriptor and all memory. It also tells of a client that hangs up by a
plain call (``HANGUP`` in the scope), where ASGI would need a task for each request just to wait for it.

Two things that uvicorn does not put up with are accepted here: the offer to change the protocol, which a server may
ignore (RFC 9110, section 7.8), and the end of a client's sending while it still waits for its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import BadRequest
from gateway.half_close import HalfClosed

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


class _Cycle(RequestResponseCycle):
    """Sends an answer's head together with the first of its body.

    uvicorn writes them one after the other, each with a system call, and looks at every header with two regular
    expressions: a tenth of all that a request cost.
    """

    head = b""
    events = False
    """Whether the answer is a stream of events."""

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            if self.response_started:
                raise RuntimeError("an answer can begin only once")
            self.response_started = True
            if self.waiting_for_100_continue and self.more_body:
                # The body may come now or not: what follows could be it, or another request (RFC 9110, 10.1.1).
                self.keep_alive = False
            self.waiting_for_100_continue = False
            self.head = self._head(message["status"], message["headers"])
            return
        if not self.response_started or self.response_complete:
            raise RuntimeError(f"{message['type']} out of turn")
        body, more = message.get("body", b""), message.get("more_body", False)
        head, self.head = self.head, b""
        if self.chunked_encoding:
            framed = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self.transport.write(head + framed if more else head + framed + b"0\r\n\r\n")
        else:
            self.expected_content_length -= len(body)
            if self.scope["method"] == "HEAD":
                body, self.expected_content_length = b"", 0
            if self.expected_content_length < 0 or (self.expected_content_length and not more):
                raise RuntimeError("the body is not as long as its content-length says")
            self.transport.write(head + body)
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()

    def sign_of_life(self) -> bytes:
        """What may be sent at this moment and changes nothing for a client that reads; empty where there is no such
        thing.

        Before the answer it is an interim one, which any client of HTTP/1.1 can discard (RFC 9110, section 15.2.1),
        and within a stream of events a comment.
        """
        if not self.response_started or self.head:
            return b"" if self.scope["http_version"] == "1.0" else b"HTTP/1.1 100 Continue\r\n\r\n"
        return b"3\r\n:\n\n\r\n" if self.events and self.chunked_encoding else b""

    def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        whole = STATUS_LINE[status]
        length = None
        for name, value in (*self.default_headers, *headers):
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and value == b"close":
                self.keep_alive = False
            elif name == b"content-type":
                self.events = value.startswith(b"text/event-stream")
            whole += name + b": " + value + b"\r\n"
        lines = 1 + len(self.default_headers) + len(headers)
        if whole.count(b"\n") != lines or whole.count(b"\r") != lines:
            raise RuntimeError("a header holds a line break")
        if not self.keep_alive and b"\r\nconnection: close\r\n" not in whole:
            whole += b"connection: close\r\n"
        self.chunked_encoding = length is None and self.scope["method"] != "HEAD" and status not in (204, 304)
        self.expected_content_length = length or 0
        return whole + (b"transfer-encoding: chunked\r\n\r\n" if self.chunked_encoding else b"\r\n")


class Connection(HttpToolsProtocol):
    max_head: ClassVar[int] = 64 * 1024
    """Bytes of request line and headers, or of chunk extensions and trailers on end; a little more can come in with
    one read."""
    patience: ClassVar[float] = 30.0
    """Seconds in which nothing of a request's body comes, or a head does not end. Between requests, keep-alive rules.
    As long a body may go on that was answered before its end."""
    stall: ClassVar[float] = 60.0
    """Seconds in which a client takes nothing of an answer that waits for it, all buffers being full."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._idle = 0
        """Bytes read since the request was last got on with."""
        self._went_on = False
        self._whole = False
        self._heard = self.loop.time()
        self._sweeper: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._hangup = Hangup()
        self._half_closed: HalfClosed | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._sweeper = self.loop.call_later(self.patience, self._sweep)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._stalled is not None:
            self._stalled.cancel()
        if self._half_closed is not None:
            self._half_closed.cancel()
        super().connection_lost(exc)
        self._hangup.happened()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    def _watch_writing(self, before: float = float("inf")) -> None:
        """A client that takes nothing of its answer would hold its place at a backend for ever."""
        waiting = self.transport.get_write_buffer_size()
        if waiting < before:
            self._stalled = self.loop.call_later(self.stall, self._watch_writing, waiting)
        else:
            self.transport.abort()

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
        if self.pipeline or self.flow.write_paused or not isinstance(cycle, _Cycle):
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
        self._heard = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers are passed over (RFC 9110, section 6.5.1): among the headers they could name another caller.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # it is to be read again
        self._in_head, self._went_on = False, True
        self.scope[HANGUP] = self._hangup  # type: ignore[literal-required]
        super().on_headers_complete()
        if isinstance(self.cycle, RequestResponseCycle):
            # uvicorn has no other place to say which class it is to be; nothing of it has run yet.
            self.cycle.__class__ = _Cycle

    def on_body(self, body: bytes) -> None:
        self._went_on = True
        if not self.cycle.response_complete:
            self._heard = self.loop.time()
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
