"""The scanner that each kind of guard needs."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.guards.injection import injection
from gateway.guards.length import Length
from gateway.guards.pii import Pii
from gateway.guards.scanner import Scanner
from gateway.guards.secrets import Secrets
from gateway.guards.tiers import Judge
from gateway.guards.topics import Topics
from gateway.guards.toxicity import toxicity
from gateway.policy import schema
from gateway.policy.schema import Policy
from gateway.sidecar.api import Sidecar


def build_scanners(policy: Policy, sidecar: Sidecar, judges: Mapping[str, Judge]) -> dict[str, Scanner]:
    """By the guard's name; ``judges`` are those of the guards that name one."""
    return {name: build_scanner(guard, sidecar, judges.get(name)) for name, guard in policy.guards.items()}


def build_scanner(guard: schema.Guard, sidecar: Sidecar, judge: Judge | None) -> Scanner:
    """That of one guard."""
    match guard:
        case schema.PiiGuard():
            return Pii(guard, sidecar)
        case schema.SecretsGuard():
            return Secrets(guard)
        case schema.InjectionGuard():
            return injection(guard, sidecar, judge)
        case schema.ToxicityGuard():
            return toxicity(guard, sidecar, judge)
        case schema.TopicsGuard():
            return Topics(guard)
        case schema.LengthGuard():
            return Length(guard)
