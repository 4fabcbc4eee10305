"""A circuit breaker: a target that keeps failing is left alone for a while, then tried with one request.

The states and their names are those of Nygard's "Release It!" (2nd edition, 2018, chapter 5). What is added is that
callers are told apart: whoever sends what a server chokes on must not cost the others their answers.
A target that fails one caller is left alone for that one; for all of its tenant, or for everybody, it is once it fails
several, and would be thought sick without any single one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gateway.fallback.circuit import SOON, Circuit
from gateway.policy import schema

__all__ = ["SOON", "Breaker", "Caller", "Scope", "Trial"]

MOST = 1000
"""Tenants, and keys, with a circuit of their own: of more the oldest is forgotten."""


class Caller(NamedTuple):
    tenant: str
    key_id: str


class Scope(NamedTuple):
    """For whom a target is left alone: a key, all of a tenant's (no key), everybody (no tenant)."""

    tenant: str | None = None
    key_id: str | None = None


EVERYBODY = Scope()

OnChange = Callable[[Scope, int, float], None]
"""Takes the scope, the failures in the window and the cooldown; of no failures when it has closed."""


class Breaker:
    """One target's. While nothing fails it counts nothing."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_change: OnChange = lambda scope, failures, cooldown: None,
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._circuits: dict[Scope, Circuit] = {}
        """Those that a failure has made; the oldest first."""
        self._calm_at = 0.0
        """When to look for those that have nothing to say any more."""

    @property
    def closed(self) -> bool:
        """For everybody."""
        return all(circuit.closed for circuit in self._circuits.values())

    @property
    def sick(self) -> bool:
        """It is left alone by everybody now."""
        circuit = self._circuits.get(EVERYBODY)
        return circuit is not None and circuit.wait(None) > 0

    def wait(self, caller: Caller) -> float:
        """Seconds until a request of ``caller`` may pass; 0 if one may now."""
        return max((circuit.wait(member) for circuit, member in self._of(caller)), default=0.0)

    def admit(self, caller: Caller, limits: schema.Breaker, *, counts: bool = True) -> Trial | None:
        """A request's leave to pass, or None. Whoever gets one must tell how it ended.

        What becomes of one that does not count (copies, judges: nobody asked for them) says nothing, either way.
        """
        if not self._circuits:
            return Trial(self, caller, limits, counts)
        self._forget(caller)
        circuits = list(self._of(caller))
        for circuit, member in circuits:
            circuit.cooldown = limits.cooldown
            if circuit.wait(member) > 0 or not (counts or circuit.closed):
                return None
        trial = Trial(self, caller, limits, counts)
        for circuit, _ in circuits:
            circuit.lets(trial)
        return trial

    def proven(self) -> None:
        """The target has shown that it serves again: no probe need wait for the end of the cooldown."""
        for circuit in self._circuits.values():
            circuit.proven()

    def _succeeded(self, trial: Trial) -> None:
        for circuit, member in self._of(trial.caller):
            circuit.succeeded(trial, member)

    def _failed(self, trial: Trial) -> None:
        tenant, key_id = trial.caller
        for scope in (Scope(tenant, key_id), Scope(tenant), EVERYBODY):
            if scope not in self._circuits:
                self._make(scope)
        for circuit, member in self._of(trial.caller):
            circuit.failed(trial, member, trial.limits)
        self._calm_at = max(self._calm_at, self._clock() + trial.limits.window)

    def _let_go(self, trial: Trial) -> None:
        for circuit, _ in self._of(trial.caller):
            circuit.let_go(trial)

    def _of(self, caller: Caller) -> Iterator[tuple[Circuit, str | None]]:
        """The circuits that ``caller`` is on, and as which member of each."""
        if not self._circuits:
            return
        tenant, key_id = caller
        for scope, member in ((Scope(tenant, key_id), None), (Scope(tenant), key_id), (EVERYBODY, tenant)):
            if (circuit := self._circuits.get(scope)) is not None:
                yield circuit, member

    def _make(self, scope: Scope) -> None:
        def changed(failures: int, cooldown: float) -> None:
            self._on_change(scope, failures, cooldown)

        if len(self._circuits) > 2 * MOST:
            oldest = next(one for one in self._circuits if one != EVERYBODY)
            self._circuits.pop(oldest).close()
        self._circuits[scope] = Circuit(self._clock, changed, alone=scope.key_id is not None)

    def _forget(self, caller: Caller) -> None:
        """Whoever met failures once and has not come back is no longer watched; ``caller`` has."""
        now = self._clock()
        if now < self._calm_at:
            return
        self._calm_at = now + 1.0
        present = {Scope(*caller), Scope(caller.tenant), EVERYBODY}
        for scope in [scope for scope, circuit in self._circuits.items() if circuit.is_over(now)]:
            if scope not in present or self._circuits[scope].closed:
                self._circuits.pop(scope).close()


class Trial:
    """One request's pass. The first word on how it ended counts, later ones do not."""

    __slots__ = ("_breaker", "caller", "counts", "limits")

    def __init__(self, breaker: Breaker, caller: Caller, limits: schema.Breaker, counts: bool) -> None:
        self._breaker: Breaker | None = breaker
        self.caller = caller
        self.limits = limits
        self.counts = counts

    def succeeded(self) -> None:
        if (breaker := self._ended()) is not None:
            breaker._succeeded(self)

    def failed(self) -> None:
        if (breaker := self._ended()) is not None:
            breaker._failed(self)

    def let_go(self) -> None:
        """It ended for reasons that are not the target's."""
        if (breaker := self._ended()) is not None:
            breaker._let_go(self)

    def _ended(self) -> Breaker | None:
        breaker, self._breaker = self._breaker, None
        return breaker if self.counts else None
