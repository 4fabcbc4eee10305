"""What is known of a candidate, looked up once: a policy's words on its backend and its model, and their health."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.fallback.circuit_breaker import Breaker
from gateway.fallback.health import BackendHealth, HealthRegistry
from gateway.policy.schema import AnyBackend, EngineBackend, Policy, Retry
from gateway.types import Candidate

_REMEMBERED = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Hop:
    candidate: Candidate
    backend: AnyBackend
    is_engine: bool
    """The bundled engine, which heeds a call's priority itself."""
    retry: Retry
    health: BackendHealth
    """Of the backend."""
    breaker: Breaker
    """Of the target."""
    facts: Mapping[str, str]
    """For the receipt of an attempt."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedAttempt:
    """A candidate, and how often it has failed for a call.

    With ``restart`` it is asked for the whole answer again, not for a continuation.
    """

    hop: Hop
    failures: int = 0
    restart: bool = False

    @property
    def candidate(self) -> Candidate:
        return self.hop.candidate


class Hops:
    """Those of one policy generation. Routing makes a candidate once for many calls: it is known by its identity."""

    def __init__(self, policy: Policy, health: HealthRegistry) -> None:
        self.health = health
        self._policy = policy
        self._first: dict[int, PlannedAttempt] = {}

    def first(self, candidate: Candidate) -> PlannedAttempt:
        """The first attempt at ``candidate``."""
        planned = self._first.get(id(candidate))
        if planned is None:
            if len(self._first) >= _REMEMBERED:
                self._first.clear()
            # It holds its candidate, so that no other one takes the identity.
            planned = self._first[id(candidate)] = PlannedAttempt(self._made(candidate))
        return planned

    def _made(self, candidate: Candidate) -> Hop:
        target, policy, health = candidate.target, self._policy, self.health
        backend = policy.backends[target.backend]
        return Hop(
            candidate,
            backend,
            isinstance(backend, EngineBackend),
            policy.models[candidate.model].retry,
            health[target.backend],
            health.breaker(target),
            {"backend": target.backend, "model": target.model}
            | ({} if candidate.why == "primary" else {"why": candidate.why}),
        )
