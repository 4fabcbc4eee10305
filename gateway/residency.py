"""Where a request's content may go: to the regions that the policy, its tenant, its key and its model all name.

A place of which no region is stated is in none. What the gateway keeps itself, in memory and in its own folders, is
where the gateway is.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.errors import Forbidden
from gateway.policy.schema import Policy
from gateway.types import Call, Principal

CODE = "residency"
"""Of the error for a request that can be served nowhere."""


def narrowed(within: frozenset[str] | None, named: Collection[str]) -> frozenset[str] | None:
    """Of the regions ``within`` those that are ``named``, too, where any are."""
    if not named:
        return within
    return frozenset(named) if within is None else within.intersection(named)


def stays_in(*named: Collection[str]) -> list[str] | None:
    """The regions that all who name any have in common, for people; None: anywhere. Empty: nowhere."""
    within: frozenset[str] | None = None
    for regions in named:
        within = narrowed(within, regions)
    return None if within is None else sorted(within)


def residency_of(call: Call) -> frozenset[str] | None:
    """The regions to which the content of ``call`` may go; None: anywhere. Empty: nowhere."""
    policy = call.policy
    if not policy.has_residency:
        return None
    within = allowed(policy, call.principal, call.request.model)
    if call.residency is None or within is None:
        return call.residency if within is None else within
    return call.residency & within


def allowed(policy: Policy, principal: Principal, model: str) -> frozenset[str] | None:
    """The same of what ``principal`` asks of ``model``, by any of its names."""
    within = narrowed(narrowed(None, policy.residency), principal.residency)
    if (tenant := policy.tenants.get(principal.tenant)) is not None:
        within = narrowed(within, tenant.residency)
    if (known := policy.resolve(model)) is not None:
        within = narrowed(within, policy.models[known].residency)
    return within


def is_outside(call: Call, region: str | None) -> bool:
    """Whether the content of ``call`` may not go to a place in ``region``."""
    within = residency_of(call)
    return within is not None and region not in within


def nowhere_within(model: str, within: frozenset[str]) -> Forbidden:
    if not within:
        return Forbidden(
            f"What this key, its tenant, the model '{model}' and what it continues say of the regions to which content "
            "may go has none in common. Choose another model, or ask the operator, in whose policy it is 'residency'.",
            param="model",
            code=CODE,
        )
    where = " or ".join(f"'{region}'" for region in sorted(within))
    return Forbidden(
        f"This request is to stay in region {where}, and the model '{model}' has no backend there. "
        "Choose another model, or ask the operator for a target or fallback on a backend of that region.",
        param="model",
        code=CODE,
    )
