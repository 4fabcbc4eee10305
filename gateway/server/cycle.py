"""One request of a connection and its response, and what its connection and the layers above share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

TAKE_BY = "tollgate.take_by"
"""In the scope, set by an endpoint: when (on the loop's clock) a client that does not read its answer is cut off."""
MOST_ZEROS = 8
"""Of one size, which some clients want to have sixteen digits at most."""
CONNECTION_STATE = "tollgate.connection_state"
"""In the scope: the ``ConnectionState`` of the request's connection."""


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
        self, on_authenticated: Callable[[], object], linger: Callable[[], object] = _nothing
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
        self.write_events: Callable[[Callable[[], bytes]], bool] | None = None
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
    head = b""
    events = False
    """Whether the response is an event stream."""
    zeros = 0
    """Written before the next chunk's size."""
    until_close = False
    """The end of the connection is that of the body: HTTP/1.0 knows of no chunks."""

    def __init__(self, scope: Any, connection: HttpToolsProtocol, *, keep_alive: bool) -> None:
        self.scope = scope
        self.transport = connection.transport
        self.flow = connection.flow
        self.logger = connection.logger
        self.default_headers = connection.server_state.default_headers
        self.message_event = asyncio.Event()
        self.on_response = connection.on_response_complete
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = connection.expect_100_continue
        self.body = bytearray()

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self._drained()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], message["headers"])
            return
        if not self.response_started or self.response_complete:
            raise RuntimeError(f"{message['type']} out of turn")
        body, more = message.get("body", b""), message.get("more_body", False)
        head = self.head
        if head:
            self.head = b""
        if self.chunked_encoding:
            self.zeros = 0
            if body:
                head = b"%b%x\r\n%b\r\n" % (head, len(body), body)
            self.transport.write(head if more else head + b"0\r\n\r\n")
        elif self.until_close:
            self.transport.write(head + body)
        else:
            self.expected_content_length -= len(body)
            if self.scope["method"] == "HEAD":
                body, self.expected_content_length = b"", 0
            if self.expected_content_length < 0 or (self.expected_content_length and not more):
                raise RuntimeError("the body is not as long as its content-length says")
            self.transport.write(head + body)
        if not more:
            self.response_complete = True
            if self.events:
                self._connection.write_events = None
            self.message_event.set()
            if not self.keep_alive:
                self._close()
            self.on_response()

    def write_events(self, events: Callable[[], bytes]) -> bool:
        """Write more of an event stream, as ``send`` does at three times the cost.

        False where the client must read first, or there is nothing to write to any more: ``send`` knows what to do,
        and ``events`` is not called.
        """
        if self.flow.write_paused or self.disconnected or self.response_complete or self.head:
            return False
        if data := events():
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

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self.response_started:
            raise RuntimeError("a response can begin only once")
        self.response_started = True
        if self.waiting_for_100_continue and self.more_body:
            # The body may come now or not: what follows could be it, or another request (RFC 9110, 10.1.1).
            self.keep_alive = False
        self.waiting_for_100_continue = False
        self.head = self._head(status, headers)
        if self.events and self.chunked_encoding:
            self._connection.write_events = self.write_events

    def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        fields = [*self.default_headers, *headers]
        whole = STATUS_LINE[status] + b"\r\n".join([*map(b": ".join, fields), b""])
        lines = 1 + len(fields)
        if whole.count(b"\n") != lines or whole.count(b"\r") != lines:
            raise RuntimeError("a header holds a line break")
        named = dict(fields)
        length = named.get(b"content-length")
        if length is not None:
            self.expected_content_length = int(length)
        elif self.scope["method"] != "HEAD" and status not in (204, 304):
            self.events = named.get(b"content-type", b"").startswith(b"text/event-stream")
            self.until_close = self.scope["http_version"] == "1.0"
            self.chunked_encoding = not self.until_close
        if (b"connection", b"close") in fields:
            self.keep_alive = False
        elif not self.keep_alive or self.until_close:
            self.keep_alive = False
            whole += b"connection: close\r\n"
        return whole + (b"transfer-encoding: chunked\r\n\r\n" if self.chunked_encoding else b"\r\n")
