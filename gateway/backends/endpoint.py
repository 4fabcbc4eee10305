"""Where a request goes, taken apart once, and a body that is too large to be held."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from gateway.backends.proxy import Proxy, proxy_for


@dataclass(frozen=True, slots=True)
class Upload:
    """A body that is sent in parts, of ``size`` bytes together."""

    size: int
    parts: Callable[[], AsyncIterator[bytes]]
    """Opens it, from its beginning, as often as it is sent."""


class Origin(NamedTuple):
    """Where connections go."""

    host: str
    port: int
    tls: bool
    proxy: Proxy | None = None
    """Through which."""

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


@dataclass(frozen=True)
class Endpoint:
    """A method and a URL."""

    method: str
    url: str

    @cached_property
    def origin(self) -> Origin:
        """Raises ``ValueError`` where connections cannot go."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https"):
            raise ValueError(f"not a URL to forward to: {self.url}")
        tls, proxy = parts.scheme == "https", proxy_for(self.url)
        host = (parts.hostname or "").encode("idna").decode()
        return Origin(
            host, parts.port or (443 if tls else 80), tls, None if proxy is None else Proxy.at(proxy)
        )

    @cached_property
    def line(self) -> str:
        """The request line; a proxy that sees it is told the server, too (RFC 9112, section 3.2.2)."""
        origin, path = self.origin, "/"
        if urlsplit(self.url).path:
            path = httpx.URL(self.url).raw_path.decode("ascii")
        if origin.proxy is not None and not origin.tls:
            path = f"http://{origin.host_header}{path}"
        return f"{self.method} {path} HTTP/1.1"

    @cached_property
    def head(self) -> str:
        """The lines that all requests to it begin with."""
        origin = self.origin
        known = origin.proxy.authorization if origin.proxy is not None and not origin.tls else ""
        return f"{self.line}\r\nhost: {origin.host_header}\r\n{known}"
