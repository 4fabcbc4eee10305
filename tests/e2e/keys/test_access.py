"""What the keys of ``keys``, ``revoked_keys``, ``trusted_proxies``, ``tenants`` and ``jwt`` do."""

from __future__ import annotations

import asyncio
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.keys.harness import OTHER, Look, Row, Site, a_site, code, shows, status, statuses
from tests.fakes import reply
from tests.gateway.identity import issuer
from tests.serving import KEY, key

pytestmark = pytest.mark.anyio

ONE_A_MINUTE = {"quotas": {"requests_per_minute": 1}}
HERE, ELSEWHERE = "127.0.0.0/8", "10.0.0.0/8"
FROM_ELSEWHERE = {"x-forwarded-for": "10.1.1.1"}


def mine(**more: Any) -> dict[str, Any]:
    return {"keys": [key(KEY, "one", **{"tenant": "acme", **more})]}


def before(text: str = "before", until: str = "2999-01-01T00:00:00Z") -> dict[str, Any]:
    return mine(previous={"sha256": sha256(text.encode()).hexdigest(), "until": until})


def ops() -> dict[str, Any]:
    return {"keys": [key(KEY, "one", scopes=["admin", "inference"])]}


async def admin_page(site: Site) -> int:
    return (await site.gateway.http.get("/admin/api/backends")).status_code


async def length_of_a_session(site: Site) -> int:
    answer = await site.gateway.http.post(
        "/admin/api/session", json={"key": KEY}, headers={"origin": site.gateway.url}
    )
    return int(answer.headers["set-cookie"].partition("Max-Age=")[2].partition(";")[0])


async def name_on_the_receipt(site: Site) -> str:
    return str((await site.receipt(await site.ask()))["stages"]["trace"]["key"])


IN_EU = {"backends": {"other": {"region": "eu"}}}


def tenant(*residency: str) -> dict[str, Any]:
    return {"tenants": {"acme": {"residency": [*residency]}}}


