"""Can the gateway serve? Every backend is asked for proof."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from gateway.errors import GatewayError
from gateway.types import Backend

PATIENCE = 0.25
"""Seconds for which a backend's proof is awaited once another has given its own: probes have short limits."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reasons`` tells for each backend why it cannot serve, or None; one that is still silent has a reason too."""

    reasons: Mapping[str, str | None]
    retry_after: float
    """Seconds, where nothing can serve."""
    guards: Mapping[str, str] = field(default_factory=dict)
    """Those that cannot judge, and so refuse everyone, with the reason."""

    @property
    def ready(self) -> bool:
        return None in self.reasons.values() and not self.guards


class Readiness:
    """Asks all backends at once; askers that come within ``fresh`` seconds share one answer."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        *,
        fresh: float = 1.0,
        proven: Callable[[str], object] = lambda name: None,
        guards: Callable[[], Awaitable[Mapping[str, str]]] | None = None,
    ) -> None:
        """``proven`` is told the name of each backend that has just given its proof; ``guards`` tells which guards
        cannot judge, and why."""
        self._backends = backends
        self._guards = guards
        self._proven = proven
        self._fresh = fresh
        self._asked = float("-inf")
        self._answer: asyncio.Task[Verdict] | None = None

    async def verdict(self) -> Verdict:
        now = time.monotonic()
        if self._answer is None or (self._answer.done() and now - self._asked > self._fresh):
            self._asked = now
            self._answer = asyncio.create_task(self._ask())
        return await asyncio.shield(self._answer)

    async def _ask(self) -> Verdict:
        proofs = {name: asyncio.create_task(_prove(backend)) for name, backend in self._backends.items()}
        silent = set(proofs.values())
        patience: float | None = None
        while silent:
            answered, silent = await asyncio.wait(
                silent, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            if not answered:
                break
            if any(proof.result() is None for proof in answered):
                patience = PATIENCE
        for proof in silent:
            proof.cancel()
        for name, proof in proofs.items():
            if proof not in silent and proof.result() is None:
                self._proven(name)
        errors = {name: proof.result() for name, proof in proofs.items() if proof not in silent}
        waits = [error.retry_after for error in errors.values() if error and error.retry_after]
        return Verdict(
            {name: _reason(errors[name]) if name in errors else "no answer yet" for name in proofs},
            min(waits, default=1.0),
            await self._guards() if self._guards is not None else {},
        )


def _reason(error: GatewayError | None) -> str | None:
    return None if error is None else error.message


async def _prove(backend: Backend) -> GatewayError | None:
    try:
        await backend.probe()
    except GatewayError as error:
        return error
    return None
