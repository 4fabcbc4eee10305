from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from gateway.errors import Unauthenticated
from gateway.identity.api_keys import DEVELOPMENT, KeyRing, digest_of, hash_key, make_key, masked, unknown_key
from gateway.policy.revoked_keys import RevokedKeys
from gateway.policy.schema import Key, Tenant

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC).timestamp()


def entry(key: str, **more: object) -> Key:
    return Key.model_validate({"id": "one", "sha256": hash_key(key), **more})


def test_a_made_key_has_32_random_bytes_and_no_two_are_equal() -> None:
    keys = {make_key() for _ in range(100)}
    assert len(keys) == 100
    for key in keys:
        assert re.fullmatch(r"tg-[A-Za-z0-9_-]{43}", key)
        assert len(base64.urlsafe_b64decode(key.removeprefix("tg-") + "=")) == 32


def test_a_hash_is_what_sha256sum_prints() -> None:
    assert hash_key("tg-abc") == hashlib.sha256(b"tg-abc").hexdigest()


def test_a_known_key_is_found_with_its_tenant_and_models() -> None:
    ring = KeyRing([entry("a"), entry("b", id="two", tenant="acme", models=["gpt-*"])])
    principal = ring.find("b", NOON)
    assert (principal.key_id, principal.tenant) == ("two", "acme")
    assert principal.may_use("gpt-4o") and not principal.may_use("claude")


@pytest.mark.parametrize("presented", ["", "A", "a ", hash_key("a"), "é", "\udcff", "a" * 100_000])
def test_an_unknown_key_is_refused(presented: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        KeyRing([entry("a")]).find(presented, NOON)
    assert caught.value.code == "invalid_api_key"


def test_a_key_is_valid_through_the_day_before_it_expires_in_utc() -> None:
    ring = KeyRing([entry("a", expires="2026-05-05")])
    midnight = datetime(2026, 5, 5, tzinfo=UTC).timestamp()
    assert ring.find("a", midnight - 0.001).key_id == "one"
    with pytest.raises(Unauthenticated, match="expired on 2026-05-05") as caught:
        ring.find("a", midnight)
    assert caught.value.code == "expired_api_key"


def test_the_development_key_counts_only_while_there_are_no_others() -> None:
    assert KeyRing([], dev_key_sha256=hash_key("dev")).find("dev", NOON) == DEVELOPMENT
    with pytest.raises(Unauthenticated):
        KeyRing([entry("a")], dev_key_sha256=hash_key("dev")).find("dev", NOON)
    with pytest.raises(Unauthenticated):
        KeyRing([]).find("", NOON)


def test_an_upper_case_hash_is_the_same_hash() -> None:
    key = Key.model_validate({"id": "one", "sha256": hash_key("a").upper(), "expires": date(2030, 1, 1)})
    assert KeyRing([key]).find("a", NOON).key_id == "one"


def test_a_key_has_its_own_tier_or_its_tenants() -> None:
    tenants = {"acme": Tenant(tier="pro"), "plain": Tenant()}
    keys = [
        entry("a", tenant="acme"),
        entry("b", tenant="acme", tier="free"),
        entry("c", tenant="plain"),
        entry("d"),
    ]
    ring = KeyRing(keys, tenants=tenants)
    assert [ring.find(key, NOON).tier for key in "abcd"] == ["pro", "free", "default", "default"]
    dev = KeyRing([], tenants={"default": Tenant(tier="pro")}, dev_key_sha256=hash_key("dev"))
    assert dev.find("dev", NOON) == replace(DEVELOPMENT, tier="pro")


def test_a_key_brings_its_quotas_and_budget() -> None:
    ring = KeyRing([entry("a", quotas={"tokens_per_day": 5}, budget={"usd_per_day": 1.0})])
    principal = ring.find("a", NOON)
    assert (principal.quotas.tokens_per_day, principal.budget.usd_per_day) == (5, 1.0)


def test_all_of_the_digest_counts() -> None:
    """The start of a digest finds an entry; it does not open anything."""
    ring, digest = KeyRing([entry("a")]), digest_of("a")
    assert ring.lookup(digest, NOON) is not None
    assert ring.lookup(digest[:16] + bytes(16), NOON) is None
    assert ring.lookup(digest[:16], NOON) is None


def test_revoked_ids_are_refused_until_they_are_not() -> None:
    ring = KeyRing([entry("a"), entry("b", id="two")])
    ring.revoke(RevokedKeys(gone=frozenset({"one"})))
    with pytest.raises(Unauthenticated, match="Incorrect API key provided"):
        ring.find("a", NOON)
    assert ring.find("b", NOON).key_id == "two"
    ring.revoke(RevokedKeys())
    assert ring.find("a", NOON).key_id == "one"


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("tg-0123456789abcdefXYZ", "tg-***XYZ"),
        ("tg-fifteenchars", "***"),
        ("", "***"),
        ("é\n0123456789abcdefX\x7fZ", "??0***X?Z"),
    ],
)
def test_of_a_key_no_more_is_shown_than_its_ends(key: str, shown: str) -> None:
    assert masked(key) == shown
    error = unknown_key(key)
    assert error.body()["error"]["message"].startswith(f"Incorrect API key provided: {shown}. ")
    assert "XYZ" not in str(error) + error.message