ROWS = [
    Row("keys", {}, status(), 200, 401, {"keys": []}),
    Row("keys[].id", mine(), name_on_the_receipt, "one", "uno", {"keys": [key(KEY, "uno", tenant="acme")]}),
    Row("keys[].sha256", mine(), status(), 200, 401, {"keys": [key("another", "one")]}),
    Row(
        "keys[].tenant",
        {**mine(), "tenants": {"acme": ONE_A_MINUTE}},
        statuses(2),
        [200, 429],
        [200, 200],
        {**mine(tenant="rival"), "tenants": {"acme": ONE_A_MINUTE}},
    ),
    Row(
        "keys[].tier",
        {**mine(tier="gold"), "tiers": {"gold": ONE_A_MINUTE}},
        statuses(2),
        [200, 429],
        [200, 200],
        {**mine(), "tiers": {"gold": ONE_A_MINUTE}},
    ),
    Row("keys[].models", mine(models=["up", "o*"]), status(), 404, 200, mine()),
    Row("keys[].expires", mine(expires="2020-01-01"), status(), 401, 200, mine(expires="2999-01-01")),
    Row("keys[].allow_ips", mine(allow_ips=[ELSEWHERE]), status(), 403, 200, mine(allow_ips=[HERE])),
    Row("keys[].scopes", mine(scopes=["admin"]), status(), 403, 200, mine()),
    Row("keys[].previous", before(), status(token="before"), 200, 401, mine()),
    Row("keys[].previous.sha256", before("another"), status(token="before"), 401, 200, before()),
    Row(
        "keys[].previous.until",
        before(until="2020-01-01T00:00:00Z"),
        status(token="before"),
        401,
        200,
        before(),
    ),
    Row("admin", {"admin": {"enabled": True}, **ops()}, admin_page, 200, 404, ops()),
    Row("admin.enabled", {"admin": {"enabled": True}, **ops()}, admin_page, 200, 404, ops()),
    Row(
        "admin.session",
        {"admin": {"enabled": True, "session": "5m"}, **ops()},
        length_of_a_session,
        300,
        43200,
        {"admin": {"enabled": True}, **ops()},
    ),
    Row("revoked_keys", {"revoked_keys": [sha256(KEY.encode()).hexdigest()]}, status(), 401, 200),
    Row(
        "trusted_proxies",
        {**mine(allow_ips=[ELSEWHERE]), "trusted_proxies": [HERE]},
        status(headers=FROM_ELSEWHERE),
        200,
        403,
        mine(allow_ips=[ELSEWHERE]),
    ),
    Row("tenants", {"tenants": {"acme": ONE_A_MINUTE}}, statuses(2), [200, 429], [200, 200]),
    Row(
        "tenants.<name>.tier",
        {"tenants": {"acme": {"tier": "gold"}}, "tiers": {"gold": ONE_A_MINUTE}},
        statuses(2),
        [200, 429],
        [200, 200],
        {"tiers": {"gold": ONE_A_MINUTE}},
    ),
    Row(
        "tenants.<name>.local_only",
        {"tenants": {"acme": {"local_only": True}}},
        code(model="up"),
        "local_only",
        200,
    ),
    Row("tenants.<name>.residency", IN_EU | tenant("eu"), code(model="up"), "residency", 200, IN_EU),
    Row("keys[].residency", IN_EU | mine(residency=["eu"]), code(model="up"), "residency", 200, IN_EU),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


FILES = {"keys.json": issuer.jwks(), "others.json": issuer.jwks(RS256=issuer.OTHER_RSA)}
GOLD = {"tiers": {"gold": ONE_A_MINUTE}}


def jwt(**more: Any) -> dict[str, Any]:
    return {"jwt": [issuer.entry("keys.json", **more)]}


def shown(count: int = 1, **claims: Any) -> Look:
    """What requests with a sound token get, one after the other."""

    async def look(site: Site) -> list[int]:
        ages = {name: int(time.time()) + value if name == "exp" else value for name, value in claims.items()}
        return await statuses(count, token=issuer.token(**ages))(site)  # type: ignore[no-any-return]

    return look


ENTRY = "jwt[]"
TOKENS = [
    Row("jwt", jwt(), shown(), [200], [401], {}),
    Row(f"{ENTRY}.issuer", jwt(issuer="https://else.example"), shown(), [401], [200], jwt()),
    Row(f"{ENTRY}.audience", jwt(audience="else"), shown(), [401], [200], jwt()),
    Row(f"{ENTRY}.jwks", jwt(jwks="others.json"), shown(), [401], [200], jwt()),
    Row(f"{ENTRY}.algorithms", jwt(algorithms=["ES256"]), shown(), [401], [200], jwt()),
    Row(
        f"{ENTRY}.tenant_claim", jwt(tenant_claim="org"), shown(tenant=None, org="acme"), [200], [401], jwt()
    ),
    Row(
        f"{ENTRY}.tier_claim",
        GOLD | jwt(tier_claim="plan"),
        shown(2, plan="gold"),
        [200, 429],
        [200, 200],
        GOLD | jwt(),
    ),
    Row(f"{ENTRY}.models_claim", jwt(models_claim="may"), shown(may=["up"]), [404], [200], jwt()),
    Row(f"{ENTRY}.models", jwt(models=["up"]), shown(), [404], [200], jwt()),
    Row(f"{ENTRY}.leeway", jwt(leeway="2m"), shown(exp=-60), [200], [401], jwt()),
    Row(f"{ENTRY}.revoked", jwt(revoked=["alice"]), shown(), [401], [200], jwt()),
]


@pytest.mark.parametrize("row", TOKENS, ids=repr)
async def test_tokens(row: Row, tmp_path: Path) -> None:
    for name, policy, expected in (("given", row.given, row.sees), ("without", row.without, row.instead)):
        async with a_site(tmp_path / name, policy, files=FILES) as site:
            assert await row.look(site) == expected, name


def far(**more: Any) -> dict[str, Any]:
    return {"jwt": [issuer.entry(OTHER.replace("/v1", "/jwks"), **more)]}


@shows(f"{ENTRY}.refresh")
async def test_keys_are_fetched_anew(tmp_path: Path) -> None:
    for name, refresh, more in (("often", "50ms", True), ("seldom", "1h", False)):
        async with a_site(tmp_path / name, far(refresh=refresh), health=reply(issuer.jwks())) as site:
            for _ in range(4):
                assert await shown()(site) == [200]
                await asyncio.sleep(0.1)
            assert (len(site.other.probes) > 1) is more


@shows(f"{ENTRY}.stale_if_error")
async def test_keys_of_a_server_that_fails_go_on_or_not(tmp_path: Path) -> None:
    for name, stale, then in (("given", "0s", [503]), ("without", "24h", [200])):
        policy = far(refresh="50ms", stale_if_error=stale)
        async with a_site(tmp_path / name, policy, health=reply(issuer.jwks())) as site:
            assert await shown()(site) == [200]
            site.other.health = reply("gone", status=500)
            fetched = len(site.other.probes)
            async with asyncio.timeout(300):
                while len(site.other.probes) < fetched + 2 or await shown()(site) != then:
                    await asyncio.sleep(0.1)
                    await shown()(site)
