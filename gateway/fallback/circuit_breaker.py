"""A circuit breaker: a target that keeps failing gets no requests for a while, then a single one as a probe.

The states and their names are those of Nygard's "Release It!" (2nd edition, 2018, chapter 5). What is added is that
callers are distinguished: one who sends what a server fails on must not cost the others their answers.
A target that fails one caller opens its circuit for that one; for all of its tenant, or for everybody, once it fails
several, and would fail too often without any single one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gateway.fallback.circuit import Circuit
from gateway.policy import schema

MAX_SCOPES = 1000
"""Tenants, and keys, with a circuit of their own; beyond that the oldest is dropped."""


class Caller(NamedTuple):
    tenant: str
    key_id: str


class Scope(NamedTuple):
    """For whom a circuit is open: a key, all of a tenant's (no key), everybody (no tenant)."""

    tenant: str | None = None
    key_id: str | None = None


EVERYBODY = Scope()

OnChange = Callable[[Scope, int, float], None]
"""Takes the scope, the failures in the window and the cooldown in seconds; no failures means that it closed."""


class Breaker:
    """One target's circuits. While nothing fails there are none."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_change: OnChange = lambda scope, failures, cooldown: None,
    ) -> None:
        self._clock = clock
        self._on_change = on_change
        self._circuits: dict[Scope, Circuit] = {}
        """Created by failures; the oldest first."""
        self._sweep_at = 0.0
        """When to drop idle ones next."""

    @property
    def is_closed(self) -> bool:
        """For everybody."""
        return all(circuit.is_closed for circuit in self._circuits.values())

    @property
    def is_open(self) -> bool:
        """For everybody."""
        circuit = self._circuits.get(EVERYBODY)
        return circuit is not None and circuit.wait(None) > 0

    def open_scopes(self) -> Iterator[tuple[Scope, float]]:
        """Whom it refuses now, and for how many seconds more."""
        for scope, circuit in self._circuits.items():
            if (seconds := circuit.wait(None)) > 0:
                yield scope, seconds

    def wait(self, caller: Caller) -> float:
        """Seconds until a request of ``caller`` may pass; 0 if one may now."""
        return max((circuit.wait(member) for circuit, member in self._of(caller)), default=0.0)

    def acquire(
        self, caller: Caller, limits: schema.BreakerSettings, *, counts: bool = True
    ) -> Permit | None:
        """A permit for a request, or None while the circuit is open. Its holder must report how the request ended.

        The outcome of one that does not count (shadow copies, judges) is ignored.
        """
        if not self._circuits:
            return Permit(self, caller, limits, counts)
        self._drop_idle(caller)
        circuits = list(self._of(caller))
        for circuit, member in circuits:
            circuit.cooldown = limits.cooldown
            if circuit.wait(member) > 0 or not (counts or circuit.is_closed):
                return None
        permit = Permit(self, caller, limits, counts)
        for circuit, _ in circuits:
            circuit.admitted(permit)
        return permit

    def recovered(self) -> None:
        """The target serves again: a probe may pass before the end of the cooldown."""
        for circuit in self._circuits.values():
            circuit.recovered()

    def _succeeded(self, permit: Permit) -> None:
        if not self._circuits:
            return
        for circuit, member in self._of(permit.caller):
            circuit.succeeded(permit, member)

    def _failed(self, permit: Permit) -> None:
        tenant, key_id = permit.caller
        for scope in (Scope(tenant, key_id), Scope(tenant), EVERYBODY):
            if scope not in self._circuits:
                self._make(scope)
        for circuit, member in self._of(permit.caller):
            circuit.failed(permit, member, permit.limits)
        self._sweep_at = max(self._sweep_at, self._clock() + permit.limits.window)

    def _release(self, permit: Permit) -> None:
        if not self._circuits:
            return
        for circuit, _ in self._of(permit.caller):
            circuit.release(permit)

    def _of(self, caller: Caller) -> Iterator[tuple[Circuit, str | None]]:
        """The circuits of ``caller``, and as which member it counts in each."""
        if not self._circuits:
            return
        tenant, key_id = caller
        for scope, member in ((Scope(tenant, key_id), None), (Scope(tenant), key_id), (EVERYBODY, tenant)):
            if (circuit := self._circuits.get(scope)) is not None:
                yield circuit, member

    def _make(self, scope: Scope) -> None:
        def changed(failures: int, cooldown: float) -> None:
            self._on_change(scope, failures, cooldown)

        if len(self._circuits) > 2 * MAX_SCOPES:
            oldest = next(one for one in self._circuits if one != EVERYBODY)
            self._circuits.pop(oldest).close()
        self._circuits[scope] = Circuit(self._clock, changed, alone=scope.key_id is not None)

    def _drop_idle(self, caller: Caller) -> None:
        """Drop the circuits of callers that have not come back since they met failures; ``caller`` has."""
        now = self._clock()
        if now < self._sweep_at:
            return
        self._sweep_at = now + 1.0
        present = {Scope(*caller), Scope(caller.tenant), EVERYBODY}
        for scope in [scope for scope, circuit in self._circuits.items() if circuit.is_idle(now)]:
            if scope not in present or self._circuits[scope].is_closed:
                self._circuits.pop(scope).close()


class Permit:
    """One request's. The first report on how it ended counts."""

    __slots__ = ("_breaker", "caller", "counts", "limits")

    def __init__(
        self, breaker: Breaker, caller: Caller, limits: schema.BreakerSettings, counts: bool
    ) -> None:
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

    def release(self) -> None:
        """The request ended for reasons that are not the target's."""
        if (breaker := self._ended()) is not None:
            breaker._release(self)

    def _ended(self) -> Breaker | None:
        breaker, self._breaker = self._breaker, None
        return breaker if self.counts else None
