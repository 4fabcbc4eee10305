"""The limits of a caller: those of its key, its tenant and its tier, all at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from gateway.metering.price import NANO
from gateway.metering.window_usage import WindowUsage
from gateway.policy.schema import Budget, Policy, QuotaSettings
from gateway.quota.groups import TIERS, group_of
from gateway.types import EVALUATION, HOUSE, Principal

Scope = Literal["key", "tenant", "tier"]
Quantity = Literal["requests", "tokens", "dollars", "concurrent"]
Window = Literal["minute", "day", "month", "now"]
"""``minute`` slides; ``day`` and ``month`` are UTC's; ``now`` counts requests in flight."""
Rule = tuple[Window, str, int, int]
"""A limit as counters need it: window, key, column in ``Amounts``, maximum."""

CONCURRENT = 3
"""The column of answers at once: all are free again when their request has ended."""
MOST_CALLERS = 10_000
"""Whose limits are cached; tokens of a JWT issuer can name any number of callers."""


class Amounts(NamedTuple):
    """What one request reserves, or used."""

    requests: int
    tokens: int
    nanodollars: int
    answers: int = 0
    """Slots of the limit on concurrent answers. They are free once the request has ended."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most ``maximum`` of ``quantity`` in a ``window``, over all that ``owner`` sends. Dollars are in nano-dollars.

    A tier's limit is one bucket for all of the tier.
    """

    scope: Scope
    owner: str
    quantity: Quantity
    window: Window
    maximum: int

    @property
    def key(self) -> str:
        """Its key in a store; unambiguous, as only the owner's name can contain a colon."""
        # Of a minute, "minute" had slots of 5 s: a gateway of that time may share the store while it is replaced.
        return (
            f"{self.scope}:{self.owner}:{self.quantity}:{'60s' if self.window == 'minute' else self.window}"
        )

    @property
    def column(self) -> int:
        """The index of its quantity in ``Amounts``."""
        return {"tokens": 1, "dollars": 2, "concurrent": CONCURRENT}.get(self.quantity, 0)

    def amount(self, amounts: Amounts) -> int:
        return amounts[self.column]

    def __str__(self) -> str:
        if self.quantity == "dollars":
            what = f"${self.maximum / NANO:,.10g} per {self.window}"
        else:
            what = f"{self.maximum:,} " + (
                "answers at once" if self.window == "now" else f"{self.quantity} per {self.window}"
            )
        return f"{self.scope} '{self.owner}': {what}"


@dataclass(frozen=True)
class Limits:
    """All limits of one caller, and what follows from them. Falsy when there are none."""

    each: tuple[Limit, ...]
    on_store_failure: Literal["open", "closed", "local"] = "local"
    strict: bool = False
    """Token limits must not be exceeded at all."""
    group: str = ""
    """Callers of different groups share no limit (``gateway/quota/groups.py``)."""

    def __bool__(self) -> bool:
        return bool(self.each)

    @cached_property
    def tokens(self) -> Limit | None:
        """The smallest token limit."""
        return self._smallest("tokens")

    @cached_property
    def dollars(self) -> Limit | None:
        """The smallest budget."""
        return self._smallest("dollars")

    @cached_property
    def concurrent(self) -> Limit | None:
        """The smallest limit on concurrent answers."""
        return self._smallest("concurrent")

    @cached_property
    def settles(self) -> bool:
        """Whether anything must be corrected once a request has ended; a count of requests is final."""
        return any(limit.quantity != "requests" for limit in self.each)

    @cached_property
    def ratelimit_headers(self) -> tuple[tuple[tuple[str, str, str], tuple[tuple[int, int, str], ...]], ...]:
        """Of the x-ratelimit headers: their names, and each limit's index, maximum and the maximum's text."""
        found = []
        for quantity in ("requests", "tokens"):
            limits = tuple(
                (i, limit.maximum, str(limit.maximum))
                for i, limit in enumerate(self.each)
                if limit.window == "minute" and limit.quantity == quantity
            )
            if limits:
                limit, remaining, reset = (
                    f"x-ratelimit-{what}-{quantity}" for what in ("limit", "remaining", "reset")
                )
                found.append(((limit, remaining, reset), limits))
        return tuple(found)

    @cached_property
    def of_spending(self) -> Limits:
        """Those on tokens and dollars, for what is sent on account of a request (a shadow copy, a judge's question)."""
        each = tuple(limit for limit in self.each if limit.quantity in ("tokens", "dollars"))
        return replace(self, each=each)

    @cached_property
    def of_batches(self) -> Limits:
        """Those by the day and the month, for lines of batches: limits by the minute and on concurrency are there to
        keep one caller from taking capacity that others want, which lines never get."""
        each = tuple(limit for limit in self.each if limit.window in ("day", "month"))
        return replace(self, each=each)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        return tuple(limit.key for limit in self.each)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """For each limit."""
        return tuple((limit.window, limit.key, limit.column, limit.maximum) for limit in self.each)

    @cached_property
    def windows(self) -> str:
        return " ".join(limit.window for limit in self.each)

    @cached_property
    def columns(self) -> str:
        return " ".join(str(limit.column) for limit in self.each)

    @cached_property
    def maxima(self) -> str:
        return " ".join(str(limit.maximum) for limit in self.each)

    def _smallest(self, quantity: Quantity) -> Limit | None:
        found = (limit for limit in self.each if limit.quantity == quantity)
        return min(found, key=lambda limit: limit.maximum, default=None)


