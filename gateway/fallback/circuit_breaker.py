"""A circuit breaker: a target that keeps failing gets no requests for a while, then a single one as a probe.

The states and their names are those of Nygard's "Release It!" (2nd edition, 2018, chapter 5). What is added is that
callers are distinguished: one who sends what a server fails on must not cost the others their answers.
A target that fails one caller opens its circuit for that one; for all of its tenant, or for everybody, once it fails
several, and would fail too often without any single one of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import NamedTuple, Protocol

from gateway.policy import schema

MAX_SCOPES = 1000
"""Tenants, and keys, with a circuit of their own; beyond that the oldest is dropped."""
PROBE_RETRY_AFTER = 1.0
"""Seconds after which to try again while the probe is in flight, which may take any time."""
MAX_MEMBERS = 1000
"""Counted each on its own; those beyond are counted as one."""
MIN_OTHERS_FAILED = 2
"""Failures of members other than the worst: one is chance."""


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
        self._incident: str | None = None
        """The last that was counted."""

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

    def close(self) -> None:
        """Forget what failed."""
        for circuit in self._circuits.values():
            circuit.close()
        self._circuits.clear()

    def copied(self) -> Breaker:
        """One in the same state, to be asked what this one would say: what becomes of it changes nothing here, and
        nobody is told."""
        copy = Breaker(self._clock)
        for scope, circuit in self._circuits.items():
            copy._circuits[scope] = circuit.copied()
        copy._sweep_at = self._sweep_at
        return copy

    def _succeeded(self, permit: Permit) -> None:
        if not self._circuits:
            return
        for circuit, member in self._of(permit.caller):
            circuit.succeeded(permit, member)

    def _failed(self, permit: Permit, incident: str | None) -> None:
        if incident is not None:
            if incident == self._incident:
                self._release(permit)
                return
            self._incident = incident
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


class Watcher(Protocol):
    """Who looks on at how the requests to a target end."""

    def succeeded(self) -> None: ...
    def failed(self) -> None: ...
    def returned(self) -> None:
        """Everybody may ask it again."""
        ...


class WatchedBreaker(Breaker):
    """One at which somebody looks on."""

    def __init__(self, clock: Callable[[], float], on_change: OnChange, watcher: Watcher) -> None:
        def changed(scope: Scope, failures: int, cooldown: float) -> None:
            if scope == EVERYBODY and not failures:
                watcher.returned()
            on_change(scope, failures, cooldown)

        super().__init__(clock, changed)
        self._watcher = watcher

    def _succeeded(self, permit: Permit) -> None:
        self._watcher.succeeded()
        super()._succeeded(permit)

    def _failed(self, permit: Permit, incident: str | None) -> None:
        self._watcher.failed()
        super()._failed(permit, incident)


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

    def failed(self, incident: str | None = None) -> None:
        """``incident``: the event that also ends others, which counts once."""
        if (breaker := self._ended()) is not None:
            breaker._failed(self, incident)

    def release(self) -> None:
        """The request ended for reasons that are not the target's."""
        if (breaker := self._ended()) is not None:
            breaker._release(self)

    def _ended(self) -> Breaker | None:
        breaker, self._breaker = self._breaker, None
        return breaker if self.counts else None


