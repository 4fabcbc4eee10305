"""A small HTTP/1.1 client for the hot path: pooled connections, one write a request, bytes handed over as they come.

aiohttp's client takes three times the processor time of this one (``benchmarks/transports.py``), which was a third of
all that a request cost the gateway. What is not needed to forward a request is not here: no redirects, cookies,
compression. Connections through a proxy are kept like others.

Failures are raised as httpx's errors, as everywhere in ``gateway.backends``.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import httpx

from gateway.backends.answer_ids import AnswerIds
from gateway.backends.endpoint import Endpoint, Origin, Upload
from gateway.backends.proxy import Proxy
from gateway.backends.upstream_connection import Response, UpstreamConnection

log = logging.getLogger(__name__)

KEEPALIVE = 4.0
"""Seconds an idle connection is kept: less than the 5 after which uvicorn and Node close theirs. The server closing
first would meet a request on its way, which must then fail, as a POST is not to be sent twice.
"""
REST = 0.01
"""Seconds for which a connection is left alone after an answer: a surplus one, which HTTP/1.1 does not tell from the
answer to the next request, shows itself in them."""
WARY = 600.0
"""Seconds in which no connection is used twice to a server that answered what nobody asked."""


class _Pool:
    """The idle connections to one origin."""

    def __init__(self, origin: Origin, client: Http1Client) -> None:
        self.host_header = origin.host_header
        self._client = client
        self._now = asyncio.get_running_loop().time
        self._fresh: deque[UpstreamConnection] = deque()
        self._rested: deque[UpstreamConnection] = deque()
        """Those that rest longest are at the left, here as there, and all of these rest longer than any of those."""
        self._wary_until = 0.0
        self.ids = AnswerIds()

    def take(self) -> UpstreamConnection | None:
        fresh, rested = self._fresh, self._rested
        long_enough = self._now() - self._client.rest
        while fresh and fresh[0].idle_since <= long_enough:
            rested.append(fresh.popleft())
        while rested:
            connection = rested.pop()
            if connection.is_ready:
                return connection
        return None

    def back(self, connection: UpstreamConnection) -> None:
        connection.idle_since = now = self._now()
        if now < self._wary_until:
            connection.drop()
            self.gone(connection)
            return
        self._fresh.append(connection)
        self._client.sweep_in_time()

    def gone(self, connection: UpstreamConnection) -> None:
        self._client.gone(connection)

    def distrust(self) -> None:
        if self._now() >= self._wary_until:
            log.warning(
                "the server at %s answers what nobody asked; for %g minutes no connection to it serves two requests",
                self.host_header,
                WARY / 60,
            )
        self._wary_until = self._now() + WARY
        self.close_idle()

    def close_idle(self, since: float = float("inf")) -> float | None:
        """Close what has rested since then or before; returns since when the next one has."""
        for idle in (self._rested, self._fresh):
            while idle and (idle[0].idle_since <= since or not idle[0].usable):
                gone = idle.popleft()
                gone.drop()
                self.gone(gone)
            if idle:
                return idle[0].idle_since
        return None


class Http1Client:
    """Connections to any number of servers. ``authorities`` gives the TLS context when one is first needed."""

    def __init__(
        self, *, authorities: Callable[[], ssl.SSLContext], keepalive: float = KEEPALIVE, rest: float = REST
    ) -> None:
        self.rest = rest
        self._authorities = authorities
        self._keepalive = keepalive
        self._pools: dict[Origin, _Pool] = {}
        self._open: set[UpstreamConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    def send(
        self,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        body: bytes | Upload = b"",
        *,
        connect: float | None = None,
        on_send: Callable[[], None] | None = None,
    ) -> Awaitable[Response]:
        """The answer, its body still to be read; to be awaited at once. ``connect`` limits (seconds) the time a new
        connection takes.

        ``on_send`` is called when there is a connection and the request is about to be written. An upload is written
        as fast as the server takes it.

        Raises ``httpx.ConnectError``, ``ConnectTimeout``, ``ProxyError``, ``ReadError``, ``RemoteProtocolError``;
        ``ValueError`` for a header that cannot be sent, and for a URL or proxy that nothing can be sent to.
        """
        lines = "\r\n".join([*map(": ".join, headers.items()), ""])
        count = len(headers)
        if lines.count("\n") != count or lines.count("\r") != count or "\0" in lines:
            raise ValueError("a header holds a line break")
        pool = self._pools.get(endpoint.origin)
        if pool is None:
            pool = self._pools[endpoint.origin] = _Pool(endpoint.origin, self)
        upload = None
        if isinstance(body, Upload):
            size = f"content-length: {body.size}\r\n\r\n"
            upload, body = (body.size, body.parts()), b""
        elif body or endpoint.method == "POST":
            size = f"content-length: {len(body)}\r\n\r\n"
        else:
            size = "\r\n"
        data = f"{endpoint.head}{lines}{size}".encode("latin-1") + body
        own_id = headers.get("x-request-id")
        connection = pool.take()
        if connection is None:
            return self._ask_new(endpoint, pool, connect, on_send, data, own_id, upload)
        if on_send is not None:
            on_send()
        return connection.ask(endpoint.line, data, own_id, upload)

    async def _ask_new(
        self,
        endpoint: Endpoint,
        pool: _Pool,
        limit: float | None,
        on_send: Callable[[], None] | None,
        data: bytes,
        own_id: str | None,
        upload: tuple[int, AsyncIterator[bytes]] | None,
    ) -> Response:
        connection = await self._connect(endpoint.origin, pool, limit)
        if on_send is not None:
            on_send()
        return await connection.ask(endpoint.line, data, own_id, upload)

    async def aclose(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in [*self._open]:
            connection.drop()
        self._open.clear()
        self._pools.clear()
        await asyncio.sleep(0)  # the transports close in the loop's next round

    def gone(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)

    async def _connect(self, origin: Origin, pool: _Pool, limit: float | None) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit):
                if origin.proxy is not None and origin.tls:
                    connection = await self._connect_by_tunnel(origin, origin.proxy, pool)
                else:
                    end = origin.proxy or origin
                    _, connection = await loop.create_connection(
                        lambda: UpstreamConnection(pool),
                        end.host,
                        end.port,
                        ssl=self._authorities() if end.tls else None,
                        server_hostname=end.host if end.tls else None,
                    )
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time") from error
        except (OSError, ssl.SSLError, UnicodeError) as error:
            kind = (
                httpx.ConnectError
                if origin.proxy is None or isinstance(error, ssl.SSLError)
                else httpx.ProxyError
            )
            raise kind(str(error) or type(error).__name__) from error
        self._open.add(connection)
        return connection

    async def _connect_by_tunnel(self, origin: Origin, proxy: Proxy, pool: _Pool) -> UpstreamConnection:
        """TLS with the server itself: the proxy sees where it leads, and how much goes through."""
        tunnel = await proxy.tunnel(origin.address, self._authorities)
        connection = UpstreamConnection(pool)
        try:
            transport = await asyncio.get_running_loop().start_tls(
                tunnel, connection, self._authorities(), server_hostname=origin.host
            )
        except BaseException:
            tunnel.abort()
            raise
        if transport is None:
            raise OSError("the tunnel was closed")
        connection.connection_made(transport)
        return connection

    def sweep_in_time(self) -> None:
        """Something idles: see to it that it does not for too long."""
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(self._keepalive, self._sweep)

    def _sweep(self) -> None:
        """Close what has rested too long."""
        self._sweeper = None
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._keepalive
        idle_since = [
            since for pool in self._pools.values() if (since := pool.close_idle(oldest)) is not None
        ]
        if idle_since:
            self._sweeper = loop.call_later(max(min(idle_since) - oldest, 0.05), self._sweep)
