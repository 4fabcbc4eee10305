"""HTTP to upstream servers: httpx's request and response types over aiohttp's connections.

Takes an ``httpx.Request`` and gives an ``httpx.Response``, so any httpx transport can stand in for it
(``httpx.MockTransport``, ``httpx.ASGITransport`` …). What is asked of others than models' servers goes this way; the
hot path has a client of its own (``http1.py``).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import httpx
import yarl

from gateway.backends.proxy import proxy_for
from gateway.backends.upstream_connection import keep_asking


@dataclass(frozen=True, slots=True)
class _Route:
    """Where a URL's requests really go: worked out once, as a look at the environment costs more than a request."""

    url: yarl.URL
    proxy: str | None


class AiohttpTransport(httpx.AsyncBaseTransport):
    """A connection for each request.

    aiohttp keeps what a server sends after its answer, and gives it to the next request over that connection as the
    answer to it: none may be used twice.

    Proxies are taken from ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``, certificate authorities
    from the system or from ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``. Time limits come from the request's ``timeout``
    extension as httpx writes it: ``connect`` and ``read``, in seconds. Bodies are handed over as they arrive, so
    ask for ``accept-encoding: identity``.

    Raises httpx's own errors: ``ConnectError``, ``ConnectTimeout``, ``ProxyError``, ``ReadTimeout``, ``ReadError``,
    ``RemoteProtocolError``, ``UnsupportedProtocol``.
    """

    def __init__(self, *, max_connections: int = 0, verify: ssl.SSLContext | None = None) -> None:
        """``verify`` takes the place of the authorities above."""
        self._max_connections = max_connections
        self._verify = verify
        self._session: aiohttp.ClientSession | None = None
        self._routes: dict[httpx.URL, _Route] = {}

    def _open(self) -> aiohttp.ClientSession:
        # Here and not in __init__: a session belongs to the running event loop.
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._max_connections,
                    force_close=True,
                    socket_factory=_new_socket,
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(),
                skip_auto_headers=("user-agent", "accept-encoding", "accept", "content-type"),
                read_bufsize=2**18,
            )
        return self._session

    def _authorities(self) -> ssl.SSLContext:
        # Not before it is needed: reading them takes some 50 ms.
        if self._verify is None:
            self._verify = ssl.create_default_context()
        return self._verify

    def _route(self, url: httpx.URL) -> _Route:
        route = self._routes.get(url)
        if route is None:
            route = _Route(yarl.URL(str(url), encoded=True), proxy_for(str(url)))
            if len(self._routes) < 256:
                self._routes[url] = route
        return route

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        limits = request.extensions.get("timeout", {})
        route = self._route(request.url)
        try:
            response = await self._open().request(
                request.method,
                route.url,
                data=request.content if isinstance(request.stream, httpx.ByteStream) else request.stream,
                headers=request.headers.multi_items(),
                proxy=route.proxy,
                ssl=self._authorities() if route.url.scheme == "https" else True,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    sock_connect=limits.get("connect"), sock_read=limits.get("read")
                ),
            )
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise _translate(error, request) from error
        return httpx.Response(
            response.status,
            headers=response.raw_headers,
            stream=_Body(response, request),
            request=request,
        )

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class _Body(httpx.AsyncByteStream):
    """The answer's bytes as they arrive; closing early drops the connection, which makes the server stop."""

    def __init__(self, response: aiohttp.ClientResponse, request: httpx.Request) -> None:
        self._response = response
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._response.content.iter_any():
                yield part
        except (TimeoutError, aiohttp.ClientError) as error:
            raise _translate(error, self._request) from error

    async def aclose(self) -> None:
        # After the end of the body the connection is back in the pool already, and this does nothing.
        self._response.close()


def _new_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    fresh = socket.socket(family, kind, protocol)
    fresh.setblocking(False)
    keep_asking(fresh)
    return fresh


def _translate(error: Exception, request: httpx.Request) -> httpx.TransportError:
    """Foreign errors stop at the boundary: aiohttp's become httpx's."""
    text = str(error) or type(error).__name__
    match error:
        case aiohttp.ConnectionTimeoutError():
            return httpx.ConnectTimeout(text, request=request)
        case asyncio.TimeoutError():
            return httpx.ReadTimeout(text, request=request)
        case aiohttp.ClientHttpProxyError() | aiohttp.ClientProxyConnectionError():
            return httpx.ProxyError(f"the proxy said no: {text}", request=request)
        case aiohttp.ClientConnectorError():
            return httpx.ConnectError(text, request=request)
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | aiohttp.ClientOSError():
            return httpx.ReadError(text, request=request)
        case aiohttp.NonHttpUrlClientError() | aiohttp.InvalidURL() | ValueError():
            return httpx.UnsupportedProtocol(f"not a URL to forward to: {text}", request=request)
        case _:
            return httpx.RemoteProtocolError(text, request=request)
