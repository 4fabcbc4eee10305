"""Who is under quotas and budgets."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.policy.schema import Budget, Key, Policy, QuotaSettings, Tenant, Tier


def owners(policy: Policy) -> Iterator[Key | Tenant | Tier]:
    """Everything that can have quotas and budgets."""
    yield from policy.keys_with_limits
    yield from policy.tenants.values()
    yield from policy.tiers.values()


def has_budgets(policy: Policy) -> bool:
    """The house's own, for evaluation, is one, too."""
    return policy.evaluation is not None or any(owner.budget != Budget() for owner in owners(policy))


def has_limits(policy: Policy) -> bool:
    """Whether anybody is under a quota or a budget."""
    return has_budgets(policy) or any(owner.quotas != QuotaSettings() for owner in owners(policy))


def has_calendar_limits(policy: Policy) -> bool:
    """Whether anybody is under a limit by the day or the month."""
    return has_budgets(policy) or any(owner.quotas.tokens_per_day is not None for owner in owners(policy))
