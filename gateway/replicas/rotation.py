"""How much of its share each replica gets, as one worker sees it: slow start and outlier ejection, by Envoy's rules.

https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/load_balancing/slow_start
https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import fmean, pstdev

from gateway.policy.members import Members
from gateway.policy.schema import Outliers, Policy, Replicas, Replicated

log = logging.getLogger(__name__)

LEAST = 0.1
"""The share with which a replica comes into service."""
_READY = -math.inf


@dataclass(slots=True)
class Standing:
    """What is known of one replica."""

    name: str
    since: float
    """When it came into service, or came back."""
    ejected_until: float = _READY
    ejections: int = 0
    """Of late: each makes the next one longer, and each interval without one the next shorter."""
    failures: int = 0
    """In a row."""
    counts: list[int] = field(default_factory=lambda: [0, 0])
    """Requests of this interval, and those that succeeded."""


class Group:
    """The replicas of one backend."""

    def __init__(self, backend: str, settings: Replicas, clock: Callable[[], float]) -> None:
        self.settings = settings
        self.standings: dict[str, Standing] = {}
        self._backend = backend
        self._clock = clock
        self._compare_at = _READY

    def update(self, names: list[str]) -> None:
        """The first ones that are known have no others to spare them: they start with their whole share."""
        now = self._clock()
        since = now if self.standings else _READY
        self.standings = {name: self.standings.get(name) or Standing(name, since) for name in names}

    def share(self, one: Standing) -> float:
        now = self._clock()
        if now < one.ejected_until:
            return 0.0
        since = max(one.since, one.ejected_until)
        ramp = self.settings.slow_start
        if now - since >= ramp:
            return 1.0
        return max(LEAST, (now - since) / ramp)

    def ended(self, name: str, *, well: bool) -> None:
        one, rules = self.standings.get(name), self.settings.outliers
        if one is None or rules is None:
            return
        now = self._clock()
        if now >= self._compare_at:
            self._compare(rules, now)
        one.counts[0] += 1
        one.counts[1] += well
        one.failures = 0 if well else one.failures + 1
        if one.failures >= rules.consecutive_5xx:
            self._eject(one, rules, now, f"{one.failures} requests in a row failed")

    def returned(self, name: str) -> None:
        one = self.standings.get(name)
        if one is not None:
            one.since, one.failures = self._clock(), 0

    def _compare(self, rules: Outliers, now: float) -> None:
        """The success rates of the interval that ends."""
        if self._compare_at != _READY:
            rates = {
                one.name: one.counts[1] / one.counts[0]
                for one in self.standings.values()
                if one.counts[0] >= rules.success_rate_request_volume and now >= one.ejected_until
            }
            if len(rates) >= rules.success_rate_minimum_hosts:
                bound = fmean(rates.values()) - rules.success_rate_stdev_factor * pstdev(rates.values())
                for name, rate in rates.items():
                    if rate < bound:
                        why = f"{rate:.1%} of its requests succeeded, and {bound:.1%} is the least"
                        self._eject(self.standings[name], rules, now, why)
            for one in self.standings.values():
                if now >= one.ejected_until:
                    one.ejections = max(0, one.ejections - 1)
        for one in self.standings.values():
            one.counts = [0, 0]
        self._compare_at = now + rules.interval

    def _eject(self, one: Standing, rules: Outliers, now: float, why: str) -> None:
        out = sum(now < other.ejected_until for other in self.standings.values())
        most = max(1, int(len(self.standings) * rules.max_ejection_percent / 100))
        if now < one.ejected_until or out >= most or out >= len(self.standings) - 1:
            return
        one.ejections += 1
        seconds = min(rules.base_ejection_time * one.ejections, rules.max_ejection_time)
        one.ejected_until, one.failures = now + seconds, 0
        log.warning(
            "replica '%s' of backend '%s' gets no requests for %g s: %s",
            one.name,
            self._backend,
            seconds,
            why,
        )


class GroupWatcher:
    """Who looks on at the requests to one replica (``gateway.fallback.circuit_breaker.Watcher``)."""

    def __init__(self, rotation: Rotation, name: str) -> None:
        self._rotation = rotation
        self._name = name

    def succeeded(self) -> None:
        if (group := self._rotation.group_of(self._name)) is not None:
            group.ended(self._name, well=True)

    def failed(self) -> None:
        if (group := self._rotation.group_of(self._name)) is not None:
            group.ended(self._name, well=False)

    def returned(self) -> None:
        if (group := self._rotation.group_of(self._name)) is not None:
            group.returned(self._name)


class Rotation:
    """Of all backends that have replicas. ``zone`` is the gateway's own."""

    def __init__(self, zone: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.zone = zone
        self._clock = clock
        self._groups: dict[str, Group] = {}
        self._of: dict[str, Group] = {}

    def update(self, policy: Policy, members: Members) -> None:
        groups: dict[str, Group] = {}
        for backend, its in members.items():
            config = policy.backends[backend]
            if isinstance(config, Replicated) and config.replicas is not None:
                group = groups[backend] = self._groups.get(backend) or Group(
                    backend, config.replicas, self._clock
                )
                group.settings = config.replicas
                group.update([member.name for member in its])
        self._groups = groups
        self._of = {name: group for group in groups.values() for name in group.standings}

    def share(self, name: str) -> float:
        group = self._of.get(name)
        return 1.0 if group is None else group.share(group.standings[name])

    def group_of(self, name: str) -> Group | None:
        return self._of.get(name)

    def watcher(self, backend: str) -> GroupWatcher | None:
        return GroupWatcher(self, backend) if backend in self._of else None

    def shares(self) -> Iterator[tuple[tuple[str, str], float]]:
        """By backend and replica, the share that it has now."""
        for backend, group in self._groups.items():
            for name, one in group.standings.items():
                yield (backend, name), group.share(one)
