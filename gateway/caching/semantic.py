"""Answers to questions with the same meaning. The questions, the index and the answers are in the sidecar."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from gateway.caching.key import Partition
from gateway.policy.schema import SemanticCache
from gateway.sidecar.api import LookupResult, Sidecar, SidecarError
from gateway.types import Json

log = logging.getLogger(__name__)

SECONDS_TO_LOOK = 0.1
"""The time-out of a look-up."""
SECONDS_TO_REMEMBER = 5.0
ATTEMPTS_TO_FORGET = 30
SECONDS_BETWEEN = 1.0
MOST_UNSENT = 64
"""Answers on their way to the sidecar; beyond that they are not cached."""
SECONDS_TO_FLUSH = 1.0

Facts = dict[str, Json]
"""For the receipt; questions are never among them."""


class Semantic:
    """One policy's semantic cache. Answers are sent to the sidecar in the background, in order."""

    def __init__(
        self,
        config: SemanticCache,
        sidecar: Sidecar,
        is_time_sensitive: Callable[[str], bool],
        *,
        projects: bool = False,
    ) -> None:
        """``projects``: facts get ``projection``, of the question's embedding (``gateway.sidecar.api``)."""
        self.config = config
        self._sidecar = sidecar
        self._is_time_sensitive = is_time_sensitive
        self._more: Mapping[str, bool] = {"projects": True} if projects else {}
        self._last: dict[str, asyncio.Task[None]] = {}
        """The latest task of each partition."""
        self._tasks: set[asyncio.Task[None]] = set()

    def lifetime(self, question: str) -> float:
        """Seconds for which an answer to ``question`` is valid; 0 where it is neither looked up nor cached."""
        ttl = self.config.ttl
        return min(ttl, self.config.time_sensitive_ttl) if self._is_time_sensitive(question) else ttl

    async def look_up(
        self, partition: Partition, facts: Facts, *, max_age: float | None
    ) -> LookupResult | None:
        """What the sidecar found, and ``facts`` about it; None where it could not be partition."""
        lifetime = self.lifetime(partition.question)
        if not lifetime:
            facts["semantic"] = "time_sensitive"
            return None
        budget, floor = self.config.error_budget, self.config.threshold
        try:
            async with asyncio.timeout(SECONDS_TO_LOOK):
                look = await self._sidecar.look_up(
                    partition.name, partition.question, budget=budget, floor=floor, **self._more
                )
        except TimeoutError:
            facts["semantic"] = "timeout"
            return None
        except SidecarError as error:
            facts["semantic"] = type(error).__name__
            return None
        oldest = lifetime if max_age is None else min(max_age, lifetime)
        if look.hit is not None and look.hit.age > oldest:
            look = look._replace(hit=None, reason="too_old")
        facts["semantic"] = look.reason
        if look.projection:
            facts["projection"] = look.projection
        if look.similarity is not None:
            facts["similarity"] = round(look.similarity, 4)
        if look.hit is not None:
            facts["confidence"] = round(look.hit.confidence, 4)
            facts["age"] = round(look.hit.age, 1)
        return look

    def remember(self, partition: Partition, key: str, payload: bytes) -> bool:
        """``key`` is the exact cache's. False where the answer is not cached."""
        lifetime = self.lifetime(partition.question)
        if not lifetime or len(payload) > self.config.max_entry or len(self._tasks) >= MOST_UNSENT:
            return False

        async def send() -> None:
            await self._sidecar.remember(partition.name, partition.question, payload, key=key, ttl=lifetime)

        self._later(partition.name, send, SECONDS_TO_REMEMBER)
        return True

    def forget(self, partition: Partition, key: str) -> None:
        """After an answer was cut: remove whatever is there under ``key``."""

        async def send() -> None:
            # The sidecar may be restarting; its entries in Redis would survive that.
            for _ in range(ATTEMPTS_TO_FORGET - 1):
                try:
                    return await self._sidecar.forget(partition.name, key)
                except SidecarError:
                    await asyncio.sleep(SECONDS_BETWEEN)
            await self._sidecar.forget(partition.name, key)

        self._later(partition.name, send, ATTEMPTS_TO_FORGET * (SECONDS_BETWEEN + SECONDS_TO_REMEMBER))

    async def aclose(self) -> None:
        """Pending answers have a second to be sent."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SECONDS_TO_FLUSH)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _later(self, name: str, send: Callable[[], Awaitable[None]], seconds: float) -> None:
        before = self._last.get(name)

        async def run() -> None:
            if before is not None:
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([before])
            try:
                async with asyncio.timeout(seconds):
                    await send()
            except (SidecarError, TimeoutError) as error:
                log.warning(
                    "cache: an answer was not sent to the sidecar: %s", str(error) or "it is too slow"
                )

        task = asyncio.get_running_loop().create_task(run())
        self._last[name] = task
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if self._last.get(name) is task:
                del self._last[name]

        task.add_done_callback(ended)
