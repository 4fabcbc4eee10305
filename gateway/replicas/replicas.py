"""The replicas and the drains that a worker obeys, and who is told when they change.

Nothing runs, and nothing is looked at, while the policy has no replicas and no store that others share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from gateway.policy.loader import Loaded
from gateway.policy.members import Found, Members, with_members
from gateway.policy.schema import Policy
from gateway.replicas.discovery import Discovery, FoundFile, Ways, ended, ways_of, written_down
from gateway.replicas.drains import CommonDrains
from gateway.replicas.rotation import Rotation
from gateway.stores.store import StoreDown

log = logging.getLogger(__name__)

EVERY = 0.5
"""Seconds between two looks at what was found and what is drained."""


class Replicas:
    """One per worker; it outlives policies. The first worker finds the replicas of all."""

    def __init__(
        self,
        state_dir: Path,
        *,
        worker: int = 1,
        zone: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """By ``transport``, which stays the caller's to close, those that come are asked whether they answer."""
        self.rotation = Rotation(zone)
        self.on_change: Callable[[], Awaitable[object]] | None = None
        """Called when replicas have come or gone, or were drained, while the policy stayed the same."""
        self._file = FoundFile(state_dir)
        self._discovery = Discovery(self._file, transport) if worker == 1 else None
        self._ways: Ways = {}
        self._found: Mapping[str, Sequence[Found]] = {}
        self._drained: frozenset[str] = frozenset()
        self._applied: tuple[object, object] = self._found, self._drained
        self._store = "memory"
        self._drains: CommonDrains | None = None
        self._following: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()

    @property
    def drained(self) -> frozenset[str]:
        """By all gateways of the store."""
        return self._drained

    async def update(self, policy: Policy) -> None:
        """Follow what ``policy`` has. What is found and drained is known when this returns, if it can be known soon."""
        self._ways = ways_of(policy)
        if self._discovery is not None:
            await self._discovery.update(policy)
        await self._use_store(policy.store)
        async with self._looking:
            self._file.forget()
            await self._look()
        if (self._ways or self._drains is not None) and self._following is None:
            self._following = asyncio.create_task(self._follow(), name="replicas")

    def applied(self, loaded: Loaded) -> tuple[Loaded, Members]:
        """``loaded`` with the replicas that there are, without those that are drained."""
        self._applied = self._found, self._drained
        loaded, members = with_members(loaded, {**written_down(loaded.policy), **self._found}, self._drained)
        self.rotation.update(loaded.policy, members)
        return loaded, members

    async def look(self) -> frozenset[str]:
        """Now, and not in a moment. What is drained by all gateways of the store."""
        await self._look_and_tell()
        return self._drained

    async def drain(self, name: str, *, drained: bool) -> bool:
        """For all gateways of the store. Whether this changed anything. Raises ``StoreDown``."""
        if self._drains is None:
            raise StoreDown("the policy has no store that gateways share")
        changed = await self._drains.set(name, drained=drained)
        await self._look_and_tell()
        return changed

    async def aclose(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            await ended(following)
        if self._discovery is not None:
            await self._discovery.aclose()
        if self._drains is not None:
            await self._drains.aclose()

    async def _use_store(self, url: str) -> None:
        if url == self._store:
            return
        before, self._store = self._drains, url
        self._drains = CommonDrains(url) if url != "memory" else None
        self._drained = frozenset()
        if before is not None:
            await before.aclose()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self._look_and_tell()
            except Exception:
                log.exception("replicas could not be looked at; it is tried again")

    async def _look_and_tell(self) -> None:
        async with self._looking:
            await self._look()
            if self._applied != (self._found, self._drained) and self.on_change is not None:
                await self.on_change()

    async def _look(self) -> None:
        if await asyncio.to_thread(self._file.changed):
            self._found = await asyncio.to_thread(self._file.read, self._ways)
        if self._drains is not None:
            with suppress(StoreDown):  # the link has said so; what was drained stays so
                self._drained = await self._drains.names()
