"""The HTTP proxy that the environment names for the way to a server, and the tunnel through it."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

MAX_HEAD = 2**16
"""Bytes in which a proxy must have said whether it opens a tunnel."""


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL: ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY``, ``NO_PROXY``."""
    parts = urlsplit(url)
    proxies = {} if proxy_bypass(parts.netloc) else getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return "http://" + proxy if proxy and "://" not in proxy else proxy


class Proxy(NamedTuple):
    """Where connections go in a server's place."""

    host: str
    port: int
    tls: bool
    authorization: str
    """A line of the head of what is asked of it; empty where it wants no password."""

    @classmethod
    def at(cls, url: str) -> Proxy:
        """Raises ``ValueError`` for one that does not speak HTTP."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the proxy that the environment names is not one for HTTP")
        tls, line = parts.scheme == "https", ""
        if parts.username is not None:
            password = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            line = f"proxy-authorization: Basic {b64encode(password.encode()).decode()}\r\n"
        return cls(parts.hostname, parts.port or (443 if tls else 80), tls, line)

    async def tunnel(self, address: str, authorities: Callable[[], ssl.SSLContext]) -> asyncio.Transport:
        """A connection that leads to ``address`` (host and port). Raises ``OSError``, ``httpx.ProxyError``."""
        loop = asyncio.get_running_loop()
        transport, opening = await loop.create_connection(
            lambda: _Opening(loop.create_future()),
            self.host,
            self.port,
            ssl=authorities() if self.tls else None,
            server_hostname=self.host if self.tls else None,
        )
        try:
            head = f"CONNECT {address} HTTP/1.1\r\nhost: {address}\r\n{self.authorization}\r\n"
            transport.write(head.encode("latin-1"))
            said = await opening.said
            version, _, rest = said.partition(b" ")
            # Whatever follows its head would be taken for the server's word.
            if not version.startswith(b"HTTP/1.") or rest[:1] != b"2" or not said.endswith(b"\r\n\r\n"):
                line = said.partition(b"\r\n")[0][:200].decode("latin-1")
                raise httpx.ProxyError(f"the proxy opened no tunnel: {line or 'it closed the connection'}")
        except BaseException:
            transport.abort()
            raise
        return transport


class _Opening(asyncio.Protocol):
    """What a proxy says when it is asked for a tunnel."""

    def __init__(self, said: asyncio.Future[bytes]) -> None:
        self.said = said
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" in self._head or len(self._head) > MAX_HEAD:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self.said.done():
            self.said.set_result(self._head)
