"""API keys: how they are presented, what they give, and from where they may be used."""

from __future__ import annotations

import time
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import AuthUnavailable, Forbidden, Unauthenticated
from gateway.identity.api_keys import hash_key
from gateway.identity.client_address import ClientAddress
from gateway.policy.revoked_keys import RevokedKeys
from gateway.policy.schema import Budget, QuotaSettings
from gateway.types import Principal
from tests.gateway.identity.conftest import Authenticate, at_once, scope

pytestmark = pytest.mark.anyio


def key(text: str = "tg-1", **more: Any) -> dict[str, Any]:
    return {"id": text, "sha256": hash_key(text), **more}


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", "Bearer tg-1")],
        [("authorization", " bearer   tg-1 ")],
        [("x-api-key", "tg-1")],
        [("x-api-key", " tg-1 ")],
        [("api-key", "tg-1")],
        [("api-key", "tg-other"), ("x-api-key", "tg-1")],
        [("api-key", "tg-other"), ("authorization", "Bearer tg-1")],
        [("x-api-key", "tg-other"), ("authorization", "Bearer tg-1")],
        [("authorization", "Basic dTpw"), ("x-api-key", "tg-1")],
    ],
)
async def test_where_a_key_may_stand(authenticator: Authenticate, headers: list[tuple[str, str]]) -> None:
    made = authenticator(keys=[key()])
    assert at_once(made.principal(scope(headers=headers))).key_id == "tg-1"


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([], "You didn't provide an API key"),
        ([("x-api-key", "")], "You didn't provide an API key"),
        ([("authorization", "")], "'Bearer YOUR_KEY'"),
        ([("authorization", "Bearer")], "'Bearer YOUR_KEY'"),
        ([("authorization", "Basic dTpw")], "'Bearer YOUR_KEY'"),
        ([("authorization", "Bearer tg-2")], "Incorrect API key provided"),
        ([("authorization", "Bearer tg-1\x80")], "Incorrect API key provided"),
        ([("x-api-key", "tg-2")], "Incorrect API key provided"),
        ([("authorization", "Bearer tg-2"), ("x-api-key", "tg-1")], "Incorrect API key provided"),
    ],
)
async def test_what_opens_nothing(
    authenticator: Authenticate, headers: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(Unauthenticated, match=message) as caught:
        await authenticator(keys=[key()]).principal(scope(headers=headers))
    assert caught.value.code == "invalid_api_key"


async def test_a_key_brings_tier_quotas_and_budget(authenticator: Authenticate) -> None:
    quotas, budget = {"tokens_per_minute": 10}, {"usd_per_month": 1.5}
    made = authenticator(
        keys=[
            key("own", tenant="acme", tier="free", quotas=quotas, budget=budget, models=["a"]),
            key("tenants", tenant="acme"),
            key("none"),
        ],
        tenants={"acme": {"tier": "pro"}},
        tiers={"pro": {}, "free": {}},
        jwt=[],
    )
    expected = Principal(
        "own", "acme", ("a",), "free", QuotaSettings(tokens_per_minute=10), Budget(usd_per_month=1.5)
    )
    assert at_once(made.principal(scope("own"))) == expected
    assert at_once(made.principal(scope("tenants"))).tier == "pro"
    assert at_once(made.principal(scope("none"))).tier == "default"


async def test_an_expired_key(authenticator: Authenticate) -> None:
    made = authenticator(keys=[key(expires="2020-01-01")])
    with pytest.raises(Unauthenticated, match="expired on 2020-01-01") as caught:
        await made.principal(scope("tg-1"))
    assert caught.value.code == "expired_api_key"


async def test_the_development_key_needs_a_policy_without_any_other_way_in(
    authenticator: Authenticate,
) -> None:
    sha = hash_key("dev")
    assert (await authenticator(jwt=[], dev_key_sha256=sha).principal(scope("dev"))).key_id == "dev"
    others: list[dict[str, Any]] = [{"keys": [key()], "jwt": []}, {"keys": []}]
    for more in others:
        with pytest.raises(Unauthenticated):
            await authenticator(dev_key_sha256=sha, **more).principal(scope("dev"))


async def test_revoked_ids(authenticator: Authenticate) -> None:
    made = authenticator(keys=[key("a"), key("b")])
    made.revoke(RevokedKeys(gone=frozenset({"a"})))
    with pytest.raises(Unauthenticated, match="Incorrect API key provided"):
        await made.principal(scope("a"))
    await made.principal(scope("b"))
    made.revoke(RevokedKeys())
    await made.principal(scope("a"))


async def test_what_stands_in_a_file_that_cannot_be_read_is_neither_good_nor_bad(
    authenticator: Authenticate,
) -> None:
    made = authenticator(keys=[key("a"), key("b"), key("c")])
    made.revoke(RevokedKeys(frozenset({"c"}), frozenset({"a"}), ("keys.yaml",)))
    await made.principal(scope("b"))
    for text in ("a", "c", "never heard of"):  # each may stand there
        with pytest.raises(AuthUnavailable) as caught:
            await made.principal(scope(text))
        assert caught.value.status == 503 and caught.value.retry_after
    made.revoke(RevokedKeys(frozenset({"c"}), frozenset({"a"})))
    with pytest.raises(Unauthenticated):
        await made.principal(scope("never heard of"))


async def test_a_revoked_key_is_refused_wherever_it_stands(authenticator: Authenticate) -> None:
    made = authenticator(keys=[key("a"), key("b")], revoked_keys=[hash_key("a")])
    await made.principal(scope("b"))
    with pytest.raises(Unauthenticated):
        await made.principal(scope("a"))


async def test_revoking_all_keys_does_not_let_the_development_key_in(authenticator: Authenticate) -> None:
    made = authenticator(
        jwt=[], keys=[key("a")], revoked_keys=[hash_key("a")], dev_key_sha256=hash_key("dev")
    )
    with pytest.raises(Unauthenticated):
        await made.principal(scope("dev"))


ALLOWED = key(allow_ips=["10.0.0.0/8", "2001:db8::/32"])


@pytest.mark.parametrize(
    ("client", "forwarded", "seen"),
    [
        ("10.1.2.3", [], None),
        ("::ffff:10.1.2.3", [], None),
        ("2001:db8::5", [], None),
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["10.1.2.3"], "203.0.113.9"),  # whoever is no trusted proxy may write what he likes
        ("192.168.0.1", ["10.1.2.3"], None),
        ("192.168.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("192.168.0.1", ["10.1.2.3, 203.0.113.9"], "203.0.113.9"),
        ("192.168.0.1", ["203.0.113.9, 10.1.2.3"], None),
        ("192.168.0.1", ["10.1.2.3, 192.168.0.2", "192.168.0.3"], None),
        ("192.168.0.1", ["10.1.2.3", "203.0.113.9,192.168.0.3"], "203.0.113.9"),
        ("192.168.0.1", ["10.1.2.3:5555"], None),
        ("192.168.0.1", ["[2001:db8::1]:5555"], None),
        ("192.168.0.1", ["2001:db8::1"], None),
        ("192.168.0.1", ["10.1.2.3, unknown"], "an unknown address"),
        ("192.168.0.1", ["192.168.0.7"], "192.168.0.7"),
        ("192.168.0.1", [], "192.168.0.1"),
        ("192.168.0.1", [" , "], "192.168.0.1"),
        (None, ["10.1.2.3"], "an unknown address"),
        ("/run/socket", [], "an unknown address"),
    ],
)
async def test_addresses(
    authenticator: Authenticate, client: str | None, forwarded: list[str], seen: str | None
) -> None:
    made = authenticator(keys=[ALLOWED], trusted_proxies=["192.168.0.0/16"])
    request = scope("tg-1", client=client, headers=[("x-forwarded-for", line) for line in forwarded])
    if seen is None:
        assert at_once(made.principal(request)).key_id == "tg-1"
        return
    with pytest.raises(Forbidden) as caught:
        await made.principal(request)
    assert caught.value.code == "ip_not_allowed" and seen in caught.value.message


@given(st.text(), st.ip_addresses().map(str))
def test_what_a_client_forwards_itself_does_not_count(made_up: str, real: str) -> None:
    address = ClientAddress(["192.168.0.0/16"])
    line = made_up.encode("utf-8", "replace") + b"," + real.encode()
    request = {**scope(client="192.168.0.1"), "headers": [(b"x-forwarded-for", line)]}
    if ip_address(real) not in ip_network("192.168.0.0/16"):
        alone = {**request, "headers": [(b"x-forwarded-for", real.encode())]}
        assert address.of(request) == address.of(alone) is not None


async def test_a_key_costs_microseconds(authenticator: Authenticate) -> None:
    made = authenticator(keys=[key(f"k{n}") for n in range(5000)])
    request = scope("k2500")
    start = time.perf_counter()
    for _ in range(1000):
        await made.principal(request)
    assert (time.perf_counter() - start) / 1000 < 100e-6
