"""HTTP to servers that are no model's: httpx's own transport, with a connection for each request.

Models' servers are asked by a client of the gateway's own (``http1.py``).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, cast

import httpx

from gateway.backends.proxy import Proxy, proxy_for
from gateway.backends.upstream_connection import keep_asking


class OutgoingTransport(httpx.AsyncBaseTransport):
    """A connection for each request, in a pool of its own: what a server sends after its answer must never become the
    answer to another request, and a pool of httpx's keeps a connection for good whose request is cancelled between
    two steps.

    Proxies are taken from ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``, certificate authorities
    from the system or from ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``. Time limits come from the request's ``timeout``
    extension as httpx writes it: ``connect``, ``write`` and ``read``, in seconds. Bodies are handed over as they
    arrive, so ask for ``accept-encoding: identity``.

    Raises httpx's own errors: ``ConnectError``, ``ConnectTimeout``, ``ProxyError``, ``ReadTimeout``, ``ReadError``,
    ``RemoteProtocolError``, ``UnsupportedProtocol`` and their like.
    """

    def __init__(self, *, verify: ssl.SSLContext | None = None) -> None:
        """``verify`` takes the place of the authorities above."""
        self._verify = verify
        self._without_tls: ssl.SSLContext | None = None
        """Trusts nobody."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        way = _Way()
        try:
            answer = await self._send(request, way)
        except httpx.TransportError as error:
            raise way.explained(error, request) from error
        except ValueError as error:
            raise httpx.UnsupportedProtocol(f"not a URL to ask: {error}", request=request) from error
        return httpx.Response(
            answer.status_code,
            headers=answer.headers,
            stream=_Body(answer, way, request),
            request=request,
            extensions=answer.extensions,
        )

    async def _send(self, request: httpx.Request, way: _Way) -> httpx.Response:
        if (request.url.port or 0) >= 2**16:
            raise ValueError("its port is past 65535")
        named = proxy_for(str(request.url))
        proxy = Proxy.at(named) if named is not None else None
        authorities = await self._authorities(
            request.url.scheme == "https" or (proxy is not None and proxy.tls)
        )
        if named is not None and proxy is not None:
            way.proxy = httpx.Proxy(named, ssl_context=authorities if proxy.tls else None)
        transport = httpx.AsyncHTTPTransport(verify=authorities, trust_env=False, proxy=way.proxy)
        sent = httpx.Request(
            request.method,
            request.url,
            headers=[*request.headers.raw, (b"connection", b"close")],
            stream=request.stream,
            extensions={**request.extensions, "trace": way.saw},
        )
        try:
            return await transport.handle_async_request(sent)
        except BaseException:
            await way.close()
            raise

    async def _authorities(self, tls: bool) -> ssl.SSLContext:
        # In threads, and not before they are needed: httpx's network part takes 20 ms, the authorities 50.
        if self._without_tls is None:
            nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            await asyncio.to_thread(httpx.AsyncHTTPTransport, verify=nobody)
            self._without_tls = nobody
        if not tls:
            return self._without_tls
        if self._verify is None:
            self._verify = await asyncio.to_thread(ssl.create_default_context)
        return self._verify

    async def aclose(self) -> None:
        """Nothing is kept between requests."""


class _Way:
    """How far a request has come, as httpcore tells it (https://www.encode.io/httpcore/extensions/#trace)."""

    def __init__(self) -> None:
        self.proxy: httpx.Proxy | None = None
        self._stream: Any = None
        self._unreached = False

    async def saw(self, event: str, info: Mapping[str, Any]) -> None:
        match event:
            case "connection.connect_tcp.complete":
                self._stream = info["return_value"]
                with suppress(OSError):  # it is gone already, as who reads will see
                    keep_asking(self._stream.get_extra_info("socket"))
            case "connection.connect_tcp.failed" | "connection.start_tls.failed":
                self._unreached = True

    def explained(self, error: httpx.TransportError, request: httpx.Request) -> httpx.TransportError:
        text = str(error) or type(error).__name__
        if self.proxy is not None and self._unreached and isinstance(error, httpx.ConnectError):
            return httpx.ProxyError(f"the proxy cannot be reached: {text}", request=request)
        if isinstance(error, httpx.ProxyError):
            return httpx.ProxyError(f"the proxy said no: {text}", request=request)
        return type(error)(text, request=request)

    async def close(self) -> None:
        """Also where the request was cancelled at a step after which httpcore closes nothing."""
        if self._stream is not None:
            await asyncio.shield(self._stream.aclose())


class _Body(httpx.AsyncByteStream):
    """The answer's bytes as they arrive; closing early drops the connection, which makes the server stop."""

    def __init__(self, answer: httpx.Response, way: _Way, request: httpx.Request) -> None:
        self._stream = cast("httpx.AsyncByteStream", answer.stream)
        self._way = way
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except httpx.TransportError as error:
            raise self._way.explained(error, self._request) from error

    async def aclose(self) -> None:
        # Whoever is cancelled here would leave the connection open.
        await asyncio.shield(self._stream.aclose())
