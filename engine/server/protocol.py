"""uvicorn's HTTP protocol, which ignores upgrade offers, and disconnects clients that do not read.

A server may ignore an offer such as ``Upgrade: h2c`` (RFC 9110, section 7.8), with which the JDK's HTTP client begins.
uvicorn would answer as if the request had no body: its parser stops behind the head.

uvicorn waits indefinitely for a client that does not read its response. Here such a connection is closed: its request
is aborted, and its KV blocks are freed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger("engine.server")

_SLOWEST = 1024
"""Bytes a second that a client must read while data is waiting: a model writes ten times as many."""


class Protocol(HttpToolsProtocol):
    """Parses the head of a request with an offer again, without the offer. There are no WebSockets either."""

    def __init__(self, *args: Any, write_timeout: float, **options: Any) -> None:
        """``write_timeout``: seconds that a client may read too slowly; 0: for ever."""
        super().__init__(*args, **options)
        self._write_timeout = write_timeout
        self._waiting: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timeout:
            self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwatch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._waiting = self.loop.call_later(self._write_timeout, self._look, left)

    def _unwatch(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _look(self, before: int) -> None:
        taken = before - self.transport.get_write_buffer_size()
        if taken >= _SLOWEST * self._write_timeout:
            self._watch()
            return
        log.warning(
            "a client read %d bytes of its response in %g s: disconnecting it (--write-timeout)",
            taken,
            self._write_timeout,
        )
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            rest = self._feed(data)
            while rest is not None:
                rest = self._feed(rest)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _feed(self, data: bytes) -> bytes | None:
        """What is to be fed next, where an offer was found. Raises ``httptools.HttpParserError``."""
        try:
            self.parser.feed_data(data)
            return None
        except httptools.HttpParserUpgrade as offer:
            rest = data[offer.args[0] :]
        if self.parser.get_method() == b"CONNECT":
            raise httptools.HttpParserError("there is no tunnel here")
        head = self._head()
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return head + rest

    def _head(self) -> bytes:
        """The head that was parsed, without the offer."""
        version = self.parser.get_http_version().encode()
        line = b" ".join((self.parser.get_method(), self.url, b"HTTP/" + version))
        kept = (b": ".join(header) for header in self.headers if header[0] != b"upgrade")
        return b"\r\n".join((line, *kept, b"", b""))

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()
