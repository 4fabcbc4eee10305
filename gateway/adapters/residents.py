"""Which adapters one server has, and which of them makes room for another.

Weighted LRU: each adapter is worth its recent uses, which count half as much every ``HALF_LIFE`` seconds, times the
seconds that loading it took. What is worth least is unloaded. One that a request uses is not; but where all are in use
without a pause, the one that is worth least takes no new requests, so that who waits for room gets it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass

from gateway.adapters.adapter import Adapter
from gateway.adapters.servers import Server, ServerFull
from gateway.errors import Overloaded, Upstream

HALF_LIFE = 300.0
LOOK_EVERY = 0.02
"""Seconds between two looks for an adapter that nobody uses."""
LEAVES_AFTER = 1.0
"""Seconds without one until an adapter in use takes no new requests;"""
LEAVES_FOR = 1.0
"""and for how long another worker's word for that holds."""
USUAL_COST = 0.1
"""Seconds that loading is thought to take until it was seen."""

Uses = Mapping[str, tuple[float, int]]
"""By adapter, what it is worth and how many requests use it."""

_UNUSED = (0.0, 0)


@dataclass(slots=True)
class Resident:
    """An adapter that the server has."""

    uses: float
    """As of ``at``, decayed."""
    at: float
    cost: float
    in_flight: int = 0
    fresh: bool = False
    """It was loaded for somebody, and nobody has used it yet. Those for whom it is have it before it makes room: two
    that want the same slot would have each other's unloaded for ever."""

    def used(self, now: float) -> None:
        self.uses, self.at, self.fresh = self._decayed(now) + 1.0, now, False

    def worth(self, now: float) -> float:
        return self._decayed(now) * self.cost

    def _decayed(self, now: float) -> float:
        return self.uses * math.exp2((self.at - now) / HALF_LIFE)


