"""A small HTTP/1.1 client for the hot path: pooled connections, one write a request, bytes handed over as they come.

aiohttp's client takes three times the processor time of this one (``benchmarks/transports.py``), which was a third of
all that a request cost the gateway. What is not needed to forward a request is not here: no redirects, cookies,
compression, proxies (``transport.py`` leaves those to aiohttp). llhttp does the parsing, through httptools
(RFC 9112).

Failures are raised as httpx's errors, as everywhere in ``gateway.backends``.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httptools
import httpx

KEEPALIVE = 4.0
"""Seconds an idle connection is kept: less than the 5 after which uvicorn and Node close theirs. The server closing
first would meet a request on its way, which must then fail, as a POST is not to be sent twice.
"""
STILL_THERE = (30, 10, 3)
"""Seconds of silence after which the system asks a server's machine whether it is still there, seconds between two
such questions, and how many may go unanswered. A model can think for minutes, and a server that is gone must not be
taken for one; and what stands between keeps the way open."""
HIGH_WATER = 2**18
"""Bytes of an answer that wait to be read, above which the server is made to wait."""
MAX_HEAD = 2**16


@dataclass(frozen=True, slots=True)
class Origin:
    """Where connections go."""

    host: str
    port: int
    tls: bool

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def keep_asking(sock: socket.socket) -> None:
    """Find out by TCP keepalive when the other side is gone (tcp(7)): a read then fails."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in zip(("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"), STILL_THERE, strict=True):
        option = getattr(socket, name, None)  # macOS has no TCP_KEEPIDLE
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Response:
    """An answer whose head has come. ``async for`` gives its body as it arrives."""

    __slots__ = ("_connection", "headers", "status")

    def __init__(self, status: int, headers: Mapping[str, str], connection: _Connection) -> None:
        self.status = status
        self.headers = headers
        """Lower-case names; values of a repeated name are joined by commas."""
        self._connection: _Connection | None = connection

    def __aiter__(self) -> Response:
        return self

    async def __anext__(self) -> bytes:
        """What has come since. Raises ``httpx.ReadError``, ``httpx.RemoteProtocolError``."""
        connection = self._connection
        if connection is None:
            raise StopAsyncIteration
        part = await connection.read()
        if not part:
            self._connection = None
            connection.release()
            raise StopAsyncIteration
        return part

    async def aclose(self) -> None:
        """Let go. Before the answer's end this drops the connection, which tells the server to stop."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()


class _Connection(asyncio.Protocol):
    """One connection; at most one request at a time."""

    def __init__(self, home: Callable[[_Connection], None]) -> None:
        self._home = home
        self.loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._error: httpx.TransportError | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._busy = False
        self._lost = False
        self._begin()
        self.idle_since = 0.0

    def _begin(self) -> None:
        self._status = 0
        self._headers: dict[str, str] = {}
        self._head_size = 0
        self._head_done = False
        self._done = False
        self._keep = False
        self._until_close = False
        self._parts: list[bytes] = []
        self._size = 0
        self._paused = False

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        keep_asking(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        if not self._busy or self._done:
            # Nobody asked for this: what it belongs to is anybody's guess.
            self._keep = False
            self._transport.close()
            return
        if not self._head_done:
            self._head_size += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:
            self._fail(httpx.RemoteProtocolError(f"not HTTP/1.1: {error}"))
            return
        if not self._head_done and self._head_size > MAX_HEAD:
            self._fail(httpx.RemoteProtocolError(f"a head of over {MAX_HEAD} bytes"))
            return
        if self._size > HIGH_WATER and not self._paused and not self._done:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._head_done and self._until_close and exc is None:
            self._done = True
        if not self._done and self._error is None:
            self._error = httpx.ReadError(str(exc or "the server closed the connection"))
        self._wake()
        if not self._busy:
            self._home(self)

    # the parser's side

    def on_message_begin(self) -> None:
        if self._head_done:  # a second answer to one request
            raise ValueError("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self._headers.get(key)
        self._headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # news on the way; the answer proper follows
            if status == 101:
                raise ValueError("a change of protocol that nobody asked for")
            self._headers = {}
            return
        self._status = status
        self._head_done = True
        coding = self._headers.get("transfer-encoding", "")
        self._until_close = (
            "content-length" not in self._headers
            and "chunked" not in coding.lower()
            and status not in (204, 304)
        )

    def on_body(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self._size += len(data)

    def on_message_complete(self) -> None:
        if self._head_done:
            self._done = True
            self._keep = self._parser.should_keep_alive() and not self._until_close

    # the caller's side

    @property
    def usable(self) -> bool:
        return not self._lost and not self._transport.is_closing()

    async def ask(self, data: bytes) -> Response:
        """Send a request and wait for the head of its answer. Raises ``httpx.TransportError``."""
        self._begin()
        self._busy = True
        try:
            self._transport.write(data)
            while not self._head_done:
                if self._error is not None:
                    raise self._error
                await self._wait()
        except BaseException:
            self.release()
            raise
        return Response(self._status, self._headers, self)

    async def read(self) -> bytes:
        """What has come of the body; empty at its end."""
        while not self._parts:
            if self._done:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        parts, self._parts, self._size = self._parts, [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Back to the pool, if the answer was read to its end and the server keeps the connection."""
        self._busy = False
        if not (self._done and self._keep and not self._parts) or not self.usable:
            self.drop()
        self._home(self)

    def drop(self) -> None:
        self._keep = False
        if not self._lost:
            self._transport.abort()

    async def _wait(self) -> None:
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: httpx.TransportError) -> None:
        if not self._done:
            self._error = error
        self._transport.abort()
        self._wake()


