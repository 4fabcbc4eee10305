"""``POST /admin/api/explain``: by the state of a running gateway, which it leaves as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import FakeUpstream, completion, reply
from tests.serving import KEY, OTHER_KEY, Gateway, a_policy, chat, key, serving

pytestmark = pytest.mark.anyio

ADMIN = "tg-admin-1"
BREAKER = {"failures": 2, "share": 0.5, "window": "1m", "cooldown": "1m"}


@pytest.fixture
async def gateway(upstream: FakeUpstream, tmp_path: Path) -> AsyncIterator[Gateway]:
    policy = a_policy(
        upstream.base_url,
        admin={"enabled": True},
        caches={"exact": {"ttl": "1h"}},
        guards={"secrets": {"on": ["input"], "action": "block"}},
    )
    policy["backends"]["down"]["breaker"] = BREAKER
    policy["models"]["down"] |= {"retry": {"attempts": 1}, "fallbacks": ["fake"]}
    policy["keys"].append(key(ADMIN, "ops", tenant="ops", scopes=["admin"]))
    policy["tenants"] = {"acme": {"quotas": {"requests_per_minute": 3}}}
    async with serving(tmp_path / "policies", policy) as running:
        yield running


async def explained(gateway: Gateway, body: Any, key_id: str = "acme-1", **more: Any) -> dict[str, Any]:
    response = await asked(gateway, {"key": key_id, "body": body, **more})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def asked(gateway: Gateway, body: Any, token: str = ADMIN) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"}
    return await gateway.http.post("/admin/api/explain", json=body, headers=headers)


async def send(gateway: Gateway, body: Any, token: str = KEY) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"}
    return await gateway.http.post("/v1/chat/completions", json=body, headers=headers)


def step(told: dict[str, Any], stage: str) -> dict[str, Any]:
    return dict(next(one for one in told["steps"] if one["stage"] == stage))


async def test_it_is_for_admins(gateway: Gateway) -> None:
    assert (await asked(gateway, {"key": "acme-1", "body": chat()}, token=KEY)).status_code == 403
    assert (await asked(gateway, {"key": "acme-1", "body": chat(), "mode": 1})).status_code == 400


async def test_limits_are_those_that_are_left_and_asking_takes_nothing(gateway: Gateway) -> None:
    for left in (2, 1, 0):
        told = await explained(gateway, chat(content=f"number {left}"))
        assert told["outcome"]["headers"]["x-ratelimit-remaining-requests"] == str(left)
        answer = await send(gateway, chat(content=f"number {left}"))
        assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
    told = await explained(gateway, chat())
    answer = await send(gateway, chat())
    assert told["outcome"]["status"] == answer.status_code == 429
    assert told["outcome"]["message"] == answer.json()["error"]["message"]
    assert told["steps"][-1]["policy"][0]["key"] == "tenants.acme.quotas.requests_per_minute"


async def test_what_a_cache_has_is_found_and_nothing_is_put_there(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.scripts = [reply(completion())]
    body = chat("up")
    assert step(await explained(gateway, body, "other-1"), "cache")["facts"]["result"] == "miss"
    assert (await send(gateway, body, OTHER_KEY)).headers["x-tollgate-cache"] == "miss"
    assert len(upstream.requests) == 1
    told = await explained(gateway, body, "other-1")
    assert (told["outcome"]["status"], step(told, "cache")["verdict"]) == (200, "answers")
    assert step(told, "cache")["policy"][0]["key"] == "caches.exact"


async def test_an_open_breaker_is_told_and_stays_as_it_is(gateway: Gateway) -> None:
    for number in range(3):
        answer = await send(gateway, chat("down", f"try {number}"), OTHER_KEY)
        assert answer.headers["x-tollgate-model"] == "fake"
    for _ in range(2):
        told = await explained(gateway, chat("down"), "other-1")
        down, fake = step(told, "route")["facts"]["candidates"]
        assert 0 < down["breaker_open_seconds"] <= 60 and fake["breaker_open_seconds"] is None
        assert told["outcome"]["backend"] == "scripted"


async def test_nothing_is_sent_counted_or_recorded(gateway: Gateway, upstream: FakeUpstream) -> None:
    before = await gateway.metrics()
    for body in (
        chat("up"),
        chat("fake"),
        chat("nothing"),
        chat("up", "ghp_" + "x7Kq2mWz9RtY4bNc8LpV3sHd6FgJ1aQe5UiO"),
    ):
        await explained(gateway, body)
        await explained(gateway, body, path="/v1/chat/completions", headers={"cache-control": "no-cache"})
    after = await gateway.metrics()
    assert upstream.requests == []
    changed = {name for name in after if after[name] != before.get(name)}
    mine = ("tollgate_http", "tollgate_event_loop", "process_", "python_", "tollgate_refused")
    assert {name for name in changed if not name.startswith(mine)} == set()
    found = await gateway.http.get("/admin/api/requests", headers={"authorization": f"Bearer {ADMIN}"})
    assert found.json()["requests"] == []


async def test_it_makes_no_metrics_of_its_own(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be in the same files as the worker's."""
    monkeypatch.setattr("gateway.observe.metrics.Metrics.__init__", None)
    told = await explained(gateway, chat("up", "ghp_" + "x7Kq2mWz9RtY4bNc8LpV3sHd6FgJ1aQe5UiO"))
    assert told["outcome"]["status"] == 400
    assert (await explained(gateway, chat("up")))["outcome"]["backend"] == "up"


async def test_the_line_is_that_of_the_policy_in_force(gateway: Gateway) -> None:
    told = await explained(gateway, chat())
    assert told["generation"] == 1
    line = step(told, "request")["policy"][0]
    file, _, number = line["at"].partition(":")
    text = (gateway.folder / file).read_text().splitlines()[int(number) - 1]
    assert text.strip() == "fake:"


@pytest.mark.parametrize(
    ("key_id", "token", "body"),
    [
        ("acme-1", KEY, chat()),
        ("acme-1", KEY, chat("up")),
        ("acme-1", KEY, chat("nothing")),
        ("narrow-1", "tg-narrow-1", chat("up")),
        ("narrow-1", "tg-narrow-1", chat("fake")),
        ("expired-1", "tg-expired-1", chat("fake")),
        ("acme-1", KEY, chat("fake", "ghp_" + "x7Kq2mWz9RtY4bNc8LpV3sHd6FgJ1aQe5UiO")),
        ("acme-1", KEY, {"model": "fake", "messages": []}),
        ("acme-1", KEY, chat("fake", stream=True)),
        ("other-1", OTHER_KEY, chat("down")),
    ],
    ids=str,
)
async def test_what_is_explained_is_what_happens(
    gateway: Gateway, key_id: str, token: str, body: dict[str, Any]
) -> None:
    told = (await explained(gateway, body, key_id))["outcome"]
    answer = await send(gateway, body, token)
    if told["status"] is None:
        assert answer.status_code == 200
        model = "fake" if body["model"] == "down" else told["model"]
        assert answer.headers["x-tollgate-model"] == model
    else:
        error = answer.json()["error"]
        assert (told["status"], told["error"]) == (answer.status_code, error["code"])
        assert told["message"] == error["message"] or error["code"] == "invalid_api_key"
