"""How backends reach their servers: by the fast client, or by any httpx transport that takes its place."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast

import httpx

from gateway.backends.endpoint import Endpoint, Upload
from gateway.backends.http1 import Http1Client

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError, httpx.UnsupportedProtocol)


class UpstreamResponse(Protocol):
    """An answer whose head has come."""

    status: int

    @property
    def headers(self) -> Mapping[str, str]:
        """Lower-case names."""
        ...

    @property
    def is_stream(self) -> bool:
        """Its content type says that it is a stream of events."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises ``httpx.TransportError``."""
        ...

    def all_at_once(self, most: int) -> bytes | None:
        """The body, where all of it is here, in at most so many bytes; None where it is to be read part by part."""
        ...

    def identify(self, id: str) -> None:
        """Tell the id that the body gives the answer. Raises ``httpx.TransportError`` if it is another's."""
        ...

    def divert(self, take: Callable[[bytes], bytes] | None) -> None:
        """Offer ``take`` what comes while it is waited for: who waits gets what it leaves.

        A connection that cannot leaves all to who waits.
        """
        ...

    async def aclose(self) -> None:
        """Let go; before the body's end this makes the server stop."""
        ...


class Client:
    """One per backend. ``transport`` takes the place of everything else, for tests and special networks."""

    def __init__(
        self, *, transport: httpx.AsyncBaseTransport | None = None, verify: ssl.SSLContext | None = None
    ) -> None:
        self._verify = verify
        self._given = transport
        self._direct = Http1Client(authorities=self._authorities)

    def send(
        self,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        body: bytes | Upload = b"",
        *,
        connect: float | None = None,
        on_send: Callable[[], None] | None = None,
    ) -> Awaitable[UpstreamResponse]:
        """The answer, its body still to be read; to be awaited at once. ``connect`` limits (seconds) the time a new
        connection takes.

        ``on_send`` is called when there is a connection and the request is about to be written; where the connection
        is another's business, as soon as it may have been. Raises ``httpx.TransportError``.
        """
        if self._given is not None:
            return self._send_through(self._given, endpoint, headers, body, connect, on_send)
        try:
            return self._direct.send(endpoint, headers, body, connect=connect, on_send=on_send)
        except ValueError as error:
            raise httpx.UnsupportedProtocol(f"not a request to forward: {error}") from error

    async def _send_through(
        self,
        transport: httpx.AsyncBaseTransport,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        body: bytes | Upload,
        connect: float | None,
        on_send: Callable[[], None] | None,
    ) -> UpstreamResponse:
        fields = dict(headers)
        if isinstance(body, Upload):
            fields["content-length"] = str(body.size)
        request = httpx.Request(
            endpoint.method,
            endpoint.url,
            headers=fields,
            content=(body or None) if isinstance(body, bytes) else body.parts(),
            extensions={"timeout": {"connect": connect}},
        )
        try:
            response = await transport.handle_async_request(request)
        except _UNSENT:
            raise
        except BaseException:
            if on_send is not None:
                on_send()
            raise
        if on_send is not None:
            on_send()
        return _Through(response)

    async def aclose(self) -> None:
        await self._direct.aclose()
        if self._given is not None:
            await self._given.aclose()

    def _authorities(self) -> ssl.SSLContext:
        # Not before it is needed: reading them takes some 50 ms.
        if self._verify is None:
            self._verify = ssl.create_default_context()
        return self._verify


@dataclass(slots=True)
class _Through:
    """httpx's response as ours."""

    _response: httpx.Response
    status: int = field(init=False)
    headers: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.status = self._response.status_code
        self.headers = self._response.headers

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(cast("httpx.AsyncByteStream", self._response.stream))

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").lower().startswith("text/event-stream")

    def all_at_once(self, most: int) -> bytes | None:
        """Not known here."""
        return None

    def identify(self, id: str) -> None:
        """Whose it is, is for the transport to know."""

    def divert(self, take: Callable[[bytes], bytes] | None) -> None:
        """Not here."""

    async def aclose(self) -> None:
        await self._response.aclose()