class Circuit:
    """The outcomes of its members' requests, and whether more of them may pass.

    Closed, everything passes; open, nothing; half-open, once the cooldown is over, a single probe.

    The outcome of a request from before it opened is ignored: only the probe's counts.
    """

    def __init__(
        self, clock: Callable[[], float], on_change: Callable[[int, float], None], *, alone: bool
    ) -> None:
        """``alone``: its only member is enough to open it. ``on_change`` takes the failures and the cooldown when it
        opens, 0 failures when it closes."""
        self.cooldown = 0.0
        """Seconds for which it stays open."""
        self._clock = clock
        self._on_change = on_change
        self._alone = alone
        self._window = _Window()
        self._opened: float | None = None
        self._seen = clock()
        self._probe: object | None = None
        self._failed_prober: str | None = None
        """The member whose probe failed last. Its cooldown is its own: it could keep the circuit open for all."""

    @property
    def is_closed(self) -> bool:
        return self._opened is None

    def wait(self, member: str | None) -> float:
        """Seconds until a request of ``member`` may pass; 0 if one may now. None is anybody."""
        if self._opened is None:
            return 0.0
        left = self._opened + self.cooldown - self._clock()
        if left > 0 and (self._failed_prober is None or member is None or member == self._failed_prober):
            return left
        return PROBE_RETRY_AFTER if self._probe is not None else 0.0

    def admitted(self, permit: object) -> None:
        """``permit`` passes; the one that passes while it is not closed is the probe."""
        if self._opened is not None:
            self._probe = permit

    def succeeded(self, permit: object, member: str | None) -> None:
        self._seen = self._clock()
        if permit is self._probe:
            self.close()
        elif self._opened is None:
            self._window.add(member, self._seen, failed=False)

    def failed(self, permit: object, member: str | None, limits: schema.BreakerSettings) -> None:
        self._seen = self._clock()
        self.cooldown = limits.cooldown
        if permit is self._probe:
            self._probe = None
            self._opened = self._seen
            again = self._alone or self._failed_prober not in (None, member)
            self._failed_prober = None if again else member
        elif self._opened is None:
            self._window.span = limits.window
            self._window.add(member, self._seen, failed=True)
            if failures := self._window.trips(limits, alone=self._alone):
                self._opened = self._seen
                self._on_change(failures, limits.cooldown)

    def release(self, permit: object) -> None:
        if permit is self._probe:
            self._probe = None

    def recovered(self) -> None:
        """The target serves again."""
        if self._opened is not None:
            self._opened = float("-inf")

    def copied(self) -> Circuit:
        copy = Circuit(self._clock, lambda failures, cooldown: None, alone=self._alone)
        copy.cooldown, copy._opened, copy._seen = self.cooldown, self._opened, self._seen
        copy._probe, copy._failed_prober, copy._window = (
            self._probe,
            self._failed_prober,
            deepcopy(self._window),
        )
        return copy

    def close(self) -> None:
        """Reset all counts."""
        was_open = self._opened is not None
        self._probe = self._opened = self._failed_prober = None
        self._window.clear()
        if was_open:
            self._on_change(0, 0.0)

    def is_idle(self, now: float) -> bool:
        """Whether its window and cooldown have passed without a request."""
        return self._probe is None and now - self._seen > self._window.span + self.cooldown


class _Window:
    """How many requests of each member ended in the last ``span`` seconds or so, and how many of them had failed."""

    def __init__(self) -> None:
        self.span = 0.0
        self._now: dict[str | None, list[int]] = {}
        self._before: dict[str | None, list[int]] = {}
        """The window's two halves. The older one counts in full until it is dropped."""
        self._rotates_at = float("-inf")

    def add(self, member: str | None, at: float, *, failed: bool) -> None:
        if at >= self._rotates_at:
            recent = at < self._rotates_at + self.span / 2
            self._before, self._now = (self._now if recent else {}), {}
            self._rotates_at = at + self.span / 2
        if member not in self._now and len(self._now) >= MAX_MEMBERS:
            member = None
        counts = self._now.setdefault(member, [0, 0])
        counts[0] += 1
        counts[1] += failed

    def trips(self, limits: schema.BreakerSettings, *, alone: bool) -> int:
        """The failures, if they are too many: in number, in share, and that without any one of the members."""
        asked = failed = most = 0
        excess = 0.0
        for member in self._now.keys() | self._before.keys():
            of_one = [self._now.get(member, (0, 0)), self._before.get(member, (0, 0))]
            its, lost = sum(one[0] for one in of_one), sum(one[1] for one in of_one)
            asked, failed, most = asked + its, failed + lost, max(most, lost)
            excess = max(excess, lost - limits.share * its)
        if failed < limits.failures or failed < limits.share * asked:
            return 0
        others = (
            failed - most >= min(MIN_OTHERS_FAILED, limits.failures)
            and failed - limits.share * asked >= excess
        )
        return failed if alone or others else 0

    def clear(self) -> None:
        self._now, self._before = {}, {}
