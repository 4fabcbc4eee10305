"""uvicorn's HTTP protocol, which also answers requests that offer another one.

A server may ignore an offer such as ``Upgrade: h2c`` (RFC 9110, section 7.8), with which the JDK's HTTP client begins.
uvicorn would answer as if the request had no body: its parser stops behind the head.
"""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Protocol(HttpToolsProtocol):
    """Reads the head of such a request once more, without the offer. Nothing here speaks WebSocket either."""

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            rest = self._feed(data)
            while rest is not None:
                rest = self._feed(rest)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def _feed(self, data: bytes) -> bytes | None:
        """What is to be fed next, where an offer was met. Raises ``httptools.HttpParserError``."""
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
        """The head that was read, without the offer."""
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
