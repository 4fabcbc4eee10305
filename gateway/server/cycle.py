"""One request of a connection and its response, and what its connection and the layers above share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

TAKE_BY = "tollgate.take_by"
"""In the scope, set by an endpoint: when (on the loop's clock) a client that does not read its answer is cut off."""
MOST_ZEROS = 8
"""Of one size, which some clients want to have sixteen digits at most."""
CONNECTION_STATE = "tollgate.connection_state"
"""In the scope: the ``ConnectionState`` of the request's connection."""


class WriteEvents(Protocol):
    def __call__(self, events: Callable[..., bytes], *args: object) -> bool: ...


def _nothing() -> None:
    """For a connection that is gone."""


class ConnectionState:
    """Shared by a connection and the layers above: whether it is closed, and whether it is authenticated.

    ``on_disconnect`` is called when the client disconnects; the request that is being served sets it.
    """

    __slots__ = (
        *("_on_authenticated", "authenticated", "disconnected", "linger"),
        *("on_disconnect", "stopping", "write_events"),
    )

    def __init__(
        self, on_authenticated: Callable[[], object] = _nothing, linger: Callable[[], object] = _nothing
    ) -> None:
        """``linger`` closes the connection of a client that still sends."""
        self.linger = linger
        self.disconnected = False
        self.on_disconnect: Callable[[], object] | None = None
        self.stopping = False
        """The server waits for its last answers: one without an end of its own has to end."""
        self.authenticated = False
        """A request on this connection has shown a valid key."""
        self._on_authenticated = on_authenticated
        self.write_events: WriteEvents | None = None
        """While its response is an event stream that has begun: ``Cycle.write_events``."""

    def authenticate(self) -> None:
        self.authenticated = True
        self._on_authenticated()

    def disconnect(self) -> None:
        self.disconnected = True
        self.write_events = None
        self._on_authenticated = self.linger = _nothing  # the connection's, which holds this object
        if self.on_disconnect is not None:
            self.on_disconnect()


class Cycle(RequestResponseCycle):
    """Sends a response's head together with the first part of its body.

    uvicorn writes them one after the other, each with a system call, and looks at every header with two regular
    expressions: a tenth of all that a request cost.
    """

    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding = False
    expected_content_length = 0
    waiting_for_100_continue = False
    logger = logging.getLogger("uvicorn.error")
    head = b""
    events = False
    """Whether the response is an event stream."""
    zeros = 0
    """Written before the next chunk's size."""
    until_close = False
    """The end of the connection is that of the body: HTTP/1.0 knows of no chunks."""
    news: asyncio.Event | None = None
    """Set when more of the body has come, or there is nothing to wait for any more; None before anybody waits."""
    _read = False
    """The body has been received to its end."""

    def __init__(self, scope: Any, connection: HttpToolsProtocol, *, keep_alive: bool) -> None:
        self.scope = scope
        self.transport = connection.transport
        self.flow = connection.flow
        self.default_headers = connection.server_state.default_headers
        self.on_response = connection.on_response_complete
        self.keep_alive = keep_alive
        if connection.expect_100_continue:
            self.waiting_for_100_continue = True
        self.body = bytearray()

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        """uvicorn's name for it."""
        if self.news is None:
            self.news = asyncio.Event()
        return self.news

    async def receive(self) -> Any:
        """As uvicorn's, which makes an event for each request and awaits it, whether or not there is more to come."""
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        while not (self.disconnected or self.response_complete):
            if self.flow.read_paused:
                self.flow.resume_reading()
            more = self.more_body
            if self.body or not (more or self._read):
                self._read = not more
                body, self.body = bytes(self.body), bytearray()
                return {"type": "http.request", "body": body, "more_body": more}
            await self.message_event.wait()
            self.message_event.clear()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self._drained()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self._begin(message["status"], message["headers"])
            if "body" not in message:
                return
            # A whole response in one message: no ASGI, but half of its cost.
        elif not self.response_started or self.response_complete:
            raise RuntimeError(f"{message['type']} out of turn")
        body, more = message.get("body", b""), message.get("more_body", False)
        head, self.head = self.head, b""
        if self.chunked_encoding:
            self.zeros = 0
            if body:
                head = b"%b%x\r\n%b\r\n" % (head, len(body), body)
            self.transport.write(head if more else head + b"0\r\n\r\n")
        elif self.until_close:
            self.transport.write(head + body)
        else:
            left = self.expected_content_length - len(body)
            if self.scope["method"] == "HEAD":
                body, left = b"", 0
            if left and (left < 0 or not more):
                raise RuntimeError("the body is not as long as its content-length says")
            self.expected_content_length = left
            self.transport.write(head + body)
        if not more:
            self.response_complete = True
            if self.events:
                self._connection.write_events = None
            if self.news is not None:
                self.news.set()
            if not self.keep_alive:
                self._close()
            self.on_response()

    def write_events(self, events: Callable[..., bytes], *args: object) -> bool:
        """Write more of an event stream, what ``events`` makes of ``args``, as ``send`` does at three times the cost.

        False where the client must read first, or there is nothing to write to any more: ``send`` knows what to do,
        and ``events`` is not called.
        """
        if self.flow.write_paused or self.disconnected or self.response_complete or self.head:
            return False
        if data := events(*args):
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def _close(self) -> None:
        if self.more_body:
            self._connection.linger()
        else:
            self.transport.close()

    @property
    def _connection(self) -> ConnectionState:
        state: ConnectionState = self.scope[CONNECTION_STATE]  # type: ignore[literal-required]
        return state

    async def _drained(self) -> None:
        by: float | None = self.scope.get(TAKE_BY)  # type: ignore[assignment]
        if by is None:
            await self.flow.drain()
            return
        late = asyncio.get_running_loop().call_at(by, self.transport.abort)
        try:
            await self.flow.drain()
        finally:
            late.cancel()

    def keepalive(self) -> bytes:
        """Bytes that may be sent now and change nothing for a client that reads; empty where there are none.

        Before the response this is an interim one, which any HTTP/1.1 client can discard (RFC 9110, section 15.2.1),
        within an event stream a comment, and between the chunks of any other body a zero before the next one's size
        (RFC 9112, section 7.1).
        """
        if not self.response_started or self.head:
            return b"" if self.scope["http_version"] == "1.0" else b"HTTP/1.1 100 Continue\r\n\r\n"
        if not self.chunked_encoding:
            return b""
        if self.events:
            return b"3\r\n:\n\n\r\n"
        if self.zeros == MOST_ZEROS:
            return b""
        self.zeros += 1
        return b"0"

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self.response_started:
            raise RuntimeError("a response can begin only once")
        self.response_started = True
        if self.waiting_for_100_continue:
            # The body may come now or not: what follows could be it, or another request (RFC 9110, 10.1.1).
            self.keep_alive = self.keep_alive and not self.more_body
            self.waiting_for_100_continue = False
        fields = [*self.default_headers, *headers]
        head = STATUS_LINE[status] + b"\r\n".join([*map(b": ".join, fields), b""])
        lines = 1 + len(fields)
        if head.count(b"\n") != lines or head.count(b"\r") != lines:
            raise RuntimeError("a header holds a line break")
        named = dict(fields)
        length = named.get(b"content-length")
        if length is not None:
            self.expected_content_length = int(length)
        elif self.scope["method"] != "HEAD" and status not in (204, 304):
            self.events = named.get(b"content-type", b"").startswith(b"text/event-stream")
            self.until_close = self.scope["http_version"] == "1.0"
            self.chunked_encoding = not self.until_close
        if named.get(b"connection") == b"close":
            self.keep_alive = False
        elif not self.keep_alive or self.until_close:
            self.keep_alive = False
            head += b"connection: close\r\n"
        self.head = head + (b"transfer-encoding: chunked\r\n\r\n" if self.chunked_encoding else b"\r\n")
        if self.events and self.chunked_encoding:
            self._connection.write_events = self.write_events
