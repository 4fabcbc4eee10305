"""Can the gateway serve? Every backend is asked for proof."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from gateway.errors import GatewayError
from gateway.types import Backend


class Readiness:
    """Asks all backends at once; askers that come within ``fresh`` seconds share one answer."""

    def __init__(self, backends: Mapping[str, Backend], *, fresh: float = 1.0) -> None:
        self._backends = backends
        self._fresh = fresh
        self._asked = float("-inf")
        self._answer: asyncio.Task[dict[str, str | None]] | None = None

    async def verdicts(self) -> dict[str, str | None]:
        """For each backend None when it can serve, else the reason why not."""
        now = time.monotonic()
        if self._answer is None or (self._answer.done() and now - self._asked > self._fresh):
            self._asked = now
            self._answer = asyncio.create_task(self._ask())
        return await asyncio.shield(self._answer)

    async def _ask(self) -> dict[str, str | None]:
        answers = await asyncio.gather(*(_prove(backend) for backend in self._backends.values()))
        return dict(zip(self._backends, answers, strict=True))


async def _prove(backend: Backend) -> str | None:
    try:
        await backend.probe()
    except GatewayError as error:
        return error.message
    return None
