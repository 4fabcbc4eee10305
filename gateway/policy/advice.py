"""What a sound policy says and can hardly mean: no error, told by ``tollgate check`` and at the start."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.policy.local_advice import far_judges
from gateway.policy.prices import has_budgets, is_unpriced, owners
from gateway.policy.problems import Diagnostic
from gateway.policy.schema import Policy, Quotas


def advise(policy: Policy) -> Iterator[Diagnostic]:
    if has_budgets(policy):
        yield from _unpriced(policy)
    yield from far_judges(policy)


def _unpriced(policy: Policy) -> Iterator[Diagnostic]:
    """A budget holds what has a price."""
    effect = (
        "requests under a budget are refused"
        if policy.on_unpriced == "refuse"
        else "counts as free under every budget"
    )
    for name, model in policy.models.items():
        for index, target in enumerate(model.targets):
            if is_unpriced(policy, target):
                message = (
                    f"'{target.model}' has no price: {effect}. Write prices.{target.backend}/{target.model}, one for "
                    f"all of the backend ({target.backend}/*), or default_price"
                )
                yield Diagnostic(("models", name, "targets", index), message)


def has_limits(policy: Policy) -> bool:
    """Whether anybody is under a quota or a budget."""
    return has_budgets(policy) or any(owner.quotas != Quotas() for owner in owners(policy))


def has_calendar_limits(policy: Policy) -> bool:
    """Whether anybody is under a limit by the day or the month."""
    return has_budgets(policy) or any(owner.quotas.tokens_per_day is not None for owner in owners(policy))
