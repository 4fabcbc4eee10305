from __future__ import annotations

from typing import Any

import pytest

from gateway.admission.fair_queue import QueueTerms
from gateway.admission.pool import Pool
from gateway.admission.shedding import saturation_action, shed, terms
from gateway.errors import Overloaded
from gateway.policy.schema import OnSaturation
from tests.fakes import policy
from tests.gateway.admission.test_pool import Clock, take

WAIT = OnSaturation(action="wait", at=1.0)
SHED = OnSaturation(action="shed", at=0.9)


@pytest.mark.parametrize(
    ("tiers", "name", "rule"),
    [
        pytest.param({}, "free", WAIT, id="no tiers"),
        pytest.param({"free": {}}, "free", WAIT, id="one tier"),
        pytest.param({"a": {}, "b": {}}, "a", WAIT, id="one priority"),
        pytest.param({"free": {}, "pro": {"priority": 1}}, "free", WAIT, id="the lowest"),
        pytest.param({"free": {}, "pro": {"priority": 1}}, "pro", WAIT, id="not the lowest"),
        pytest.param({"free": {}, "pro": {"priority": 1}}, "default", WAIT, id="one not described"),
        pytest.param(
            {"free": {"on_saturation": {"action": "wait", "at": 0.7}}, "pro": {"priority": 1}},
            "free",
            OnSaturation(action="wait", at=0.7),
            id="its own",
        ),
        pytest.param(
            {"free": {"on_saturation": {"action": "downgrade", "to": "m"}}, "pro": {"priority": 1}},
            "free",
            OnSaturation(action="downgrade", at=0.9, to="m"),
            id="downgrade",
        ),
    ],
)
def test_the_rule_of_a_tier(tiers: dict[str, Any], name: str, rule: OnSaturation) -> None:
    assert saturation_action(policy(tiers=tiers), name) == rule


def test_who_waits_leaves_the_last_share_to_others() -> None:
    rules = policy(tiers={"pro": {"priority": 1, "weight": 3.0}})
    tier = rules.tier("pro")
    assert terms(rules, tier, OnSaturation(action="wait", at=0.8)) == QueueTerms(3.0, 10.0, 0.8)
    assert terms(rules, tier, SHED) == QueueTerms(3.0, 10.0, 1.0)


def test_what_is_kept_from_a_tier_is_not_for_a_lower_one() -> None:
    rules = policy(
        tiers={
            "free": {"on_saturation": {"action": "downgrade", "to": "m"}},
            "pro": {"priority": 1, "on_saturation": {"action": "wait", "at": 0.6}},
            "enterprise": {"priority": 2},
        }
    )
    assert saturation_action(rules, "free") == OnSaturation(action="downgrade", at=0.6, to="m")
    assert saturation_action(rules, "default").at == 0.6
    assert saturation_action(rules, "pro").at == 0.6
    assert saturation_action(rules, "enterprise").at == 1.0
    assert terms(rules, rules.tier("free"), saturation_action(rules, "free")).max_utilization == 0.6


def test_shedding_begins_at_the_share_and_says_when_to_come_again() -> None:
    pool = Pool("up", clock=Clock())
    pool.limit(10, None)
    for _ in range(8):
        take(pool, 100)
    shed(SHED, pool, pool.saturation)
    take(pool, 100)
    shed(WAIT, pool, pool.saturation)
    with pytest.raises(Overloaded) as refusal:
        shed(SHED, pool, pool.saturation)
    assert (refusal.value.code, refusal.value.retry_after) == ("overloaded", 1.0)
    pool.speed.observe(tokens=100, share=0.1, seconds=10.0, first_token=None, completion=0)
    take(pool, 100)
    take(pool, 300)  # 300 tokens wait, a tenth of 1000 in flight is too much, 100 tokens/s
    with pytest.raises(Overloaded) as refusal:
        shed(SHED, pool, pool.saturation)
    assert refusal.value.retry_after == pytest.approx(4.0)
