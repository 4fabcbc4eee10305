from __future__ import annotations

from gateway.policy.schema import Budget, QuotaSettings
from gateway.quota import limits
from gateway.quota.limits import LimitsCache, limits_of
from gateway.types import Principal
from tests.fakes import policy

EVERYTHING = {
    "requests_per_minute": 1,
    "tokens_per_minute": 2,
    "tokens_per_day": 3,
    "concurrent_requests": 4,
}


def test_key_tenant_and_tier_at_once() -> None:
    made = policy(
        tenants={
            "acme": {"quotas": EVERYTHING, "budget": {"usd_per_day": 0.5}},
            "other": {"quotas": EVERYTHING},
        },
        tiers={"pro": {"quotas": {"requests_per_minute": 9}, "budget": {"usd_per_month": 2.0}}},
        on_store_failure="closed",
    )
    principal = Principal(
        "k", "acme", tier="pro", quotas=QuotaSettings(tokens_per_day=7), budget=Budget(usd_per_month=0.0)
    )
    found = limits_of(made, principal)
    assert [str(limit) for limit in found.each] == [
        "key 'k': 7 tokens per day",
        "key 'k': $0 per month",
        "tenant 'acme': 1 requests per minute",
        "tenant 'acme': 2 tokens per minute",
        "tenant 'acme': 3 tokens per day",
        "tenant 'acme': 4 answers at once",
        "tenant 'acme': $0.5 per day",
        "tier 'pro': 9 requests per minute",
        "tier 'pro': $2 per month",
    ]
    assert len(set(found.keys)) == 9
    assert (found.tokens, found.dollars) == (found.each[3], found.each[1])
    assert found.on_store_failure == "closed"
    assert found.settles


def test_no_limits() -> None:
    found = limits_of(policy(tenants={"other": {"quotas": EVERYTHING}}), Principal("k", "acme"))
    assert not found
    assert not found.settles


def test_remembered_by_policy_and_caller() -> None:
    book, first, second = LimitsCache(), policy(), policy(tenants={"acme": {"quotas": EVERYTHING}})
    caller = Principal("k", "acme")
    assert not book.limits(first, caller)
    found = book.limits(second, caller)
    assert len(found.each) == 4
    assert book.limits(second, Principal("k", "acme")) is found
    assert not book.limits(first, caller), "a request keeps the policy that it began with"
    assert book.limits(second, caller) is found
    stricter = book.limits(second, Principal("k", "acme", quotas=QuotaSettings(tokens_per_day=1)))
    assert len(stricter.each) == 5


def test_memory_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(limits, "MOST_CALLERS", 10)
    book, made = LimitsCache(), policy()
    for i in range(100):
        book.limits(made, Principal(f"k{i}", "t"))
    assert len(book._pages[0][1]) <= 10
    for _ in range(9):
        book.limits(policy(), Principal("k", "t"))
    assert len(book._pages) == 2
