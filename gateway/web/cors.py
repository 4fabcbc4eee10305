"""CORS: what browsers need to let a page of another origin call the gateway (https://fetch.spec.whatwg.org/#http-cors-protocol)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.types import Message, Scope, Send

from gateway.errors import Forbidden
from gateway.observe.metrics import Metrics
from gateway.policy.schema import Cors as Config
from gateway.web.sending import Headers, send_error
from gateway.wire.openai.errors import error_body

METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_READABLE = frozenset(
    {
        b"cache-control",
        b"content-language",
        b"content-length",
        b"content-type",
        b"expires",
        b"last-modified",
        b"pragma",
    }
)
"""Headers that a page may always read."""
_FIELDS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:[ \t]*,[ \t]*[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")


class Rules:
    """One policy's ``cors``."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._any = "*" in config.allow_origins
        self._origins = re.compile("|".join(map(_pattern, config.allow_origins)), re.IGNORECASE)
        self._headers = b"" if "*" in config.allow_headers else ", ".join(config.allow_headers).encode()

    def allows(self, origin: bytes) -> bool:
        return self._any or self._origins.fullmatch(str(origin, "latin-1")) is not None

    def answered(self, origin: bytes | None, names: Iterable[bytes]) -> Headers:
        """For a response that has the headers ``names``: a page that may read it may read all of them."""
        vary: Headers = [] if self._any else [(b"vary", b"Origin")]
        if origin is None or not self.allows(origin):
            return vary
        exposed = b", ".join(dict.fromkeys(name for name in names if name not in _READABLE))
        return [*self._allow_origin(origin), *vary, (b"access-control-expose-headers", exposed)]

    def preflight(self, origin: bytes, headers: bytes, *, private_network: bool) -> Headers:
        """For a preflight that asks to send ``headers``."""
        allowed = self._headers or (headers if _FIELDS.fullmatch(headers) else b"")
        private = private_network and self._config.allow_private_network
        return [
            *self._allow_origin(origin),
            (b"access-control-allow-methods", METHODS),
            *([(b"access-control-allow-headers", allowed)] if allowed else ()),
            *([(b"access-control-allow-private-network", b"true")] if private else ()),
            (b"access-control-max-age", b"%d" % self._config.max_age),
            (b"vary", b"Origin, Access-Control-Request-Headers, Access-Control-Request-Private-Network"),
        ]

    def _allow_origin(self, origin: bytes) -> Headers:
        found = [(b"access-control-allow-origin", b"*" if self._any else origin)]
        if self._config.allow_credentials:
            found.append((b"access-control-allow-credentials", b"true"))
        return found


def _pattern(origin: str) -> str:
    """``*`` stands for any port, or for any number of names before a domain's."""
    return re.escape(origin).replace(r":\*", r"(:\d+)?").replace(r"\*\.", r"([a-z0-9_-]+\.)+")


class Cors:
    """What goes around all else: refusals and faults need these headers, too, or no page could read them.

    A preflight is answered without a key, as browsers send none with it.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._config = Config()
        self._rules = Rules(self._config)

    async def admit(self, config: Config, scope: Scope, send: Send) -> Send | None:
        """What the response is to be sent by; None for a preflight, which is answered here."""
        if config is not self._config:
            self._config, self._rules = config, Rules(config)
        rules, headers = self._rules, dict(scope["headers"])
        origin = headers.get(b"origin")
        if (
            origin is not None
            and scope["method"] == "OPTIONS"
            and b"access-control-request-method" in headers
        ):
            await self._preflight(rules, origin, headers, send)
            return None

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                message["headers"] = [*headers, *rules.answered(origin, (name for name, _ in headers))]
            await send(message)

        return send_on

    async def _preflight(self, rules: Rules, origin: bytes, headers: dict[bytes, bytes], send: Send) -> None:
        if not rules.allows(origin):
            error = Forbidden(
                f"Pages of the origin '{str(origin, 'latin-1')}' may not call this gateway. Its policy's "
                "cors.allow_origins names those that may.",
                code="origin_not_allowed",
            )
            self._metrics.http.labels("preflight", str(error.status)).inc()
            await send_error(send, error, error_body(error, ""), error.headers)
            return
        self._metrics.http.labels("preflight", "204").inc()
        answer = rules.preflight(
            origin,
            headers.get(b"access-control-request-headers", b""),
            private_network=headers.get(b"access-control-request-private-network") == b"true",
        )
        await send({"type": "http.response.start", "status": 204, "headers": answer})
        await send({"type": "http.response.body", "body": b""})
