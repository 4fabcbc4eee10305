"""Where the states of roll-outs are, for all who share them: documents that are changed by compare-and-set.

Redis, where the policy names one; else the database, a file that all workers of a machine have, or a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from gateway.databases.database import Change, DatabaseError
from gateway.databases.migrations import Migrations
from gateway.databases.own_tables import OwnTables
from gateway.stores.outage_log import OutageLog
from gateway.stores.redis_link import RedisLink
from gateway.stores.redis_parts import part_of, prefixes
from gateway.stores.store import StoreDown

ROLLOUTS = Migrations(
    "rollouts", (("CREATE TABLE rollouts (name TEXT PRIMARY KEY, document TEXT NOT NULL)",),)
)
TIMEOUT = 1.0
"""Seconds after which Redis counts as down."""
_SWAP = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


class CommonStates(Protocol):
    """Every method raises ``StoreDown``."""

    def place(self, name: str) -> str:
        """Where its document is, for people; asks nobody."""
        ...

    async def get(self, name: str) -> bytes | None: ...

    async def swap(self, name: str, before: bytes | None, after: bytes) -> bool:
        """Put ``after`` in the place of ``before``; False where something else is there by now."""
        ...

    async def aclose(self) -> None: ...


class MemoryStates:
    """For tests and simulations, which have one process."""

    def __init__(self) -> None:
        self._documents: dict[str, bytes] = {}

    def place(self, name: str) -> str:
        return f"'{name}' in memory"

    async def get(self, name: str) -> bytes | None:
        return self._documents.get(name)

    async def swap(self, name: str, before: bytes | None, after: bytes) -> bool:
        if self._documents.get(name) != before:
            return False
        self._documents[name] = after
        return True

    async def aclose(self) -> None:
        """Nothing is open."""


class RedisStates:
    """Without a time to live: a roll-out that has ended stays so. In a cluster each is in a part by its name."""

    def __init__(self, url: str, *, prefix: str = "tollgate:rollout:") -> None:
        places = prefixes(url, "rollout", prefix)
        told = OutageLog("roll-outs", "they stay where they are", parts=len(places))
        self._links = [RedisLink(url, told, prefix=one) for one in places]

    def place(self, name: str) -> str:
        return f"the key '{part_of(name, self._links).prefix}{name}' of Redis"

    async def get(self, name: str) -> bytes | None:
        link = part_of(name, self._links)
        value = await link.ask(lambda client: client.get(link.prefix + name), TIMEOUT)
        return value.encode() if isinstance(value, str) else value

    async def swap(self, name: str, before: bytes | None, after: bytes) -> bool:
        link = part_of(name, self._links)

        async def ask(client: Any) -> Any:
            return await client.eval(_SWAP, 1, link.prefix + name, before or b"", after)

        return bool(await link.ask(ask, TIMEOUT))

    async def aclose(self) -> None:
        await asyncio.gather(*(link.aclose() for link in self._links))


class TableStates(OwnTables):
    """In a database, asked in threads."""

    def place(self, name: str) -> str:
        return f"the row '{name}' of the table 'rollouts'"

    async def get(self, name: str) -> bytes | None:
        try:
            rows = await asyncio.to_thread(self._rows, _FIND, {"name": name})
        except DatabaseError as error:
            raise StoreDown(str(error)) from error
        return str(rows[0]["document"]).encode() if rows else None

    async def swap(self, name: str, before: bytes | None, after: bytes) -> bool:
        given = {"name": name, "before": (before or b"").decode(), "after": after.decode()}

        def change(transaction: Change) -> bool:
            return _swapped(transaction, given)

        try:
            return await asyncio.to_thread(self._change, change)
        except DatabaseError as error:
            raise StoreDown(str(error)) from error

    async def aclose(self) -> None:
        """No connection is kept."""


_FIND = "SELECT document FROM rollouts WHERE name = :name"


def _swapped(change: Change, given: Mapping[str, Any]) -> bool:
    name = {"name": given["name"]}
    found = change.rows(_FIND, name)
    if (str(found[0]["document"]) if found else "") != given["before"]:
        return False
    if found:
        change.run(
            "UPDATE rollouts SET document = :after WHERE name = :name", {**name, "after": given["after"]}
        )
    else:
        change.run(
            "INSERT INTO rollouts (name, document) VALUES (:name, :after)", {**name, "after": given["after"]}
        )
    return True