class Http1Client:
    """Connections to any number of servers. ``authorities`` gives the TLS context when one is first needed."""

    def __init__(self, *, authorities: Callable[[], ssl.SSLContext], keepalive: float = KEEPALIVE) -> None:
        self._authorities = authorities
        self._keepalive = keepalive
        self._idle: dict[Origin, deque[_Connection]] = {}
        self._open: set[_Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    async def send(
        self,
        origin: Origin,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        connect: float | None,
    ) -> Response:
        """The answer, its body still to be read. ``connect`` limits (seconds) the time a new connection takes.

        Raises ``httpx.ConnectError``, ``ConnectTimeout``, ``ReadError``, ``RemoteProtocolError``; ``ValueError`` for
        a header that cannot be sent.
        """
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        if lines.count("\n") != len(headers) or lines.count("\r") != len(headers) or "\0" in lines:
            raise ValueError("a header holds a line break")
        head = f"{method} {path} HTTP/1.1\r\nhost: {origin.host_header}\r\n{lines}"
        if body or method == "POST":
            head = f"{head}content-length: {len(body)}\r\n\r\n"
        else:
            head += "\r\n"
        connection = self._resting(origin) or await self._connect(origin, connect)
        return await connection.ask(head.encode("latin-1") + body)

    async def aclose(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in [*self._open]:
            connection.drop()
        self._open.clear()
        self._idle.clear()
        await asyncio.sleep(0)  # the transports close in the loop's next round

    def _resting(self, origin: Origin) -> _Connection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, origin: Origin, limit: float | None) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit):
                _, connection = await loop.create_connection(
                    lambda: _Connection(lambda connection: self._rest(origin, connection)),
                    origin.host,
                    origin.port,
                    ssl=self._authorities() if origin.tls else None,
                    server_hostname=origin.host if origin.tls else None,
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time") from error
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise httpx.ConnectError(str(error) or type(error).__name__) from error
        self._open.add(connection)
        return connection

    def _rest(self, origin: Origin, connection: _Connection) -> None:
        """A connection has done its work, or was lost while it had none."""
        if not connection.usable:
            self._open.discard(connection)
            return
        loop = connection.loop
        connection.idle_since = loop.time()
        self._idle.setdefault(origin, deque()).append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._keepalive, self._sweep)

    def _sweep(self) -> None:
        """Close what has rested too long; those that rest longest are at the left."""
        self._sweeper = None
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._keepalive
        for origin, idle in [*self._idle.items()]:
            while idle and (idle[0].idle_since <= oldest or not idle[0].usable):
                gone = idle.popleft()
                gone.drop()
                self._open.discard(gone)
            if not idle:
                del self._idle[origin]
        if self._idle:
            wait = min(idle[0].idle_since for idle in self._idle.values()) - oldest
            self._sweeper = loop.call_later(max(wait, 0.05), self._sweep)
