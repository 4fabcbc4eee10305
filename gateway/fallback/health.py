"""The health of backends and of their models. It outlives policies: an edit must not send all traffic to a failing
server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Protocol

from gateway.fallback.circuit_breaker import Breaker, Scope, WatchedBreaker, Watcher
from gateway.fallback.retry import RetryBudget
from gateway.fallback.severed import Severed
from gateway.policy.schema import Target


class HealthListener(Protocol):
    """Called once for each change of state."""

    def breaker_opened(
        self,
        backend: str,
        model: str,
        tenant: str | None,
        key_id: str | None,
        failures: int,
        cooldown: float,
    ) -> None:
        """For a key, for a tenant (no key), for everybody (no tenant)."""
        ...

    def breaker_closed(self, backend: str, model: str, tenant: str | None, key_id: str | None) -> None: ...
    def credentials_refused(self, backend: str, model: str, error: str) -> None: ...
    def credentials_accepted(self, backend: str) -> None: ...


@dataclass(slots=True)
class BackendHealth:
    """One backend's."""

    retries: RetryBudget = field(default_factory=RetryBudget)
    unsolicited_retries: RetryBudget = field(default_factory=RetryBudget)
    """For calls that no caller made: they take no retries from callers."""
    credentials_refused: dict[str, str] = field(default_factory=dict)
    """Models (as the backend knows them) for which it refuses our credentials, and the error's code."""
    severed: Severed = field(default_factory=Severed)


class HealthRegistry:
    """One ``BackendHealth`` per backend and one breaker per target. A worker has one registry for its lifetime."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, listener: HealthListener | None = None
    ) -> None:
        """``clock`` counts seconds; its zero does not matter."""
        self._clock = clock
        self._listener = listener
        self._backends: dict[str, BackendHealth] = {}
        self._breakers: dict[tuple[str, str], Breaker] = {}
        """By backend, and by the model as the backend knows it."""
        self.watcher: Callable[[str], Watcher | None] = lambda backend: None
        """Who looks on at a backend's requests, where anybody does."""

    def __getitem__(self, backend: str) -> BackendHealth:
        health = self._backends.get(backend)
        if health is None:
            health = self._backends[backend] = BackendHealth()
        return health

    def breaker(self, target: Target) -> Breaker:
        name = (target.backend, target.model)
        breaker = self._breakers.get(name)
        if breaker is None:
            changes, watcher = self._breaker_changes(*name), self.watcher(target.backend)
            breaker = self._breakers[name] = (
                Breaker(self._clock, changes)
                if watcher is None
                else WatchedBreaker(self._clock, changes, watcher)
            )
        return breaker

    def forget(self, backend: str) -> None:
        """It is no more."""
        self._backends.pop(backend, None)
        for name in [name for name in self._breakers if name[0] == backend]:
            self._breakers.pop(name).close()

    def forget_model(self, model: str) -> None:
        """No backend knows it any more."""
        for name in [name for name in self._breakers if name[1] == model]:
            self._breakers.pop(name).close()
            self.credentials_accepted(*name)

    def forget_target(self, backend: str, model: str) -> None:
        """``backend`` does not know it any more."""
        if (breaker := self._breakers.pop((backend, model), None)) is not None:
            breaker.close()
            self.credentials_accepted(backend, model)

    def copied(self) -> HealthRegistry:
        """One in the same state, to be asked what this one would say: what becomes of it changes nothing here, and
        nobody is told."""
        copy = HealthRegistry(self._clock)
        copy._backends = deepcopy(self._backends)
        copy._breakers = {name: breaker.copied() for name, breaker in self._breakers.items()}
        return copy

    def breakers(self) -> Iterator[tuple[str, str, Breaker]]:
        """Each with its backend, and the model as the backend knows it."""
        for (backend, model), breaker in self._breakers.items():
            yield backend, model, breaker

    def recovered(self, backend: str, model: str | None = None) -> None:
        """The backend serves again; or a model of it, as it knows it."""
        for (name, its), breaker in self._breakers.items():
            if name == backend and model in (None, its):
                breaker.recovered()

    def credentials_refused(self, backend: str, model: str, error: str) -> None:
        """Our credentials were refused, or not paid for: until an answer to the same model says otherwise."""
        refused = self[backend].credentials_refused
        if not refused and self._listener is not None:
            self._listener.credentials_refused(backend, model, error)
        refused[model] = error

    def credentials_accepted(self, backend: str, model: str | None = None) -> None:
        """Our credentials are good for ``model`` again; for all models where they have changed."""
        refused = self[backend].credentials_refused
        if not refused:
            return
        if model is None:
            refused.clear()
        else:
            refused.pop(model, None)
        if not refused and self._listener is not None:
            self._listener.credentials_accepted(backend)

    def problem(self, backend: str) -> str | None:
        """What is wrong with a backend as requests have shown it, for its operator; None if nothing is."""
        health = self._backends.get(backend)
        if health is not None and health.credentials_refused:
            model, error = next(iter(health.credentials_refused.items()))
            what = "wants to be paid" if error == "upstream_billing" else "refuses the gateway's credentials"
            return f"{what} (asked for '{model}'); its api_key needs the operator's care"
        failing = sorted(
            model for (name, model), breaker in self._breakers.items() if name == backend and breaker.is_open
        )
        return (
            f"it failed recently (asked for '{failing[0]}'), and its circuit breaker is open"
            if failing
            else None
        )

    def _breaker_changes(self, backend: str, model: str) -> Callable[[Scope, int, float], None]:
        def changed(scope: Scope, failures: int, cooldown: float) -> None:
            if self._listener is None:
                return
            if failures:
                self._listener.breaker_opened(backend, model, *scope, failures, cooldown)
            else:
                self._listener.breaker_closed(backend, model, *scope)

        return changed
