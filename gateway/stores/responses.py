"""Responses of the Responses API that are kept, with what was asked: a record for each, found by its tenant alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.stores.store import Store


@dataclass(frozen=True, slots=True)
class StoredResponse:
    response: dict[str, Any]
    """As its caller got it."""
    items: Sequence[dict[str, Any]]
    """Of its own input, with their ids."""
    before: Sequence[str] = ()
    """The ids of the responses that it continues, oldest first."""
    size: int = 0
    """Bytes of the records of those, and of its own where it was read."""


class ResponseStore:
    """Responses by tenant and id, each for ``ttl`` seconds from when it was last stored or continued."""

    def __init__(self, store: Store, *, ttl: float, max_entry: int, flags: Store | None = None) -> None:
        """``max_entry`` is in bytes, of a record as JSON.

        ``flags`` is where it is left that a response is to be cancelled, if not in ``store``: whoever makes it looks
        there each second.
        """
        self.store = store
        self._flags = store if flags is None else flags
        self._ttl = ttl
        self._max_entry = max_entry

    async def put(self, tenant: str, record: StoredResponse) -> bool:
        """Whether it is kept: not if it is too long. Raises ``StoreDown``."""
        value = orjson.dumps(record)
        if len(value) > self._max_entry:
            return False
        await self.store.put({_key(tenant, record.response["id"]): value}, self._ttl)
        return True

    async def find(self, tenant: str, response: str) -> StoredResponse | None:
        """Raises ``StoreDown``."""
        return _read(await self.store.get(_key(tenant, response)))

    async def find_all(self, tenant: str, responses: Sequence[str]) -> list[StoredResponse | None]:
        """Raises ``StoreDown``."""
        found = await self.store.get_all([_key(tenant, response) for response in responses])
        return [_read(value) for value in found]

    async def touch(self, tenant: str, responses: Sequence[str]) -> None:
        """A conversation lives as long as it goes on. Raises ``StoreDown``."""
        await self.store.touch([_key(tenant, response) for response in responses], self._ttl)

    async def delete(self, tenant: str, response: str) -> None:
        """Raises ``StoreDown``."""
        await self.store.delete(_key(tenant, response))

    async def ask_to_cancel(self, tenant: str, response: str) -> None:
        """Whichever process works on it is to stop. Raises ``StoreDown``."""
        await self._flags.put({_key(tenant, response, "cancel"): b"1"}, self._ttl)

    async def is_to_cancel(self, tenant: str, response: str) -> bool:
        """Raises ``StoreDown``."""
        return await self._flags.get(_key(tenant, response, "cancel")) is not None


def _key(tenant: str, response: str, kind: str = "response") -> str:
    # A tenant's name can hold a colon but no space: no tenant can spell out another's key.
    return f"{kind}:{tenant} {response}"


def _read(value: bytes | None) -> StoredResponse | None:
    if value is None:
        return None
    record = StoredResponse(**orjson.loads(value))
    return replace(record, size=record.size + len(value))
