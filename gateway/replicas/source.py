"""A way to find the replicas of a backend, while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from gateway.policy.members import Found


class Source(Protocol):
    def follow(self) -> AsyncIterator[Sequence[Found]]:
        """All that there are now, in a fixed order, each time that they were looked up, without an end. What fails is
        logged, and tried again: what was found last stays meanwhile."""
        ...


def address(base_url: str, host: str, port: int | None = None) -> str:
    """``base_url`` at another host."""
    parts = urlsplit(base_url)
    port = port or parts.port
    where = f"[{host}]" if ":" in host else host
    return urlunsplit(parts._replace(netloc=where if port is None else f"{where}:{port}")).rstrip("/")
