"""What a caller's ``Cache-Control`` asks of the caches (RFC 9111, section 5.2.1)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_DIRECTIVE = re.compile(r'\s*([a-z-]+)\s*(?:=\s*"?([^",]*)"?\s*)?', re.ASCII)


class Control(NamedTuple):
    no_cache: bool = False
    """Ask afresh."""
    no_store: bool = False
    """Neither look nor keep."""
    only_if_cached: bool = False
    max_age: float | None = None
    """Seconds."""


_NOTHING = Control()


def control(header: str) -> Control:
    """What ``header`` says; directives that mean nothing here are passed over."""
    return _read(header) if header else _NOTHING


@lru_cache(maxsize=256)
def _read(header: str) -> Control:
    said: dict[str, str] = {}
    for part in header.lower().split(","):
        if match := _DIRECTIVE.fullmatch(part):
            said[match[1]] = (match[2] or "").strip()
    age = said.get("max-age")
    return Control(
        no_cache="no-cache" in said,
        no_store="no-store" in said,
        only_if_cached="only-if-cached" in said,
        # An age that cannot be read is none at all (section 4.2.1).
        max_age=None if age is None else float(age) if re.fullmatch(r"[0-9]{1,12}", age) else 0.0,
    )
