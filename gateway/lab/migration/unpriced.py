"""Targets whose price nobody has told: the report says so, as a budget is worth nothing without one."""

from __future__ import annotations

from gateway.lab.migration.draft import PolicyDraft
from gateway.policy.prices import is_unpriced, targets
from gateway.policy.schema import Policy


def tell_unpriced(policy: Policy, draft: PolicyDraft) -> None:
    """``policy``: what was written, with the catalogue's prices."""
    names = sorted({f"{one.backend}/{one.model}" for one in targets(policy) if is_unpriced(policy, one)})
    for name in names:
        draft.report.changed(
            name,
            "has no price in the policy or the catalogue: callers under a budget get 403 until it has one, from "
            + ", ".join(f"`{model}`" for model in _models(policy, name)),
            "write it into `prices` (dollars for a million tokens), or a `default_price`",
        )


def _models(policy: Policy, target: str) -> list[str]:
    """Those that it may answer: also where it is only what they fall back on."""
    own = {
        name
        for name, model in policy.models.items()
        if any(f"{one.backend}/{one.model}" == target for one in model.targets)
    }
    others = [
        name
        for name, model in policy.models.items()
        if name not in own and own & {*model.fallbacks, model.larger_context}
    ]
    return sorted([*own, *others])
