from __future__ import annotations

from gateway.observe.prometheus.tenant_labels import TenantLabels


def labels(limit: int, *named: str, told: bool | None = True) -> TenantLabels:
    made = TenantLabels()
    made.update(told, limit, named)
    return made


def test_nobody_is_told_apart_unless_wanted() -> None:
    assert TenantLabels().of("acme") == ""
    assert TenantLabels(by_default=True).of("acme") == "acme"
    assert labels(2, "acme", told=False).of("acme") == ""
    silent = TenantLabels(by_default=True)
    silent.update(None, 5)
    assert silent.enabled and silent.of("acme") == "acme" and silent.of("") == ""


def test_tenants_beyond_the_limit_share_a_label() -> None:
    few = labels(2)
    assert [few.of(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", "other", "a", "other"]


def test_the_policys_tenants_come_first() -> None:
    few = labels(3, "named-1", "named-2")
    assert [few.of(name) for name in ("x", "y", "named-2", "named-1")] == ["x", "other", "named-2", "named-1"]
    assert [labels(1, "first", "second").of(name) for name in ("second", "first")] == ["other", "first"]


def test_a_tenant_keeps_its_label_when_the_policy_changes() -> None:
    few = labels(2, "a", "b")
    assert [few.of("a"), few.of("b")] == ["a", "b"]
    few.update(True, 2, ["c", "d"])
    assert [few.of(name) for name in ("a", "c", "b")] == ["a", "other", "b"]
    few.update(True, 3, ["c", "d"])
    assert [few.of(name) for name in ("d", "c")] == ["other", "c"]
