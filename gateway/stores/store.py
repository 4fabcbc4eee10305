"""What a store can do. Implementations are beside this file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Store(Protocol):
    """Small values under string keys, each with a time to live in seconds."""

    async def put(self, values: Mapping[str, bytes], ttl: float) -> None:
        """Raises ``StoreDown``; some of the values may have been stored then."""
        ...

    async def get(self, key: str) -> bytes | None:
        """Raises ``StoreDown``."""
        ...

    async def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """In one round trip. Raises ``StoreDown``."""
        ...

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        """Those that are there live for ``ttl`` seconds from now. Raises ``StoreDown``."""
        ...

    async def delete(self, key: str) -> None:
        """Raises ``StoreDown``."""
        ...

    async def aclose(self) -> None: ...


class StoreDown(Exception):
    """The store did not answer. Its callers decide what happens then."""
