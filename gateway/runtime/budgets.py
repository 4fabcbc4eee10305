"""Budgets, told to those whom the policy wants to hear of them."""

from __future__ import annotations

from gateway.observe.callbacks import Callbacks
from gateway.quota.budget_watch import BudgetReached, BudgetWatch
from gateway.quota.quotas import Quotas


async def watch_budgets(quotas: Quotas, callbacks: Callbacks) -> None:
    """Have ``callbacks`` hear of what is spent under ``quotas``, where a receiver wants to."""
    before, shares = quotas.budgets, callbacks.budget_shares
    if before is not None and before.shares == tuple(sorted(shares)) and before.tally is callbacks.tally:
        return

    def tell(reached: BudgetReached) -> None:
        limit = reached.limit
        callbacks.budget_reached(
            limit.scope,
            limit.owner,
            limit.window,
            reached.period,
            reached.share,
            nanodollars=reached.nanodollars,
            budget=limit.maximum,
        )

    quotas.budgets = BudgetWatch(shares, callbacks.tally, tell) if shares else None
    if before is not None:
        await before.aclose()
