"""Who is calling."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from gateway.policy.schema import Budget, QuotaSettings, Scope


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is calling: the key that proved it, its tenant and tier, the models it may name (glob patterns)."""

    key_id: str
    tenant: str
    models: tuple[str, ...] = ("*",)
    tier: str = "default"
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    """The key's own; its tenant's and tier's are in the policy."""
    budget: Budget = field(default_factory=Budget)
    scopes: tuple[Scope, ...] = ("inference",)
    residency: tuple[str, ...] = ()
    """The key's own regions, in which its requests stay; its tenant's and model's are in the policy."""

    def may_use(self, model: str) -> bool:
        return "*" in self.models or any(fnmatchcase(model, pattern) for pattern in self.models)


EVALUATION = "_evaluation"
"""The key of the house's whose budget judges of answers use up. No policy can name one so."""
