"""One HTTP/1.1 connection to a server, and the answer that comes over it. llhttp does the parsing, through httptools
(RFC 9112).

HTTP/1.1 gives an answer no name: it belongs to whichever request is the next. A server, or what stands before it, that
answers once too often would so have its surplus given to the next caller. What can be known of an answer that comes
over a connection used before is looked at here: whether it came before anything was asked, before the question had
arrived, or under the name of another.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import sys
import termios
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

import httptools
import httpx

from gateway.backends.answer_ids import AnswerIds, IdKind

STILL_THERE = (30, 10, 3)
"""Seconds of silence after which the system asks a server's machine whether it is still there, seconds between two
such questions, and how many may go unanswered. A model can think for minutes, and a server that is gone must not be
taken for one; and what stands between keeps the way open."""
HIGH_WATER = 2**18
"""Bytes of an answer that wait to be read, above which the server is made to wait."""
MAX_HEAD = 2**16
"""Bytes in which an answer gets no further: its head, interim answers, chunk extensions, trailers."""
AT_ONCE = 2**16
"""A request of more bytes may be refused by a server that has not read all of it."""
_LAST_BYTES = 4096
_TELLS = sys.platform == "linux"
_NONE = bytes(4)


class ConnectionOwner(Protocol):
    """Where a connection rests between requests: all connections to one server share it."""

    ids: AnswerIds

    def back(self, connection: UpstreamConnection) -> None:
        """It has done its work, and can be used again."""
        ...

    def gone(self, connection: UpstreamConnection) -> None:
        """It cannot be used again."""
        ...

    def distrust(self) -> None:
        """The server has answered what nobody asked."""
        ...


def keep_asking(sock: socket.socket) -> None:
    """Find out by TCP keepalive when the other side is gone (tcp(7)): a read then fails."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in zip(("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"), STILL_THERE, strict=True):
        option = getattr(socket, name, None)  # macOS has no TCP_KEEPIDLE
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class Response:
    """An answer whose head has come. ``async for`` gives its body as it arrives."""

    __slots__ = ("_connection", "_fields", "_headers", "_identify", "status")

    def __init__(self, status: int, fields: Mapping[bytes, bytes], connection: UpstreamConnection) -> None:
        self.status = status
        self._fields = fields
        self._headers: Mapping[str, str] | None = None
        self._connection: UpstreamConnection | None = connection
        self._identify = connection.identify

    @property
    def headers(self) -> Mapping[str, str]:
        """Lower-case names; values of a repeated name are joined by commas. Few answers' are read."""
        if self._headers is None:
            self._headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in self._fields.items()
            }
        return self._headers

    @property
    def is_stream(self) -> bool:
        """Its content type says so."""
        return self._fields.get(b"content-type", b"").lower().startswith(b"text/event-stream")

    def __aiter__(self) -> Response:
        return self

    async def __anext__(self) -> bytes:
        """What has come since. Raises ``httpx.ReadError``, ``httpx.RemoteProtocolError``."""
        connection = self._connection
        if connection is None:
            raise StopAsyncIteration
        while (part := connection.take()) is None:
            await connection.wait()
        if not part:
            self._connection = None
            connection.release()
            raise StopAsyncIteration
        return part

    def all_at_once(self, most: int) -> bytes | None:
        """The body, where all of it is here, in at most so many bytes; None where it is to be read part by part."""
        connection = self._connection
        if connection is None or (body := connection.take_all(most)) is None:
            return None
        self._connection = None
        return body

    def identify(self, id: str) -> None:
        """Tell the id that the body gives the answer. Raises ``httpx.RemoteProtocolError`` if it is another's."""
        self._identify("body", id)

    def divert(self, take: Callable[[bytes], bytes] | None) -> None:
        """Offer ``take`` what comes while it is waited for: who waits gets what it leaves."""
        if self._connection is not None:
            self._connection.take_at_once = take

    async def aclose(self) -> None:
        """Let go. Before the answer's end this drops the connection, which makes the server stop."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.release()


class UpstreamConnection(asyncio.Protocol):
    """At most one request at a time."""

    def __init__(self, home: ConnectionOwner) -> None:
        self._home = home
        self.loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._error: httpx.TransportError | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._busy = False
        self._lost = False
        self._used = False
        self._sent_id: str | None = None
        self._question = self._question_before = (0, 0)
        self._asked = ""
        """The request line."""
        self._ids: dict[str, str] = {}
        """The last that came over this connection, by where they stand."""
        self.idle_since = 0.0
        self._status = 0
        self._fields: list[tuple[bytes, bytes]] = []
        """The head's, as they came, with lower-case names."""
        self._head: Mapping[bytes, bytes] = {}
        """The same once all of them have come; values of a repeated name are joined by commas."""
        self._idle = 0
        """Bytes read since the answer was last got on with."""
        self._early: bool | None = None
        """It began to come before the request had arrived; None before it has begun."""
        self._head_done = False
        self._done = False
        self._keep = False
        self._parts: list[bytes] = []
        self._size = 0
        self._paused = False
        self._uploading = False
        """Some of the request is not written yet, or never will be."""
        self._may_write: asyncio.Future[None] | None = None
        """While the server takes no more; done once it does."""
        self.take_at_once: Callable[[bytes], bytes] | None = None
        """See ``Response.divert``."""

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        sock = transport.get_extra_info("socket")
        keep_asking(sock)
        self._fd: int = sock.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def data_received(self, data: bytes) -> None:
        if not self._busy or self._done:
            self._unasked(data)
            return
        self._idle += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:
            self._fail(httpx.RemoteProtocolError(f"not HTTP/1.1: {error}"))
            return
        if self._idle > MAX_HEAD:
            what = "chunk extensions or trailers" if self._head_done else "a head"
            self._fail(httpx.RemoteProtocolError(f"{what} of over {MAX_HEAD} bytes"))
            return
        take, waiter = self.take_at_once, self._waiter
        if take is not None and waiter is not None and not waiter.done() and self._parts and not self._done:
            parts, self._parts = self._parts, []
            if not (left := take(parts[0] if len(parts) == 1 else b"".join(parts))):
                self._size = 0
                return
            self._parts.append(left)
            self._size = len(left)
        if self._size > HIGH_WATER and not self._paused and not self._done:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._may_write is None:
            self._may_write = self.loop.create_future()

    def resume_writing(self) -> None:
        waiting, self._may_write = self._may_write, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if exc is None and self._head_done and self._until_close:
            self._done, self._keep = True, False
        if not self._done and self._error is None:
            self._error = httpx.ReadError(str(exc or "the server closed the connection"))
        self._wake()
        if not self._busy:
            self._home.gone(self)

    # the parser's side

    def on_message_begin(self) -> None:
        if self._head_done:  # a second answer to one request
            self._home.distrust()
            raise ValueError("more than one answer")
        if self._early is None:
            self._early = self._is_sending()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:  # trailers are passed over (RFC 9110, section 6.5.1)
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._status = self._parser.get_status_code()
        if status < 200:  # interim; the final response follows
            if status == 101:
                raise ValueError("a change of protocol that nobody asked for")
            self._fields.clear()
            return
        self._head_done = True
        self._idle = 0

    def on_body(self, data: bytes) -> None:
        if data:
            self._idle = 0
            self._parts.append(data)
            self._size += len(data)

    def on_message_complete(self) -> None:
        if self._head_done:
            self._done = True
            # Who refuses a large request may not have read it, and may never do: the next would be its end.
            unread = self._early or self._uploading or (self._status >= 400 and self._question[0] > AT_ONCE)
            self._keep = not unread and self._parser.should_keep_alive()

    @property
    def _until_close(self) -> bool:
        """The answer ends with its connection."""
        fields = _joined(self._fields)
        return (
            b"content-length" not in fields
            and b"chunked" not in fields.get(b"transfer-encoding", b"").lower()
            and self._status not in (204, 304)
        )

    # the caller's side

    @property
    def usable(self) -> bool:
        return not self._lost and not self._transport.is_closing()

    @property
    def is_ready(self) -> bool:
        """For another request: nothing waits to be read, the connection's end included. What came since the loop
        looked last counts."""
        return not self._lost and not self._transport.is_closing() and not self._poll.poll(0)

    async def ask(
        self,
        line: str,
        data: bytes,
        id: str | None = None,
        upload: tuple[int, AsyncIterator[bytes]] | None = None,
    ) -> Response:
        """Send a request, whose first line is ``line`` and own id is ``id``, and wait for the head of its answer.

        An ``upload``, of so many bytes, follows ``data`` in parts.

        Raises ``httpx.TransportError``.
        """
        self._busy = True
        self._head_done = self._done = False
        self._early = None
        self._idle = 0
        self._fields = []
        sent_before, self._sent_id = self._sent_id, id
        size = len(data) if upload is None else len(data) + upload[0]
        self._question_before, self._question = self._question, (size, hash(data[-_LAST_BYTES:]))
        self._asked = line
        try:
            self._transport.write(data)
            if upload is not None:
                await self._write_parts(upload[1])
            while not self._head_done:
                if self._error is not None:
                    raise self._error
                self._waiter = self.loop.create_future()
                await self._waiter
            head = self._head = _joined(self._fields)  # without those of interim answers
            given = head.get(b"x-request-id")
            if self._used and (self._early or given is not None):
                self._doubt(given, sent_before)
            self._used = True
            if given is not None:
                self.identify("x-request-id", given.decode("latin-1"))
            if b"request-id" in head:
                self.identify("request-id", head[b"request-id"].decode("latin-1"))
        except BaseException:
            self.release()
            raise
        return Response(self._status, head, self)

    async def _write_parts(self, parts: AsyncIterator[bytes]) -> None:
        """As fast as the server takes them; no more of them to one that has refused, or is gone."""
        self._uploading = True
        async for part in parts:
            if self._refuses():
                return
            self._transport.write(part)
            while self._may_write is not None and not self._refuses():
                await self._may_write
        self._uploading = False

    def _refuses(self) -> bool:
        return self._lost or self._error is not None or (self._head_done and self._status >= 400)

    def identify(self, place: str, id: str) -> None:
        """Raises ``httpx.RemoteProtocolError`` if the answer bears the id of the one before, to another question, where
        ids tell answers apart."""
        kind = IdKind(place, self._asked, self._head.get(b"content-type", b""))
        ids, before, self._ids[place] = self._home.ids, self._ids.get(place), id
        if kind not in ids.own:
            ids.add(kind, id, self._question)
        elif before == id and self._question != self._question_before:
            ids.repeated(kind)
            self._refuse("the answer before came once more")

    def take_all(self, most: int) -> bytes | None:
        """See ``Response.all_at_once``; what is taken so needs no ``release``."""
        if not self._done or self._size > most:
            return None
        body = self.take()
        self.release()
        return body

    def take(self) -> bytes | None:
        """What has come of the body; empty at its end, None where ``wait`` is to be awaited first."""
        if not self._parts:
            if self._done:
                return b""
            if self._error is not None:
                raise self._error
            return None
        parts, self._parts, self._size = self._parts, [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Back to the pool, if the answer was read to its end and the server keeps the connection."""
        self._busy = False
        self.take_at_once = None
        if self._done and self._keep and not (self._parts or self._lost or self._transport.is_closing()):
            self._home.back(self)
        else:
            self.drop()
            self._home.gone(self)

    def drop(self) -> None:
        self._keep = False
        if not self._lost:
            self._transport.abort()

    def _doubt(self, given: bytes | None, sent_before: str | None) -> None:
        """An answer over a connection used before, ``given`` an id, may be a surplus one to the request before."""
        if self._early and (self._status < 400 or self._question[0] <= AT_ONCE):
            self._refuse("an answer that was sent before its question had arrived")
        if given is not None and given.decode("latin-1") == sent_before != self._sent_id:
            self._refuse("an answer that names the request before")

    def _refuse(self, why: str) -> None:
        self._home.distrust()
        self.drop()
        raise httpx.RemoteProtocolError(why)

    def _unasked(self, data: bytes) -> None:
        """What it belongs to is anybody's guess."""
        self._keep = False
        self._transport.abort()
        # "You were silent for too long" is addressed to no request in particular (RFC 9110, section 15.5.9).
        if data.strip() and not data.startswith((b"HTTP/1.1 408", b"HTTP/1.0 408")):
            self._home.distrust()

    def _is_sending(self) -> bool:
        """Some of the request is not known to have arrived: whoever answered that did, acknowledged what it read."""
        if self._uploading or self._transport.get_write_buffer_size():
            return True
        if not _TELLS or self._lost:
            return False
        # SIOCOUTQ, of the same number: bytes that the other system has not acknowledged (tcp(7)).
        return fcntl.ioctl(self._fd, termios.TIOCOUTQ, _NONE) != _NONE

    def wait(self) -> asyncio.Future[None]:
        """Done once something has come, or the connection is lost."""
        self._waiter = self.loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._may_write is not None and not self._may_write.done() and self._refuses():
            self._may_write.set_result(None)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: httpx.TransportError) -> None:
        if not self._done:
            self._error = error
        self._transport.abort()
        self._wake()


def _joined(pairs: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        fields.clear()
        for name, value in pairs:
            fields[name] = fields[name] + b", " + value if name in fields else value
    return fields
