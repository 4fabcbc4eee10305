"""Whose price counts: the policy's, the catalogue's, the default; and the catalogue itself."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from gateway.policy.prices import catalogue, completed, is_unpriced, price_of
from gateway.policy.rules.prices import unpriced
from gateway.policy.rules.subject import Valid
from gateway.policy.schema import Policy, Target

BACKENDS: dict[str, Any] = {
    "up": {"kind": "openai", "base_url": "http://up/v1"},
    "openai": {"kind": "openai", "base_url": "https://api.openai.com/v1"},
    "claude": {"kind": "anthropic"},
    "own": {"kind": "engine"},
}


def policy(*targets: str, **more: Any) -> Policy:
    """``targets`` are ``backend/model``."""
    of = [dict(zip(("backend", "model"), one.split("/", 1), strict=True)) for one in targets]
    return Policy.model_validate(
        {"version": 1, "backends": BACKENDS, "models": {"m": {"targets": of}}, **more}
    )


def costs(output: float) -> dict[str, float]:
    return {"input": 0.0, "output": output}


def output(policy: Policy, target: str) -> float | None:
    backend, _, model = target.partition("/")
    price = price_of(policy, Target(backend=backend, model=model))
    return None if price is None else price.output


def test_what_is_said_most_exactly_goes_first() -> None:
    prices = {"up/a": costs(1), "a": costs(2), "up/*": costs(3)}
    made = policy("up/a", "up/b", "openai/a", "openai/c", prices=prices, default_price=costs(4))
    assert [output(made, one) for one in ("up/a", "openai/a", "up/b", "openai/c")] == [1, 2, 3, 4]


def test_what_sends_no_bill_needs_no_price() -> None:
    made = policy("own/a", "up/a", default_price=costs(4))
    assert output(made, "own/a") is None
    assert not is_unpriced(made, Target(backend="own", model="a"))
    bare = policy("own/a", "up/a")
    assert is_unpriced(bare, Target(backend="up", model="a"))


def test_the_catalogue_is_for_its_providers_own_addresses() -> None:
    made, listed = completed(policy("openai/gpt-4o", "up/gpt-4o", "claude/claude-opus-4-5"))
    assert output(made, "openai/gpt-4o") == 10
    assert output(made, "claude/claude-opus-4-5") == 25
    assert output(made, "up/gpt-4o") is None, "another server's model of that name is another model"
    assert sorted(listed) == ["claude/claude-opus-4-5", "openai/gpt-4o"]


@pytest.mark.parametrize("name", ["gpt-4o", "openai/gpt-4o", "openai/*"])
def test_a_policys_own_price_goes_before_the_catalogue(name: str) -> None:
    made, listed = completed(policy("openai/gpt-4o", prices={name: costs(7)}))
    assert output(made, "openai/gpt-4o") == 7
    assert not listed


def test_the_catalogue_goes_before_the_default() -> None:
    made, _ = completed(policy("openai/gpt-4o", "openai/new", default_price=costs(99)))
    assert [output(made, one) for one in ("openai/gpt-4o", "openai/new")] == [10, 99]


def test_what_is_disabled_is_not_missed() -> None:
    made, _ = completed(policy("openai/new", "up/new", tenants=BUDGET), {"openai"})
    assert [finding.path for finding in unpriced(Valid.of(made))] == [("models", "m", "targets", 1)]


BUDGET = {"t": {"budget": {"usd_per_month": 1.0}}}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"tenants": BUDGET}, "requests under a budget are refused"),
        ({"tiers": BUDGET, "on_unpriced": "free"}, "counts as free"),
        ({"tenants": {"t": {"quotas": {"tokens_per_day": 5}}}}, None),
        ({"tenants": BUDGET, "prices": {"up/*": costs(0)}}, None),
        ({"tenants": BUDGET, "default_price": costs(1)}, None),
    ],
)
def test_advice_on_models_without_a_price(more: dict[str, Any], told: str | None) -> None:
    findings = list(unpriced(Valid.of(policy("up/a", "own/b", **more))))
    assert [finding.path for finding in findings] == ([("models", "m", "targets", 0)] if told else [])
    assert told is None or told in findings[0].message


def test_every_price_of_the_catalogue_has_a_source_and_a_day() -> None:
    listed = catalogue()
    assert len(listed) > 20
    for (host, model), one in listed.items():
        assert "." in host and model
        assert one.source.startswith("https://")
        assert date(2026, 1, 1) <= one.read <= datetime.now(UTC).date()
        assert 0 < one.price.input < one.price.output
        assert one.price.cached_input is None or one.price.cached_input < one.price.input
