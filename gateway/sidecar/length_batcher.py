"""Short texts beside long ones: each kind has a thread and a queue of its own.

In one queue a short text would wait for the long one that is being computed, which takes five to ten times as long, and
much longer on a busy machine. With a thread of its own it runs at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Generic, TypeVar

from gateway.sidecar.batcher import Batcher

V = TypeVar("V")

SHORT = 512
"""Characters of a text that counts as short: half of what the shipped embedder reads at once."""


class LengthBatcher(Generic[V]):
    """Two batchers that compute the same, each in an executor of its own."""

    def __init__(self, short: Batcher[str, V], long: Batcher[str, V]) -> None:
        self._short = short
        self._long = long

    def __len__(self) -> int:
        """Texts that are queued."""
        return len(self._short) + len(self._long)

    @property
    def batches(self) -> int:
        """Batches computed."""
        return self._short.batches + self._long.batches

    @property
    def computed(self) -> int:
        """Texts computed."""
        return self._short.computed + self._long.computed

    async def get(self, texts: Iterable[str]) -> list[V]:
        """As ``Batcher.get``; each kind has a queue of its own that may be full."""
        texts = list(texts)
        kinds = [len(text) > SHORT for text in texts]
        if not any(kinds):
            return await self._short.get(texts)
        if all(kinds):
            return await self._long.get(texts)
        both = [
            asyncio.ensure_future(self._short.get(text for text in texts if len(text) <= SHORT)),
            asyncio.ensure_future(self._long.get(text for text in texts if len(text) > SHORT)),
        ]
        try:
            short, long = map(iter, await asyncio.gather(*both))
        finally:
            for one in both:
                one.cancel()
        return [next(long) if is_long else next(short) for is_long in kinds]

    async def aclose(self) -> None:
        await self._short.aclose()
        await self._long.aclose()