class Residents:
    """Of one server, as this worker knows them. The server itself is asked before each load."""

    def __init__(
        self,
        server: Server,
        *,
        slots: int | None = None,
        timeout: float = 60.0,
        elsewhere: Callable[[str | None], Awaitable[Uses]] | None = None,
        alone: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        on_load: Callable[[str, float], object] = lambda outcome, seconds: None,
        on_evict: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``elsewhere``: the uses by other workers, which are told what is to leave. ``alone``: entered while the
        server's adapters change, so that no other worker changes them."""
        self.server = server
        self._slots = slots
        self._timeout = timeout
        self._elsewhere = elsewhere
        self._alone = alone
        self._on_load = on_load
        self._on_evict = on_evict
        self._clock = clock
        self._held: dict[str, Resident] = {}
        self._costs: dict[str, float] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._waiting: Counter[str] = Counter()
        """How many requests wait for each."""
        self._changing = asyncio.Lock()
        self._leaving: tuple[str, float] | None = None
        """What takes no new requests, and until when."""

    def holds(self, id: str) -> bool:
        return id in self._held

    @property
    def held(self) -> frozenset[str]:
        return frozenset(self._held)

    @property
    def has_room(self) -> bool:
        return self._slots is None or len(self._held) + len(self._loading) < self._slots

    def uses(self) -> Uses:
        now = self._clock()
        return {known: (one.worth(now), self._users(known, one)) for known, one in self._held.items()}

    @asynccontextmanager
    async def using(self, adapter: Adapter, patience: float) -> AsyncIterator[None]:
        """``async with`` it: the server has it when the block begins, and no worker of this machine unloads it before
        the block ends.

        Raises what ``Server.load`` does but ``ServerFull``, and ``Overloaded`` where it takes longer than ``patience``.
        """
        resident = self._ready(adapter.id) or await self._awaited(adapter, patience)
        resident.used(self._clock())
        resident.in_flight += 1
        try:
            yield
        finally:
            resident.in_flight -= 1

    def lost(self, id: str) -> None:
        """The server says that it does not have it: it was started again, or somebody else unloaded it."""
        self._held.pop(id, None)

    def leave(self, id: str) -> None:
        """Who asks for it from now on waits until it was loaded again, as another waits for its place."""
        self._leaving = id, self._clock() + LEAVES_FOR

    async def remove(self, id: str) -> None:
        """It was deleted. Does not raise. Loads of others do not wait for its last requests, as the server does."""
        self._costs.pop(id, None)
        loading = self._loading.get(id)
        if loading is not None:
            await asyncio.wait([loading])
        if self._held.pop(id, None) is not None:
            with suppress(Upstream, TimeoutError):
                async with asyncio.timeout(self._timeout):
                    await self.server.unload(id)

    async def unload(self, id: str) -> None:
        """The server is to be given it again. Does not raise."""
        with suppress(Upstream, TimeoutError):
            async with asyncio.timeout(self._timeout), self._changing, self._alone():
                if self._held.pop(id, None) is not None:
                    await self.server.unload(id)

    async def aclose(self) -> None:
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.server.aclose()

    async def _awaited(self, adapter: Adapter, patience: float) -> Resident:
        self._waiting[adapter.id] += 1
        try:
            async with asyncio.timeout(patience):
                # It may be lost again before this one, which has waited for it, is run.
                while (resident := self._ready(adapter.id)) is None:
                    await self._wait(adapter)
                return resident
        except TimeoutError:
            raise _still_loading(adapter) from None
        finally:
            self._waiting[adapter.id] -= 1
            if not self._waiting[adapter.id]:
                del self._waiting[adapter.id]

    def _ready(self, id: str) -> Resident | None:
        if self._leaving is not None and self._leaving[0] == id and self._clock() < self._leaving[1]:
            return None
        return self._held.get(id)

    async def _wait(self, adapter: Adapter) -> None:
        """One load for all that wait for it; it goes on where they leave."""
        task = self._loading.get(adapter.id)
        if task is None or task.done():
            task = self._loading[adapter.id] = asyncio.create_task(self._load(adapter))
            task.add_done_callback(lambda done: self._loaded(adapter.id, done))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and not (waiting is not None and waiting.cancelling()):
                raise _still_loading(adapter) from None  # another policy has come
            raise

    def _loaded(self, id: str, task: asyncio.Task[None]) -> None:
        if self._loading.get(id) is task:
            del self._loading[id]
        if not task.cancelled():
            task.exception()  # those who waited have it

    async def _load(self, adapter: Adapter) -> None:
        try:
            async with asyncio.timeout(self._timeout), self._changing, self._alone():
                self._leaving = None  # nobody makes room now but this
                await self._find()
                if adapter.id in self._held:
                    return
                await self._make_room()
                began = self._clock()
                await self._load_now(adapter)
                cost = self._costs[adapter.id] = max(self._clock() - began, 1e-6)
                self._held[adapter.id] = Resident(0.0, self._clock(), cost, fresh=True)
                self._on_load("ok", cost)
        except TimeoutError:
            self._on_load("timeout", 0.0)
            raise _still_loading(adapter) from None
        except Exception:
            self._on_load("failed", 0.0)
            raise

    async def _load_now(self, adapter: Adapter) -> None:
        began = self._clock()
        while True:
            try:
                return await self.server.load(adapter)
            except ServerFull as full:
                if not self._held:
                    raise Overloaded(
                        f"No server of '{adapter.base}' has room for an adapter now: {full}",
                        param="model",
                        code="adapter_no_room",
                        retry_after=5.0,
                    ) from None
                await self._evict(began)

    async def _make_room(self) -> None:
        began = self._clock()
        while self._slots is not None and len(self._held) >= self._slots:
            await self._evict(began)

    async def _find(self) -> None:
        """What the server has, whoever had it loaded."""
        found, now = await self.server.loaded(), self._clock()
        for gone in self._held.keys() - found:
            del self._held[gone]
        for known in found - self._held.keys():
            self._held[known] = Resident(0.0, now, self._costs.get(known, USUAL_COST))

    async def _evict(self, began: float) -> None:
        """Unload what is worth least of those that nobody uses; wait where there is none, as since ``began``."""
        leaving = self._leaving[0] if self._leaving is not None else None
        others = await self._elsewhere(leaving) if self._elsewhere is not None else {}
        now = self._clock()
        worth = {
            known: (one.worth(now) + others.get(known, _UNUSED)[0], one.at)
            for known, one in self._held.items()
        }
        idle = [
            known
            for known, one in self._held.items()
            if not self._users(known, one) and not others.get(known, _UNUSED)[1]
        ]
        if not idle:
            awaited = {known for known, one in self._held.items() if one.fresh and self._waiting[known]}
            if now - began >= LEAVES_AFTER and (busy := worth.keys() - awaited):
                self.leave(leaving if leaving in busy else min(busy, key=lambda known: (worth[known], known)))
            await asyncio.sleep(LOOK_EVERY)
            return
        least = min(idle, key=lambda known: (worth[known], known))
        del self._held[least]
        self._leaving = None
        await self.server.unload(least)
        self._on_evict()

    def _users(self, known: str, one: Resident) -> int:
        return one.in_flight + (self._waiting[known] if one.fresh else 0)


def _still_loading(adapter: Adapter) -> Overloaded:
    return Overloaded(
        f"The adapter '{adapter.model}' is still being loaded. Try again.",
        param="model",
        code="adapter_loading",
        retry_after=2.0,
    )
