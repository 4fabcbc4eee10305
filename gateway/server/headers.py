"""A request's headers by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

RequestHeaders = Mapping[bytes, bytes]

_LISTS = frozenset(
    {b"anthropic-beta", b"anthropic-version", b"cache-control", b"content-encoding", b"tracestate"}
)
"""Of these the lists of several are one list (RFC 9110, 5.3)."""


def by_name(headers: Sequence[tuple[bytes, bytes]]) -> RequestHeaders:
    """``headers`` as ASGI has them. Of several of one name the first counts, unless they are lists."""
    named = dict(reversed(headers))
    if len(named) != len(headers):
        for name in _LISTS & named.keys():
            named[name] = b",".join(value for other, value in headers if other == name)
    return named
