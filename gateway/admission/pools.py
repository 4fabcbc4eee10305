"""Every backend's pool of slots, and each worker's part of the limits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from gateway.admission.fair_shares import Flow
from gateway.admission.pool import Pool
from gateway.admission.shared_slots import SlotExchange
from gateway.engine_load import EngineLoad
from gateway.policy.schema import Policy, Provider


class Pools:
    """All backends' pools by name, of the process ``worker`` (from 1) of ``workers`` that share the limits."""

    def __init__(
        self,
        workers: int = 1,
        worker: int = 1,
        *,
        clock: Callable[[], float] = time.perf_counter,
        folder: Path | None = None,
    ) -> None:
        """``folder`` is where the workers share slots; without it each has its part of them."""
        self.workers = max(1, workers)
        self.worker = worker
        self.clock = clock
        self._pools: dict[str, Pool] = {}
        self.cold: frozenset[tuple[str, str]] = frozenset()
        """Backends and models of theirs, of which an engine says that they would have to be loaded first."""
        self._exchange = SlotExchange(folder, worker, workers) if folder is not None and workers > 1 else None

    def update(self, policy: Policy) -> None:
        """Apply a policy's limits. Removed backends keep their pools while requests are in flight."""
        if self._exchange is not None:
            self._exchange.listen(self._on_slots_free)
        for name in [name for name in self._pools if name not in policy.backends]:
            if not self._pools[name].load:
                self._pools.pop(name).limit(None, None)
        for name, backend in policy.backends.items():
            slots, tokens = (
                self.worker_share(backend.max_concurrency),
                self.worker_share(backend.max_tokens_in_flight),
            )
            # The bundled engine has a fair queue of its own, and reports how full it is.
            adaptive = slots is tokens is None and isinstance(backend, Provider)
            in_all = backend.max_concurrency if self._exchange is not None else None
            self.of(name).limit(slots, tokens, adaptive=adaptive, in_all=in_all)

    def __iter__(self) -> Iterator[Pool]:
        return iter(self._pools.values())

    def worker_share(self, limit: int | None) -> int | None:
        """This worker's share of a limit, at least 1. Shares add up to the limit, unless it is below ``workers``."""
        if limit is None:
            return None
        whole, left = divmod(limit, self.workers)
        return max(1, whole + (self.worker <= left))

    def of(self, name: str) -> Pool:
        pool = self._pools.get(name)
        if pool is None:
            shared = partial(self._exchange.of, name) if self._exchange is not None else None
            pool = self._pools[name] = Pool(name, clock=self.clock, shared=shared)
        return pool

    def _on_slots_free(self) -> None:
        for pool in self:
            pool.grant_next()

    def saturation(self, name: str, caller: tuple[str, str, float] | None = None) -> float:
        pool = self.of(name)
        return pool.saturation if caller is None else pool.saturation_for(Flow(*caller))

    def load(self, name: str) -> int:
        return self.of(name).load

    def told(self, name: str) -> EngineLoad | None:
        """An engine's own figures; None where it has told none for a while."""
        return self.of(name).speed.engine

    def has_capacity(self, name: str, tokens: int, caller: tuple[str, str, float] | None = None) -> bool:
        """Whether a request would start at once, ``caller`` being its tier, tenant and weight. It would not at an
        engine that reports a queue of its own."""
        pool = self.of(name)
        engine, flow = pool.speed.engine, None if caller is None else Flow(*caller)
        return pool.has_capacity(tokens, flow=flow) and (engine is None or engine.saturation < 1.0)

    def update_engine(self, name: str, figures: EngineLoad | None) -> None:
        """An engine's own figures; None where it does not answer."""
        self.of(name).speed.update_engine(figures)
        if self.cold or (figures is not None and figures.models):
            states = {} if figures is None else figures.models
            cold = {(name, model) for model, state in states.items() if state != "loaded"}
            self.cold = frozenset(cold | {one for one in self.cold if one[0] != name})
