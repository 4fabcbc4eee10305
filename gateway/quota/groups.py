"""Whose limits are counted together: all limits of one request lie in one part of a cluster.

A tenant and its keys are a group, as its limits are of all that its keys send. A tier's limits are one bucket for all
of its tenants, so these are one group together: of a policy whose tiers have limits of their own, fewer tenants spread.
"""

from __future__ import annotations

from gateway.policy.schema import DEFAULT_TIER, Policy

TIERS = " tiers"
"""No tenant's name."""


def group_of(policy: Policy, tenant: str, tier: str | None) -> str:
    """Of a caller; ``tier`` is its own, if it names one.

    A tenant's group never depends on the key: one whose keys are of several tiers is with those of limited tiers.
    """
    limited = policy.limited_tiers
    if not limited:
        return tenant
    known = policy.tenants.get(tenant)
    usual = (known.tier if known is not None else None) or DEFAULT_TIER
    together = (
        policy.jwt or usual in limited or tier in limited or tenant in policy.tenants_under_limited_tiers
    )
    return TIERS if together else tenant
