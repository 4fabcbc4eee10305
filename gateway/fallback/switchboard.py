"""What is known of the health of backends and of their models. It outlives policies: an edit must not send a crowd to a
sick server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gateway.fallback.breaker import Breaker, Scope
from gateway.fallback.retry import RetryBudget
from gateway.policy.schema import Target


class Watch(Protocol):
    """Told of each change of state, once."""

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
class Line:
    """A backend's."""

    budget: RetryBudget = field(default_factory=RetryBudget)
    aside: RetryBudget = field(default_factory=RetryBudget)
    """For calls that no caller made: they take no retries from callers."""
    refused: dict[str, str] = field(default_factory=dict)
    """Models (as the backend knows them) for which it refuses our credentials, and the error's code."""


class Switchboard:
    """One line per backend, and one breaker per target. A worker has one of these, for as long as it lives."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, watch: Watch | None = None) -> None:
        """``clock`` counts seconds; its zero does not matter."""
        self._clock = clock
        self._watch = watch
        self._lines: dict[str, Line] = {}
        self._breakers: dict[tuple[str, str], Breaker] = {}
        """By backend, and by the model as the backend knows it."""

    def __getitem__(self, backend: str) -> Line:
        line = self._lines.get(backend)
        if line is None:
            line = self._lines[backend] = Line()
        return line

    def breaker(self, target: Target) -> Breaker:
        name = (target.backend, target.model)
        breaker = self._breakers.get(name)
        if breaker is None:
            breaker = self._breakers[name] = Breaker(self._clock, self._breaker_changes(*name))
        return breaker

    def proven(self, backend: str) -> None:
        """It has shown that it serves again."""
        for (name, _), breaker in self._breakers.items():
            if name == backend:
                breaker.proven()

    def refused(self, backend: str, model: str, error: str) -> None:
        """Our credentials were refused, or not paid for: until an answer to the same model says otherwise."""
        refused = self[backend].refused
        if not refused and self._watch is not None:
            self._watch.credentials_refused(backend, model, error)
        refused[model] = error

    def accepted(self, backend: str, model: str | None = None) -> None:
        """They are good for ``model`` again; or for all, as they are others now."""
        refused = self[backend].refused
        if not refused:
            return
        if model is None:
            refused.clear()
        else:
            refused.pop(model, None)
        if not refused and self._watch is not None:
            self._watch.credentials_accepted(backend)

    def trouble(self, backend: str) -> str | None:
        """What requests have shown to be wrong with a backend, for whoever looks after it."""
        line = self._lines.get(backend)
        if line is not None and line.refused:
            model, error = next(iter(line.refused.items()))
            what = "wants to be paid" if error == "upstream_billing" else "refuses the gateway's credentials"
            return f"{what} (asked for '{model}'); its api_key needs the operator's care"
        sick = sorted(
            model for (name, model), breaker in self._breakers.items() if name == backend and breaker.sick
        )
        return f"it failed of late (asked for '{sick[0]}'), and is left alone for a while" if sick else None

    def _breaker_changes(self, backend: str, model: str) -> Callable[[Scope, int, float], None]:
        def changed(scope: Scope, failures: int, cooldown: float) -> None:
            if self._watch is None:
                return
            if failures:
                self._watch.breaker_opened(backend, model, *scope, failures, cooldown)
            else:
                self._watch.breaker_closed(backend, model, *scope)

        return changed
