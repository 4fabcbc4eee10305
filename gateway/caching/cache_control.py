"""What a caller's ``Cache-CacheControl`` asks of the caches (RFC 9111, section 5.2.1)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_DIRECTIVE = re.compile(r'\s*([a-z-]+)\s*(?:=\s*"?([^",]*)"?\s*)?', re.ASCII)


class CacheControl(NamedTuple):
    no_cache: bool = False
    """Do not use a cached answer."""
    no_store: bool = False
    """Neither look up nor store."""
    only_if_cached: bool = False
    max_age: float | None = None
    """Seconds."""


_NOTHING = CacheControl()


def read_cache_control(header: str) -> CacheControl:
    """Parse ``header``; directives that mean nothing here are ignored."""
    return _read(header) if header else _NOTHING


@lru_cache(maxsize=256)
def _read(header: str) -> CacheControl:
    directives: dict[str, str] = {}
    for part in header.lower().split(","):
        if match := _DIRECTIVE.fullmatch(part):
            directives[match[1]] = (match[2] or "").strip()
    age = directives.get("max-age")
    return CacheControl(
        no_cache="no-cache" in directives,
        no_store="no-store" in directives,
        only_if_cached="only-if-cached" in directives,
        # An invalid age counts as 0 (section 4.2.1).
        max_age=None if age is None else float(age) if re.fullmatch(r"[0-9]{1,12}", age) else 0.0,
    )
