"""The semantic cache's look-up: the nearest questions of a partition, of which the verifier accepts one or none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gateway.sidecar.api import Hit, LookupResult
from gateway.sidecar.batcher import Batcher
from gateway.sidecar.semantic.alignment import Floats
from gateway.sidecar.semantic.entries import IndexEntries, IndexEntry
from gateway.sidecar.semantic.projection import Projection
from gateway.sidecar.semantic.shared_index import Removal, SpreadIndex
from gateway.sidecar.semantic.verifier import Verifier

T = TypeVar("T")
Embed = Callable[[Sequence[str]], Awaitable[list[bytes]]]
"""Sentence embeddings: little-endian float32, of length 1."""

CANDIDATES = 8
ROUNDING = 1e-6
"""Of a cosine in float32: equal vectors give 0.9999999, and a policy's 1.0 means equal."""
LEAST_SIMILAR = 0.6
"""Below it the verifier never accepted anything, so it is not asked."""
BATCH, QUEUE = 8, 1024
"""Look-ups that are computed together, in some 10 ms, and that may be queued."""


@dataclass(eq=False, slots=True)
class _LookUp:
    partition: str
    question: str
    vector: Floats
    budget: float
    floor: float
    given_up: bool = False


_GIVEN_UP = LookupResult(None, "given_up")


class SemanticIndex:
    """``redis``: the URL of a server through which replicas share entries, and which keeps them over restarts.

    ``clock`` gives seconds since the epoch, as replicas compare them. ``space`` names the embedding model and version:
    entries that another one made are not read from Redis.
    """

    def __init__(
        self,
        embed: Embed,
        redis: str | None,
        max_bytes: int,
        max_entries: int,
        *,
        verifier: Verifier | None = None,
        clock: Callable[[], float] = time.time,
        space: str = "",
    ) -> None:
        self._embed = embed
        self._trainer = ThreadPoolExecutor(1, thread_name_prefix="index training")
        self._entries = IndexEntries(max_bytes, max_entries, self._trainer)
        self._verifier = verifier or Verifier.load()
        self._projection = Projection()
        self._clock = clock
        self._shared = (
            SpreadIndex(redis, max_bytes=max_bytes, max_entries=max_entries, clock=clock, space=space)
            if redis
            else None
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="index")
        """The only thread that touches the entries."""
        self._look_ups: Batcher[_LookUp, LookupResult] = Batcher(
            self._look_up,
            self._thread,
            max_batch=BATCH,
            max_queue=QUEUE,
            max_cost=BATCH,
            cost=lambda _: 1,
            remembered=0,
        )

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes."""
        return self._entries.size

    @property
    def queued(self) -> int:
        """Look-ups that wait."""
        return len(self._look_ups)

    async def look_up(
        self, partition: str, question: str, *, budget: float, floor: float = 0.0, projects: bool = False
    ) -> LookupResult:
        """Raises what ``embed`` raises, and ``SidecarBusy``. ``floor``: less similar questions (cosine) are never
        considered. A look-up that is cancelled leaves the queue."""
        vector = await self._vector(question)
        if self._shared is not None and (updates := await self._shared.updates(partition)):
            await self._run(self._apply, partition, updates)
        wanted = _LookUp(partition, question, vector, budget, floor)
        try:
            (found,) = await self._look_ups.get([wanted])
        except asyncio.CancelledError:
            wanted.given_up = True  # its batch may have begun
            raise
        return found._replace(projection=tuple(self._projection.of(vector))) if projects else found

    async def remember(self, partition: str, question: str, payload: bytes, *, key: str, ttl: float) -> None:
        """Raises what ``embed`` raises. ``ttl`` in seconds."""
        vector = await self._vector(question)
        now = self._clock()
        entry = IndexEntry(partition, question, vector, payload, key, now, now + ttl)
        await self._run(self._remember, entry)
        if self._shared is not None:
            await self._shared.publish(entry)

    async def forget(self, partition: str, key: str) -> None:
        """Here, and eventually in all replicas."""
        removed = await self._run(self._forget, partition, key)
        if self._shared is not None:
            await self._shared.forget(
                partition, key, [entry.message for entry in removed if entry.message is not None]
            )

    async def aclose(self) -> None:
        await self._look_ups.aclose()
        for thread in (self._thread, self._trainer):
            thread.shutdown(wait=False, cancel_futures=True)
        if self._shared is not None:
            await self._shared.aclose()

    async def _vector(self, question: str) -> Floats:
        (found,) = await self._embed([question])
        return np.frombuffer(found, dtype="<f4").astype(np.float32, copy=False)

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        # Shielded: what was read from Redis must not be lost when the caller is cancelled.
        return await asyncio.shield(
            asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        )

    def _remember(self, entry: IndexEntry) -> None:
        self._entries.expire(self._clock())
        if entry.expires > self._clock():
            self._entries.add(entry)

    def _forget(self, partition: str, key: str) -> list[IndexEntry]:
        named = self._entries.named(partition, key)
        for entry in named:
            self._entries.remove(entry)
        return named

    def _apply(self, partition: str, updates: Sequence[IndexEntry | Removal]) -> None:
        for item in updates:
            if isinstance(item, Removal):
                self._forget(partition, item.key)
            else:
                self._remember(item)

    def _look_up(self, look_ups: Sequence[_LookUp]) -> list[LookupResult]:
        now = self._clock()
        self._entries.expire(now)
        by_partition: dict[str, list[_LookUp]] = {}
        for one in look_ups:
            by_partition.setdefault(one.partition, []).append(one)
        found: dict[_LookUp, LookupResult] = {}
        for partition, some in by_partition.items():
            near = self._entries.nearest(partition, np.stack([one.vector for one in some]), CANDIDATES)
            for one, candidates in zip(some, near, strict=True):
                if not one.given_up:
                    found[one] = self._choose(one, candidates, now)
        return [found.get(one, _GIVEN_UP) for one in look_ups]

    def _choose(self, asked: _LookUp, near: list[tuple[float, IndexEntry]], now: float) -> LookupResult:
        """The candidate that the verifier accepts with the highest confidence, if any."""
        if not near:
            return LookupResult(None, "empty")
        nearest = near[0][0]
        near = [found for found in near if found[0] + ROUNDING >= max(asked.floor, LEAST_SIMILAR)]
        if not near:
            return LookupResult(None, "unlike", nearest)
        threshold = self._verifier.threshold(asked.budget)
        best: tuple[float, float, IndexEntry] | None = None
        first_reason = None
        for similarity, entry in near:
            comparison = self._verifier.judge(
                asked.question, entry.question, asked.vector, entry.vector, threshold=threshold
            )
            if comparison.reason is not None:
                first_reason = first_reason or comparison.reason
            elif best is None or comparison.confidence > best[0]:
                best = (comparison.confidence, similarity, entry)
                if comparison.confidence == 1.0:
                    break
        if best is None:
            return LookupResult(None, first_reason or "unlike", nearest)
        confidence, similarity, entry = best
        self._entries.used(entry)
        return LookupResult(
            Hit(entry.payload, similarity, confidence, max(0.0, now - entry.stored)), "hit", nearest
        )