def counted(spent: Iterable[WindowUsage]) -> Mapping[tuple[str, Window], int]:
    """The usage of each possible limit, by its key and window; a tenant's is that of all its keys."""
    sums: dict[tuple[str, Window], int] = {}
    for one in spent:
        owners: tuple[tuple[Scope, str], ...] = (
            ("key", one.key_id),
            ("tenant", one.tenant),
            ("tier", one.tier),
        )
        amounts: tuple[tuple[Quantity, int], ...] = (("tokens", one.tokens), ("dollars", one.nanodollars))
        for scope, owner in owners:
            for quantity, amount in amounts:
                name = (Limit(scope, owner, quantity, one.window, 0).key, one.window)
                sums[name] = sums.get(name, 0) + amount
    return {name: amount for name, amount in sums.items() if amount}


def limits_of(policy: Policy, principal: Principal) -> Limits:
    owners: list[tuple[Scope, str, QuotaSettings, Budget]] = [
        ("key", principal.key_id, principal.quotas, principal.budget)
    ]
    if (tenant := policy.tenants.get(principal.tenant)) is not None:
        owners.append(("tenant", principal.tenant, tenant.quotas, tenant.budget))
    if (tier := policy.tiers.get(principal.tier)) is not None:
        owners.append(("tier", principal.tier, tier.quotas, tier.budget))
    each = tuple(limit for owner in owners for limit in _limits(*owner))
    group = group_of(policy, principal.tenant, principal.tier)
    return Limits(each, policy.on_store_failure, any(quotas.strict for _, _, quotas, _ in owners), group)


def calendar_groups(policy: Policy) -> Mapping[str, str]:
    """The keys of all limits by the day or month, and the group of each."""
    owners: list[tuple[Scope, str, QuotaSettings, Budget, str]] = [
        *(
            ("key", key.id, key.quotas, key.budget, group_of(policy, key.tenant, key.tier))
            for key in policy.keys_with_limits
        ),
        *(
            ("tenant", name, tenant.quotas, tenant.budget, group_of(policy, name, tenant.tier))
            for name, tenant in policy.tenants.items()
        ),
        *(("tier", name, tier.quotas, tier.budget, TIERS) for name, tier in policy.tiers.items()),
    ]
    if (evaluation := policy.evaluation) is not None:
        group = group_of(policy, HOUSE, HOUSE)
        owners.append(("key", EVALUATION, QuotaSettings(), evaluation.budget, group))
    return {
        limit.key: group
        for scope, owner, quotas, budget, group in owners
        for limit in _limits(scope, owner, quotas, budget)
        if limit.window in ("day", "month")
    }


def _limits(scope: Scope, owner: str, quotas: QuotaSettings, budget: Budget) -> Iterator[Limit]:
    limited: tuple[tuple[Quantity, Window, int | None], ...] = (
        ("requests", "minute", quotas.requests_per_minute),
        ("tokens", "minute", quotas.tokens_per_minute),
        ("tokens", "day", quotas.tokens_per_day),
        ("concurrent", "now", quotas.concurrent_requests),
        ("dollars", "day", _nanodollars(budget.usd_per_day)),
        ("dollars", "month", _nanodollars(budget.usd_per_month)),
    )
    for quantity, window, maximum in limited:
        if maximum is not None:
            yield Limit(scope, owner, quantity, window, maximum)


def _nanodollars(dollars: float | None) -> int | None:
    return None if dollars is None else round(dollars * NANO)


_Page = dict[tuple[str, str, str], tuple[Principal, Limits]]


class LimitsCache:
    """The limits of each caller under the two policies used last, so that a request only looks them up."""

    def __init__(self) -> None:
        self._pages: list[tuple[Policy, _Page]] = []

    def limits(self, policy: Policy, principal: Principal) -> Limits:
        known, page = self._pages[0] if self._pages else (None, {})
        if known is not policy:
            page = self._page(policy)
        name = (principal.key_id, principal.tenant, principal.tier)
        found = page.get(name)
        if found is not None and (found[0] is principal or found[0] == principal):
            return found[1]
        limits = limits_of(policy, principal)
        if len(page) >= MOST_CALLERS:
            page.clear()
        page[name] = (principal, limits)
        return limits

    def _page(self, policy: Policy) -> _Page:
        page = next((page for known, page in self._pages if known is policy), None)
        if page is None:
            page = {}
            self._pages = [(policy, page), *self._pages[:1]]
        return page
