"""Which web pages may call the gateway from a browser (https://fetch.spec.whatwg.org/#http-cors-protocol)."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from gateway.policy.schema.values import Duration, Frozen

ANY = "*"
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
_ORIGIN = re.compile(
    rf"(?P<scheme>[a-z][a-z0-9+.-]*)://"
    rf"(?P<host>(?:\*\.)?{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>\d{1,5}|\*))?"
)
_DEFAULT_PORTS = {"http": "80", "https": "443"}
_FIELD = re.compile(r"\*|[A-Za-z0-9!#$%&'+.^_`|~-]+")


def _origin(text: str) -> str:
    """As browsers write it: in lower case, without the scheme's own port."""
    if text in (ANY, "null"):
        return text
    match = _ORIGIN.fullmatch(text.lower())
    if match is None:
        raise ValueError(
            "write an origin as browsers send it, scheme://host or scheme://host:port without a path, such as "
            "https://chat.example.com; 'https://*.example.com' is any host below, 'http://localhost:*' any port, "
            "'*' any origin"
        )
    scheme, host, port = match["scheme"], match["host"], match["port"]
    if host.startswith("*.") and host.count(".") == 1 and host != "*.localhost":
        raise ValueError("is a wildcard over a whole top-level domain; name at least example.com")
    return f"{scheme}://{host}" + ("" if port in (None, _DEFAULT_PORTS.get(scheme)) else f":{port}")


def _field(text: str) -> str:
    if not _FIELD.fullmatch(text):
        raise ValueError(f"'{text[:40]}' is not the name of a header")
    return text.lower()


Origin = Annotated[str, AfterValidator(_origin)]
HeaderName = Annotated[str, AfterValidator(_field)]


class Cors(Frozen):
    """Off while no origin is named."""

    allow_origins: tuple[Origin, ...] = ()
    allow_headers: tuple[HeaderName, ...] = (ANY,)
    """What pages may send; ``*`` is whatever they ask for."""
    allow_credentials: bool = Field(default=False, strict=True)
    """Whether pages may send cookies and HTTP's own authentication; API keys in headers need none of it."""
    allow_private_network: bool = Field(default=False, strict=True)
    """Whether pages from a public network may call a gateway in a private one."""
    max_age: Duration = 600.0
    """Seconds for which a browser remembers what is allowed."""

    @model_validator(mode="after")
    def _named(self) -> Cors:
        if self.allow_credentials and ANY in self.allow_origins:
            raise ValueError("allow_credentials needs origins by name: with '*' any page could use them")
        return self
