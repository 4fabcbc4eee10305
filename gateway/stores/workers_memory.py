"""A store in the memory of all workers of a machine: each keeps what it is given, and asks the others for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.control.peers import BLOBS, Peers
from gateway.stores.memory import MemoryStore
from gateway.stores.store import StoreDown

DO = "stored"
"""What the workers call it when they ask one another."""


class WorkersMemory:
    """Of two values under one key, a worker sees its own. ``name`` tells this store from others of a worker."""

    def __init__(self, own: MemoryStore, peers: Peers, name: str) -> None:
        self.own = own
        self._peers = peers
        self._name = name

    async def put(self, values: Mapping[str, bytes], ttl: float) -> None:
        await self.own.put(values, ttl)

    async def get(self, key: str) -> bytes | None:
        return (await self.get_all([key]))[0]

    async def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        found = await self.own.get_all(keys)
        missing = [at for at, value in enumerate(found) if value is None]
        if missing:
            for answer in await self._others("get", [keys[at] for at in missing]):
                for at, value in zip(missing, answer.get(BLOBS, ()), strict=False):
                    found[at] = value if found[at] is None else found[at]
        return found

    async def touch(self, keys: Sequence[str], ttl: float) -> None:
        await self.own.touch(keys, ttl)
        own = await self.own.get_all(keys)
        elsewhere = [key for key, value in zip(keys, own, strict=True) if value is None]
        if elsewhere:
            await self._others("touch", elsewhere, ttl)

    async def delete(self, key: str) -> None:
        await self.own.delete(key)
        await self._others("delete", [key])

    async def aclose(self) -> None:
        await self.own.aclose()

    async def _others(self, what: str, keys: Sequence[str], ttl: float = 0.0) -> list[dict[str, Any]]:
        asked = {"do": DO, "store": self._name, "what": what, "keys": list(keys), "ttl": ttl}
        try:
            return await self._peers.ask_others(asked)
        except TimeoutError:
            raise StoreDown("A worker that may have it does not answer.") from None

    async def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What this worker itself has, for the others."""
        keys = [str(key) for key in asked["keys"]]
        match asked["what"]:
            case "get":
                return {BLOBS: await self.own.get_all(keys)}
            case "touch":
                await self.own.touch(keys, float(asked["ttl"]))
            case "delete":
                for key in keys:
                    await self.own.delete(key)
        return {}
