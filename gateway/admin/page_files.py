"""The page at ``/admin``: static files, the same for everybody. What they show comes from the API."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.admin.endpoint import must_be_enabled
from gateway.errors import MethodNotAllowed
from gateway.web.sending import Headers

FOLDER = Path(__file__).with_name("page")
ASSETS = "/admin/assets/"
_START = "index.html"
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_POLICY = "; ".join(
    (
        *(
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
        ),
        *("base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'"),
        # No script of the page can make markup of a text, whatever the text is.
        *("require-trusted-types-for 'script'", "trusted-types 'none'"),
    )
)
_HEADERS: Headers = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=()"),
    (b"cache-control", b"no-cache"),  # asked for each time, and mostly answered by 304
    (b"vary", b"accept-encoding"),
]


@dataclass(frozen=True)
class PageFile:
    path: Path

    @cached_property
    def plain(self) -> bytes:
        return self.path.read_bytes()

    @cached_property
    def zipped(self) -> bytes:
        return gzip.compress(self.plain, 9, mtime=0)

    @cached_property
    def tag(self) -> bytes:
        return b'W/"' + sha256(self.plain).hexdigest()[:16].encode() + b'"'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        must_be_enabled(scope)
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowed(
                f"'{scope['path']}' does not take {scope['method']}; use GET.", allow="GET"
            )
        asked = dict(scope["headers"])
        headers = [(b"content-type", _KINDS[self.path.suffix].encode()), (b"etag", self.tag), *_HEADERS]
        if self.tag in [one.strip() for one in asked.get(b"if-none-match", b"").split(b",")]:
            await send({"type": "http.response.start", "status": 304, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
            return
        body = self.plain
        if b"gzip" in asked.get(b"accept-encoding", b""):
            body = self.zipped
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def routes() -> list[Route]:
    """``/admin``, and each file that it loads: nothing else of the disk has a path."""
    files = sorted(file for file in FOLDER.rglob("*") if file.suffix in _KINDS)
    assets = [Route(ASSETS + file.relative_to(FOLDER).as_posix(), PageFile(file)) for file in files]
    return [Route("/admin", PageFile(FOLDER / _START)), *assets]


def paths() -> tuple[str, ...]:
    """Those that need no key."""
    return tuple(route.path for route in routes())
