"""Where a request goes, taken apart once, and a body that is too large to be held."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx

from gateway.backends.transport import proxy_for


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
        parts = urlsplit(self.url)
        tls = parts.scheme == "https"
        return Origin((parts.hostname or "").encode("idna").decode(), parts.port or (443 if tls else 80), tls)

    @cached_property
    def line(self) -> str:
        """The request line."""
        path = httpx.URL(self.url).raw_path.decode("ascii") if urlsplit(self.url).path else "/"
        return f"{self.method} {path} HTTP/1.1"

    @cached_property
    def head(self) -> str:
        """The lines that all requests to it begin with."""
        return f"{self.line}\r\nhost: {self.origin.host_header}\r\n"

    @cached_property
    def proxied(self) -> bool:
        return proxy_for(self.url) is not None

    @cached_property
    def direct(self) -> bool:
        """Whether connections go to its own machine, and speak HTTP."""
        return self.url.startswith(("http://", "https://")) and not self.proxied
