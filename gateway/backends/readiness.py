"""Can this gateway serve? What it runs itself has to prove it; others are reported beside it.

An engine that the gateway starts is part of it: while that cannot decode, another replica should have the traffic. A
provider, or a server that all replicas share, is not: if readiness followed it, all would go out of service at once,
with the models that work and the answers that say what is wrong. Only where engines are all that there is to answer
questions, and none of them can be reached, is there nothing left to serve.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from gateway.backends.model_readiness import ModelReadiness
from gateway.errors import GatewayError
from gateway.types import Backend

PATIENCE = 0.25
"""Seconds for which those are awaited on whom nothing depends: probes have short limits."""
SILENT = "no answer yet"


@dataclass(frozen=True, slots=True)
class ReadinessReport:
    """``reasons``: for each backend why it cannot serve, or None; one that has not answered yet has a reason too."""

    reasons: Mapping[str, str | None]
    retry_after: float
    """Seconds, where nothing can serve."""
    guards: Mapping[str, str] = field(default_factory=dict)
    """Those that cannot judge, and so refuse everyone, with the reason."""
    waits_for: tuple[str, ...] = ()
    """The backends that this gateway runs itself and that have not proven that they can serve; and engines elsewhere,
    and what is drained, where no model can be served without them."""
    models: Mapping[str, str | None] = field(default_factory=dict)
    """For each public model why it cannot be served, or None."""
    store: str | None = None
    """Why every request that is under limits is refused, or None."""
    disabled: Mapping[str, str] = field(default_factory=dict)
    """The backends that are not in use, and why."""

    extras: Mapping[str, str] = field(default_factory=dict)
    """What does not work, as its packages are not installed, by the policy's key that asks for it."""

    @property
    def ready(self) -> bool:
        """False where no backend is enabled, too: such a policy serves nobody."""
        return bool(self.reasons) and not self.guards and not self.waits_for and self.store is None

    def serves(self, model: str) -> bool:
        """Whether this public model can be served, whatever others wait for."""
        return self.models[model] is None and not self.guards and self.store is None


class Readiness:
    """Askers that come within ``fresh`` seconds share one answer. Those on whom nothing depends are asked less often
    once they have proven themselves, every ``seldom`` seconds: they may be far away, and others'."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        *,
        needed: Collection[str] = (),
        fresh: float = 1.0,
        seldom: float = 10.0,
        proven: Callable[[str], object] = lambda name: None,
        trouble: Callable[[str], str | None] = lambda name: None,
        guards: Callable[[], Awaitable[Mapping[str, str]]] | None = None,
        models: ModelReadiness | None = None,
        store: Callable[[], str | None] = lambda: None,
        extras: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``proven`` is called with the name of each backend whose probe has passed. ``trouble`` gives a backend's
        failures in requests, whatever its probe says; ``guards`` which guards cannot judge, and why; ``models``
        which models use which backends; ``store`` why requests are refused while the counters are away;
        ``extras`` are the report's."""
        self._probes = {
            name: _Probe(backend, fresh, fresh if name in needed else seldom, partial(proven, name))
            for name, backend in backends.items()
        }
        self._needed = frozenset(needed) & backends.keys()
        self._trouble = trouble
        self._guards = guards
        self._models = models
        self._store = store
        self._extras = extras
        self._fresh = fresh
        self._asked = float("-inf")
        self._answer: asyncio.Task[ReadinessReport] | None = None

    async def report(self) -> ReadinessReport:
        now = time.monotonic()
        if self._answer is None or (self._answer.done() and now - self._asked > self._fresh):
            self._asked = now
            self._answer = asyncio.create_task(self._ask())
        return await asyncio.shield(self._answer)

    def out_of_use(self, model: str) -> bool:
        """Whether every backend of this public model is disabled; nobody is asked."""
        return self._models is not None and self._models.out_of_use(model)

    @property
    def disabled(self) -> Mapping[str, str]:
        """The backends that are not in use, and why; nobody is asked."""
        return self._models.disabled if self._models is not None else {}

    async def aclose(self) -> None:
        """Stop asking."""
        running = [self._answer, *(probe.task for probe in self._probes.values())]
        tasks = [task for task in running if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self) -> ReadinessReport:
        asked = {name: probe.ask() for name, probe in self._probes.items()}
        needed = [task for name, task in asked.items() if name in self._needed]
        if needed:
            await asyncio.wait(needed)
        unknown = [asked[name] for name, probe in self._probes.items() if not probe.known]
        if unknown:
            await asyncio.wait(unknown, timeout=PATIENCE)
        proofs = {name: probe.reason for name, probe in self._probes.items()}
        missing = [name for name in proofs if name in self._needed and proofs[name]]
        if self._models is not None:
            missing += [name for name in self._models.missing(proofs) if name not in missing]
        errors = [self._probes[name].error for name in missing if name in self._probes]
        reasons = {name: self._trouble(name) or reason for name, reason in proofs.items()}
        return ReadinessReport(
            reasons,
            min((error.retry_after for error in errors if error and error.retry_after), default=1.0),
            await self._guards() if self._guards is not None else {},
            tuple(missing),
            self._models.models(reasons) if self._models is not None else {},
            self._store(),
            self.disabled,
            self._extras,
        )


class _Probe:
    """What is known of one backend. A question that takes long is not cut off by the next."""

    def __init__(self, backend: Backend, fresh: float, seldom: float, proven: Callable[[], object]) -> None:
        """An error is asked about again after ``fresh`` seconds, a proof after ``seldom``."""
        self.known = False
        self.error: GatewayError | None = None
        self._backend = backend
        self._fresh = fresh
        self._seldom = seldom
        self._proven = proven
        self._asked = float("-inf")
        self.task: asyncio.Task[None] | None = None

    @property
    def reason(self) -> str | None:
        if not self.known:
            return SILENT
        return None if self.error is None else self.error.message

    def ask(self) -> asyncio.Task[None]:
        """The question under way, or a new one where the last answer is not fresh any more."""
        now = time.monotonic()
        fresh = self._fresh if self.reason else self._seldom
        if self.task is None or (self.task.done() and now - self._asked > fresh):
            self._asked = now
            self.task = asyncio.create_task(self._prove())
        return self.task

    async def _prove(self) -> None:
        try:
            await self._backend.probe()
        except GatewayError as error:
            self.error = error
        else:
            self.error = None
            self._proven()
        self.known = True
