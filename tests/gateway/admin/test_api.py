"""The admin API over a real socket: one gateway, changed through it."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.admin.api.usage import top_of
from gateway.admin.refusals import MOST
from gateway.control.audit_log import FILE, AuditLog
from gateway.observe.cache_days import CacheDays
from gateway.observe.ledger.usage_query import SUMS
from gateway.types import Principal, Usage
from tests.fakes import a_bill, a_call
from tests.serving import KEY, OTHER_KEY, Gateway, a_policy, chat, key, serving

pytestmark = pytest.mark.anyio

ADMIN = "tg-admin-1"
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}


def policy(**more: Any) -> dict[str, Any]:
    whole = a_policy("http://127.0.0.1:1/v1", admin={"enabled": True}, caches={"exact": {}})
    whole["keys"].append(key(ADMIN, "ops", tenant="ops", scopes=["admin"]))
    whole["tenants"] = {"acme": {"quotas": {"requests_per_minute": 7}}}
    return {**whole, "prices": {"scripted/*": {"input": 1.0, "output": 2.0}}, **more}


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", policy()) as gateway:
        yield gateway


async def ask(
    gateway: Gateway, method: str, path: str, body: Any = None, token: str = ADMIN
) -> httpx.Response:
    return await gateway.http.request(
        method,
        f"/admin/api{path}",
        content=None if body is None else orjson.dumps(body),
        headers={"authorization": f"Bearer {token}"},
    )


async def told(gateway: Gateway, method: str, path: str, body: Any = None) -> dict[str, Any]:
    response = await ask(gateway, method, path, body)
    assert response.is_success, response.text
    return dict(response.json())


async def until(true: Any) -> None:
    """Wait for what is written beside the answer, or taken up after it."""
    async with asyncio.timeout(300):
        while not await true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def status_of(gateway: Gateway, token: str, model: str = "fake") -> int:
    headers = {"authorization": f"Bearer {token}"}
    headers["cache-control"] = "no-store, no-cache"
    return (await gateway.http.post("/v1/chat/completions", json=chat(model), headers=headers)).status_code


async def recorded(gateway: Gateway, count: int) -> list[dict[str, Any]]:
    """The requests in the ledger, once there are so many."""

    async def there() -> bool:
        return len((await told(gateway, "GET", "/requests"))["requests"]) >= count

    await until(there)
    return list((await told(gateway, "GET", "/requests"))["requests"])


async def test_it_is_for_admin_keys_and_they_are_for_nothing_else(gateway: Gateway) -> None:
    assert (await ask(gateway, "GET", "/keys", token=KEY)).json()["error"]["code"] == "wrong_scope"
    assert (await ask(gateway, "GET", "/keys", token="tg-nobody")).status_code == 401
    assert await status_of(gateway, ADMIN) == 403
    assert (await ask(gateway, "GET", "/keys")).status_code == 200


async def test_without_the_policys_word_it_is_not_there(tmp_path: Path) -> None:
    async with serving(tmp_path / "policies", policy(admin={})) as gateway:
        assert (await ask(gateway, "GET", "/keys")).status_code == 404


async def test_a_key_is_made_rotated_and_revoked(gateway: Gateway) -> None:
    made = await told(gateway, "POST", "/keys", {"id": "ci", "tenant": "acme", "models": ["fake"]})
    await until(lambda: _answers(gateway, made["key"], 200))
    rotated = await told(gateway, "POST", "/keys/ci/rotate", {"overlap": "1h"})
    await until(lambda: _answers(gateway, rotated["key"], 200))
    assert await status_of(gateway, made["key"]) == 200, "the one before is accepted for a while"
    [shown] = [one for one in (await told(gateway, "GET", "/keys"))["keys"] if one["id"] == "ci"]
    assert shown["rotated_until"] == rotated["previous_until"] and shown["models"] == ["fake"]
    assert made["key"] not in str(shown)
    await told(gateway, "DELETE", "/keys/ci")
    await until(lambda: _answers(gateway, rotated["key"], 401))
    assert await status_of(gateway, made["key"]) == 401
    assert (await ask(gateway, "DELETE", "/keys/ci")).status_code == 404


async def _answers(gateway: Gateway, token: str, status: int) -> bool:
    return await status_of(gateway, token) == status


async def test_limits_are_changed_for_who_has_seen_the_newest(gateway: Gateway) -> None:
    made = await told(
        gateway, "POST", "/keys", {"id": "ci", "quotas": {"requests_per_minute": 5}, "tier": "default"}
    )
    await until(lambda: _answers(gateway, made["key"], 200))

    async def shown() -> dict[str, Any]:
        [one] = [one for one in (await told(gateway, "GET", "/keys"))["keys"] if one["id"] == "ci"]
        return dict(one)

    seen = await shown()
    assert seen["changeable"] and seen["own_tier"] == "default"
    change = {"version": seen["version"], "models": ["slow"], "quotas": {"tokens_per_day": 9}, "tier": None}
    changed = await told(gateway, "PATCH", "/keys/ci", change)
    after = await shown()
    assert (after["models"], after["quotas"]) == (["slow"], {"tokens_per_day": 9})
    assert "own_tier" not in after and after["version"] == changed["version"] != seen["version"]
    await until(lambda: _answers(gateway, made["key"], 404))
    late = await ask(gateway, "PATCH", "/keys/ci", {"version": seen["version"], "models": ["*"]})
    assert late.status_code == 409 and "meanwhile" in late.json()["error"]["message"]
    for body, status in (
        *(
            ({}, 400),
            ({"models": ["nosuch"]}, 409),
            ({"expires": "2020-01-01"}, 409),
            ({"scopes": ["admin"]}, 400),
        ),
        ({"models": []}, 400),
    ):
        assert (await ask(gateway, "PATCH", "/keys/ci", body)).status_code == status, body
    foreign = await ask(gateway, "PATCH", "/keys/acme-1", {"models": ["fake"]})
    assert foreign.status_code == 409 and "by hand" in foreign.json()["error"]["message"]
    assert (await ask(gateway, "PATCH", "/keys/nosuch", {"models": ["fake"]})).status_code == 404
    log = (await told(gateway, "GET", "/audit"))["entries"]
    assert [one["ok"] for one in log if one["action"] == "key.change"] == [False, False, False, True]


async def test_a_rotation_without_overlap_ends_the_key_at_once(gateway: Gateway) -> None:
    made = await told(gateway, "POST", "/keys", {"id": "ci"})
    await until(lambda: _answers(gateway, made["key"], 200))
    await told(gateway, "POST", "/keys/ci/rotate", {"overlap": "0s"})
    await until(lambda: _answers(gateway, made["key"], 401))


def of_two_regions(**more: Any) -> dict[str, Any]:
    """``scripted`` is in the EU, ``slow`` in the US, and the key of ``up`` is not set."""
    whole = policy(**more)
    whole["backends"]["scripted"]["region"], whole["backends"]["slow"]["region"] = "eu", "us"
    whole["backends"]["up"]["api_key"] = "${KEY_THAT_NOBODY_SET}"
    return whole


async def test_where_content_stays_is_shown_with_who_says_so(tmp_path: Path) -> None:
    whole = of_two_regions(residency=["eu", "us"], tiers={"free": {"quotas": {"requests_per_minute": 3}}})
    whole["tenants"]["clinic"] = {"residency": ["eu"], "tier": "free", "budget": {"usd_per_day": 2}}
    whole["models"]["slow"]["residency"] = ["eu"]
    whole["keys"].append(key("tg-us", "us", tenant="clinic", residency=["us"]))
    async with serving(tmp_path / "policies", whole) as gateway:
        listed = await told(gateway, "GET", "/keys")
        keys = {one["id"]: one for one in listed["keys"]}
        assert (keys["us"]["residency"], keys["us"]["stays_in"]) == (["us"], []), "nowhere: not left out"
        assert (keys["acme-1"]["residency"], keys["acme-1"]["stays_in"]) == ([], ["eu", "us"])
        assert listed["residency"] == ["eu", "us"]
        assert listed["tenants"]["clinic"]["residency"] == ["eu"]
        assert listed["tenants"]["clinic"]["budget"] == {"usd_per_day": 2.0}
        assert listed["tiers"]["free"]["quotas"] == {"requests_per_minute": 3}
        tenants = {one["name"]: one for one in (await told(gateway, "GET", "/tenants"))["tenants"]}
        assert (tenants["clinic"]["residency"], tenants["clinic"]["stays_in"]) == (["eu"], ["eu"])
        models = {one["name"]: one for one in (await told(gateway, "GET", "/models"))["models"]}
        assert (models["slow"]["residency"], models["slow"]["stays_in"]) == (["eu"], ["eu"])
        assert models["slow"]["targets"][0]["outside"] and not models["fake"]["targets"][0]["outside"]
    async with serving(tmp_path / "anywhere" / "policies", policy()) as gateway:
        for path, name in (("/keys", "keys"), ("/tenants", "tenants"), ("/models", "models")):
            assert not [one for one in (await told(gateway, "GET", path))[name] if "stays_in" in one]


async def test_a_key_is_given_a_residency_and_no_region_that_makes_the_policy_invalid(tmp_path: Path) -> None:
    async with serving(tmp_path / "policies", of_two_regions()) as gateway:
        made = await told(gateway, "POST", "/keys", {"id": "ci", "residency": ["eu"]})
        await until(lambda: _answers(gateway, made["key"], 200))
        assert await status_of(gateway, made["key"], "slow") == 403
        for method, path in (("POST", "/keys"), ("PATCH", "/keys/ci")):
            refused = await ask(gateway, method, path, {"residency": ["mars"]})
            assert refused.status_code == 409 and "region 'mars'" in refused.json()["error"]["message"]
        await told(gateway, "PATCH", "/keys/ci", {"residency": ["us"]})
        await until(lambda: _answers(gateway, made["key"], 403))
        await told(gateway, "PATCH", "/keys/ci", {"residency": None})
        await until(lambda: _answers(gateway, made["key"], 200))
        assert "rejected" not in await told(gateway, "GET", "/policy")


async def test_what_is_not_in_use_says_why(tmp_path: Path) -> None:
    whole = of_two_regions()
    whole["keys"][-1] |= {"models": ["fa*"]}  # the operator's own
    whole["models"]["down"]["fallbacks"] = ["up"]
    why = "KEY_THAT_NOBODY_SET is not set"
    async with serving(tmp_path / "policies", whole) as gateway:
        await told(gateway, "POST", "/backends/slow/drain")
        await told(gateway, "POST", "/backends/down/drain")
        await until(
            lambda: _out_of_use(gateway, {"up": why, "slow": "it is drained", "down": "it is drained"})
        )
        states = {one["name"]: one for one in (await told(gateway, "GET", "/backends"))["backends"]}
        assert (states["up"]["disabled"], states["up"]["drained"], states["up"]["enabled"]) == (
            why,
            False,
            False,
        )
        assert "disabled" not in states["slow"] and states["slow"]["drained"]
        models = {one["name"]: one for one in (await told(gateway, "GET", "/models"))["models"]}
        assert models["up"]["targets"][0]["disabled"] == models["up"]["disabled"].removeprefix("up: ") == why
        assert models["slow"]["disabled"] == "slow: it is drained"
        assert models["down"]["disabled"] == f"down: it is drained; up: {why}"
        assert "disabled" not in models["fake"]
        assert [name for name, one in models.items() if one["allowed"]] == ["fake"]


async def _out_of_use(gateway: Gateway, wanted: dict[str, str]) -> bool:
    return bool((await told(gateway, "GET", "/snapshot"))["disabled"] == wanted)


async def test_what_cannot_be_is_refused_and_says_why(gateway: Gateway) -> None:
    for body, param in (
        ({"id": "no name"}, "id"),
        ({"quotas": {"requests_per_minute": -1}}, "quotas.requests_per_minute"),
        ({"unheard": 1}, "unheard"),
        ({"scopes": ["everything"]}, "scopes[0]"),
    ):
        response = await ask(gateway, "POST", "/keys", body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    for body in ({"id": "acme-1"}, {"models": ["nosuch"]}, {"expires": "2020-01-01"}):
        response = await ask(gateway, "POST", "/keys", body)
        assert response.status_code == 409, response.text
    assert (await ask(gateway, "GET", "/keys?x=1")).json()["error"]["param"] == "x"
    response = await ask(gateway, "PUT", "/keys")
    assert (response.status_code, response.headers["allow"]) == (405, "GET, POST")


async def test_a_change_that_is_refused_is_no_request_to_a_model(gateway: Gateway) -> None:
    for path, body in (("/keys", {"id": "not a name"}), ("/backends/nobody/drain", None), ("/keys", [])):
        assert 400 <= (await ask(gateway, "POST", path, body)).status_code < 500
    assert await status_of(gateway, KEY) == 200
    await recorded(gateway, 1)
    rows = (await told(gateway, "GET", "/usage?by=tenant"))["rows"]
    assert [(row["tenant"], row["requests"]) for row in rows] == [("acme", 1)]


async def test_usage_by_whom_and_over_time_as_json_and_csv(gateway: Gateway) -> None:
    agent = {"user-agent": "=cmd/1 (x)"}
    for token in (KEY, KEY, OTHER_KEY):
        headers = {"authorization": f"Bearer {token}", **agent}
        assert (
            await gateway.http.post(
                "/v1/chat/completions", json=chat("fake", token + agent["user-agent"]), headers=headers
            )
        ).is_success
    await recorded(gateway, 3)
    rows = (await told(gateway, "GET", "/usage?by=tenant&by=user_agent"))["rows"]
    assert {(row["tenant"], row["user_agent"], row["requests"]) for row in rows} == {
        ("acme", "=cmd/1", 2),
        ("other", "=cmd/1", 1),
    }
    assert all(row["usd"] == row["cost_nanodollars"] / 1e9 for row in rows)
    [hour] = (await told(gateway, "GET", "/usage?interval=hour&tenant=acme"))["rows"]
    assert hour["start"] % 3600 == 0 and hour["requests"] == 2
    assert (await told(gateway, "GET", "/usage?tenant=nobody"))["rows"] == []
    response = await ask(gateway, "GET", "/usage?by=user_agent&by=model&format=csv")
    [row] = list(csv.DictReader(io.StringIO(response.text)))
    assert (row["user_agent"], row["model"], row["requests"]) == ("'=cmd/1", "fake", "3"), "no formula"
    assert response.headers["content-type"].startswith("text/csv")


async def test_usage_by_what_only_the_requests_know(gateway: Gateway) -> None:
    for place, tags in enumerate(("red, blue", "red")):
        asked = {**chat("fake", str(place)), "user": "ann@example.com"}
        headers = {"authorization": f"Bearer {KEY}", "x-tollgate-tags": tags}
        assert (await gateway.http.post("/v1/chat/completions", json=asked, headers=headers)).is_success
    await recorded(gateway, 2)
    rows = (await told(gateway, "GET", "/usage?by=tag&by=finish_reason&by=backend"))["rows"]
    assert {(row["tag"], row["finish_reason"], row["requests"]) for row in rows} == {
        ("red", "stop", 2),
        ("blue", "stop", 1),
    }
    [user] = (await told(gateway, "GET", "/usage?by=user&tag=red&interval=hour"))["rows"]
    assert user["requests"] == 2 and user["user"] and "ann" not in user["user"]
    assert (await told(gateway, "GET", f"/usage?by=arm&by=experiment&user={user['user']}"))["rows"][0][
        "arm"
    ] == ""
    response = await ask(gateway, "GET", "/usage?by=user&by=tag&format=csv&top=1")
    lines = [*csv.DictReader(io.StringIO(response.text))]
    assert [(line["user"], line["tag"]) for line in lines] == [(user["user"], "red"), (user["user"], "blue")]
    assert (await ask(gateway, "GET", "/usage?by=mood")).status_code == 400


def test_only_the_dearest_are_told_apart() -> None:
    nothing = dict.fromkeys(SUMS, 0)
    rows = [
        {"start": hour, "tenant": name, **nothing, "cost_nanodollars": cost, "requests": 1}
        for hour in (0, 3600)
        for name, cost in (("a", 1), ("b", 5), ("c", 3), ("d", 0))
    ]
    found = top_of(rows, ("tenant",), 2)
    assert [(row["start"], row["tenant"], row["cost_nanodollars"], row["requests"]) for row in found] == [
        *((0, "(others)", 1, 2), (0, "b", 5, 1), (0, "c", 3, 1)),
        *((3600, "(others)", 1, 2), (3600, "b", 5, 1), (3600, "c", 3, 1)),
    ]
    assert top_of(rows, ("tenant",), 4) == rows


async def test_models_and_who_answers_them(gateway: Gateway) -> None:
    await told(gateway, "POST", "/backends/slow/drain")
    await gateway.generation(2)
    found = {one["name"]: one for one in (await told(gateway, "GET", "/models"))["models"]}
    [fake], [slow] = found["fake"]["targets"], found["slow"]["targets"]
    assert fake["price"] == {"input": 1.0, "output": 2.0} and fake["enabled"]
    assert slow["drained"] and not slow["enabled"]


async def test_what_caches_save_is_counted(gateway: Gateway) -> None:
    for _ in range(2):
        assert await status_of(gateway, KEY) == 200
    for _ in range(2):
        await gateway.http.post("/v1/chat/completions", json=chat())
    [first, *_] = [one for one in await recorded(gateway, 4) if one["usd"]]
    counters = (await told(gateway, "GET", "/snapshot"))["counters"]
    hits = counters["cache"]["exact\thit"]
    tokens = first["prompt_tokens"] + first["completion_tokens"]
    assert hits and counters["cache_saved_tokens"]["exact\tfake"] == hits * tokens
    assert counters["cache_saved_dollars"]["exact\tfake"] == pytest.approx(hits * first["usd"])


async def test_a_history_may_be_empty(gateway: Gateway) -> None:
    assert await told(gateway, "GET", "/policy/history") == {"generations": []}


async def test_requests_are_found_a_page_at_a_time_with_their_receipts(gateway: Gateway) -> None:
    for number in range(3):
        await gateway.http.post("/v1/chat/completions", json=chat("fake", f"{number}"))
    await gateway.http.post("/v1/chat/completions", json=chat("down"))
    everything = await recorded(gateway, 4)
    first = await told(gateway, "GET", "/requests?limit=3")
    second = await told(gateway, "GET", f"/requests?limit=3&after={first['next']}")
    assert [one["id"] for one in (*first["requests"], *second["requests"])] == [
        one["id"] for one in everything
    ]
    assert "next" not in second
    [failed] = (await told(gateway, "GET", "/requests?failed=true"))["requests"]
    assert failed["model"] == "down" and failed["status"] == 503
    found = await told(gateway, "GET", f"/requests/{failed['id']}")
    assert found["request"] == failed and found["receipt"]["stages"]["fallback"]["attempts"]
    assert (await ask(gateway, "GET", "/requests/req_none")).status_code == 404


async def test_a_drained_backend_is_asked_no_more_until_it_is_undrained(gateway: Gateway) -> None:
    await told(gateway, "POST", "/backends/scripted/drain")
    await gateway.generation(2)
    assert await status_of(gateway, OTHER_KEY) != 200
    states = {one["name"]: one for one in (await told(gateway, "GET", "/backends"))["backends"]}
    assert states["scripted"]["drained"] and not states["scripted"]["enabled"]
    await told(gateway, "POST", "/backends/scripted/undrain")
    await until(lambda: _answers(gateway, OTHER_KEY, 200))
    assert (await ask(gateway, "POST", "/backends/nosuch/drain")).status_code == 404


async def test_a_flushed_tenants_answers_are_forgotten_and_no_others(gateway: Gateway) -> None:
    async def source(token: str) -> str:
        headers = {"authorization": f"Bearer {token}"}
        response = await gateway.http.post("/v1/chat/completions", json=chat(), headers=headers)
        return str(response.headers["x-tollgate-cache"])

    for token in (KEY, OTHER_KEY):
        await source(token)
        assert await source(token) == "exact"
    await told(gateway, "POST", "/caches/flush", {"tenant": "acme"})
    await gateway.generation(2)
    assert await source(KEY) == "miss"
    assert await source(OTHER_KEY) == "exact"


async def test_what_the_semantic_cache_found_by_day(gateway: Gateway, tmp_path: Path) -> None:
    assert (await told(gateway, "GET", "/caches/days"))["rows"] == []
    days = CacheDays(tmp_path / "state" / "cache_days.sqlite")
    for tenant, hit in (("acme", True), ("acme", False), ("other", True)):
        call = a_call(principal=Principal("k", tenant))
        call.receipt.note("cache", semantic="hit" if hit else "number", would_serve=hit)
        days.record(call, a_bill(Usage(90, 10), 2_000_000_000))
    await days.aclose()
    one, other = (await told(gateway, "GET", "/caches/days?since=0&by=tenant"))["rows"]
    assert (one["tenant"], one["lookups"], one["hits"], one["hit_tokens"], one["hit_usd"]) == (
        "acme",
        2,
        1,
        100,
        2.0,
    )
    assert (one["mode"], one["refused"], other["tenant"]) == ("shadow", {"number": 1}, "other")
    assert len((await told(gateway, "GET", "/caches/days?since=0&tenant=other"))["rows"]) == 1
    assert (await told(gateway, "GET", "/caches/days?since=0&until=0"))["rows"] == []


async def test_tenants_show_what_counts_against_their_limits(gateway: Gateway) -> None:
    for _ in range(2):
        await status_of(gateway, KEY)
    tenants = {one["name"]: one for one in (await told(gateway, "GET", "/tenants"))["tenants"]}
    [limit] = tenants["acme"]["limits"]
    assert (limit["quantity"], limit["window"], limit["maximum"], limit["used"]) == (
        "requests",
        "minute",
        7,
        2,
    )
    assert tenants["other"]["limits"] == []


async def test_a_policy_is_judged_without_being_written(gateway: Gateway) -> None:
    before = (gateway.folder / "gateway.yaml").read_text()
    verdict = await told(
        gateway, "POST", "/policy/validate", {"files": {"gateway.yaml": "version: 1\nmodles: {}\n"}}
    )
    assert not verdict["valid"]
    assert {
        "file": "gateway.yaml",
        "line": 2,
        "message": "modles: unknown key; did you mean 'models'?",
    } in verdict["problems"]
    assert (await told(gateway, "POST", "/policy/validate", {"files": {"gateway.yaml": before}}))["valid"]
    assert (gateway.folder / "gateway.yaml").read_text() == before


async def test_a_variables_value_is_not_told(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "sk-do not tell")
    text = 'version: 1\nbackends: {"a": {kind: fake, script: [{reply: x}], region: "${SOME_SECRET}"}}\nmodels: {}\n'
    verdict = await told(gateway, "POST", "/policy/validate", {"files": {"gateway.yaml": text}})
    assert not verdict["valid"] and "do not tell" not in str(verdict)
    assert "${SOME_SECRET}" in str(verdict)


async def test_every_change_made_or_refused_is_in_the_audit_log(gateway: Gateway, tmp_path: Path) -> None:
    await told(gateway, "POST", "/keys", {"id": "ci"})
    await ask(gateway, "POST", "/keys", {"id": "ci"})
    await told(gateway, "POST", "/backends/down/drain")
    await told(gateway, "POST", "/caches/flush", {"tenant": "acme"})
    audit = await told(gateway, "GET", "/audit")
    assert [(one["action"], one["target"], one["ok"]) for one in audit["entries"]] == [
        ("cache.flush", "acme", True),
        ("backend.drain", "down", True),
        ("key.create", "ci", False),
        ("key.create", "ci", True),
    ]
    assert audit["entries"][0]["by"] == {"key": "ops", "address": "127.0.0.1"}
    assert audit["problems"] == []
    log = tmp_path / "state" / FILE
    log.write_text(log.read_text().replace('"backend.drain"', '"backend.sleep"'))
    assert AuditLog(tmp_path / "state").problems() == ["entry 4 does not follow the one before it"]


async def test_what_is_refused_before_it_is_a_change_is_in_the_audit_log(gateway: Gateway) -> None:
    """Of those who may ask for changes: strangers, and keys for other things, fill no disk."""
    await ask(gateway, "DELETE", "/keys/nosuch")
    await ask(gateway, "POST", "/keys", {"id": "ci", "expires": "2020-01-01"})
    await ask(gateway, "POST", "/keys", {"scopes": ["everything"]})
    for token in (KEY, "tg-nobody"):
        await ask(gateway, "DELETE", "/keys/nosuch", token=token)
    await ask(gateway, "GET", "/keys?x=1")
    await ask(gateway, "POST", "/policy/validate", {"files": 1})
    entries = (await told(gateway, "GET", "/audit"))["entries"]
    assert [(one["action"], one["target"], one["ok"]) for one in entries] == [
        ("request.refuse", "POST /admin/api/keys", False),
        ("request.refuse", "POST /admin/api/keys", False),
        ("request.refuse", "DELETE /admin/api/keys/nosuch", False),
    ]
    assert entries[2]["error"] == "No key has the id 'nosuch'."
    assert entries[2]["by"] == {"key": "ops", "address": "127.0.0.1"}
    for _ in range(MOST + 9):
        await ask(gateway, "DELETE", "/keys/nosuch")
    entries = (await told(gateway, "GET", "/audit?limit=200"))["entries"]
    assert MOST <= len(entries) <= 2 * MOST, "a minute has only so many"


async def test_a_key_that_is_named_as_a_path_is_that_key(gateway: Gateway) -> None:
    for name in ("a", "a/rotate"):
        await told(gateway, "POST", "/keys", {"id": name, "tenant": "acme"})
    await told(gateway, "PATCH", "/keys/a/rotate", {"models": ["fake"]})
    shown = {one["id"]: one["models"] for one in (await told(gateway, "GET", "/keys"))["keys"]}
    assert (shown["a"], shown["a/rotate"]) == (["*"], ["fake"])
    assert (await told(gateway, "POST", "/keys/a/rotate/rotate", {}))["id"] == "a/rotate"
    assert (await told(gateway, "DELETE", "/keys/a/rotate"))["id"] == "a/rotate"
    assert (await told(gateway, "POST", "/keys/a/rotate", {}))["id"] == "a"
    response = await ask(gateway, "PUT", "/keys/a/rotate")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


async def test_live_figures_come_as_events_and_grow(gateway: Gateway) -> None:
    async with gateway.http.stream("GET", "/admin/api/live", headers=AS_ADMIN) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = _events(response)
        before = await anext(events)
        assert await status_of(gateway, KEY) == 200
        async for event in events:
            if event["counters"]["requests"] != before["counters"]["requests"]:
                break
    assert event["counters"]["requests"]["fake\tscripted\t200"] == 1
    assert sum(event["histograms"]["first_token"]["counts"]) == 1
    assert event["workers"] == 1 and event["backends"]["scripted"]["waiting"] == 0


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield orjson.loads(line[6:])
