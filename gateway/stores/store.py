"""What a store can do. Implementations are beside this file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Store(Protocol):
    """Small values under string keys, each with a time to live in seconds."""

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        """Raises ``StoreDown``."""
        ...

    async def put_many(self, values: Mapping[str, bytes], ttl: float) -> None:
        """Raises ``StoreDown``; some of the values may then have been taken."""
        ...

    async def get(self, key: str) -> bytes | None:
        """Raises ``StoreDown``."""
        ...

    async def aclose(self) -> None: ...


class StoreDown(Exception):
    """The store did not answer. What depends on it must say what happens then."""
