"""E-mail addresses (RFC 5321, and RFC 6531 for letters beyond ASCII), as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.findings import Finding
from gateway.pii.patterns.pattern import Pattern

LOCAL, DOMAIN = 64, 189
"""Characters at most, left and right of the sign; 254 in all."""
_LOCAL = re.compile(r"(?<!\w)[\w+](?:[\w.+%&~'=-]*[\w+%&~-])?\Z")
_DOMAIN = re.compile(
    r"(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,8}(?P<top>xn--[a-z0-9-]{2,59}|[^\W\d_]{2,24})(?![^\W_]|_\w|-\w)",
    re.IGNORECASE,
)
_FILES = frozenset({"png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js"})
"""Pictures for fine screens are called ``icon@2x.png``."""


def find(text: str) -> Iterator[Finding]:
    at = text.find("@")
    done = 0
    while at >= 0:
        local = _LOCAL.search(text, max(done, at - LOCAL), at)
        domain = _DOMAIN.match(text, at + 1, at + 1 + DOMAIN) if local else None
        if local and domain and domain["top"].lower() not in _FILES:
            start = _after_a_name(text, local.start(), at)
            # git@host:path is where a repository lies.
            if not (text[start:at] == "git" and text.startswith(":", domain.end())):
                done = domain.end()
                yield Finding("EMAIL_ADDRESS", start, done, 0.95)
        done = max(done, at + 1)
        at = text.find("@", at + 1)


def _after_a_name(text: str, start: int, at: int) -> int:
    """Past the equals sign of ``to=ann@example.org``."""
    equals = text.rfind("=", start, at - 1)
    return start if equals < 0 else equals + 1


EMAIL_ADDRESS = Pattern("EMAIL_ADDRESS", LOCAL + 1 + DOMAIN, find, needs="@")
