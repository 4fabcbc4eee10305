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
            "has no price in the policy or the catalogue: callers under a budget get 403 until it has one",
            "write it into `prices` (dollars for a million tokens), or a `default_price`",
        )
