from __future__ import annotations

from typing import Any

import pytest

from gateway.policy.unshared_state import unshared_state
from tests.fakes import policy

BUDGET = {"tenants": {"a": {"budget": {"usd_per_day": 1.0}}}}
CACHES = {"caches": {"exact": {}}}
QUOTA = {"tiers": {"a": {"quotas": {"requests_per_minute": 1}}}}


@pytest.mark.parametrize(
    ("more", "workers", "told"),
    [
        (BUDGET, 2, ["quotas"]),
        (QUOTA, 2, ["quotas"]),
        (BUDGET, 1, []),
        (BUDGET | {"store": "redis://r"}, 2, []),
        (CACHES, 2, ["caches"]),
        (CACHES | QUOTA, 2, ["quotas", "caches"]),
        (CACHES | {"cache_store": "redis://r"}, 2, []),
        ({"tenants": {"a": {}}}, 2, []),
    ],
)
def test_workers_that_share_nothing_are_told(more: dict[str, Any], workers: int, told: list[str]) -> None:
    said = list(unshared_state(policy(**more), workers))
    assert [next(word for word in ("quotas", "caches") if word in one) for one in said] == told
    assert all("redis://" in one for one in said)
