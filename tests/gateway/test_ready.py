"""``/readyz`` over HTTP: what takes a gateway out of service, what does not, and who is told why."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.readiness import Readiness
from tests.conftest import RedisServer
from tests.fakes import FakeUpstream, reply
from tests.serving import OPERATOR, Gateway, a_policy, chat, serving

pytestmark = pytest.mark.anyio


async def test_it_stays_ready_when_its_only_provider_is_down(
    tmp_path: Path, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.runtime.build.Readiness", partial(Readiness, fresh=0.0, seldom=0.0))
    policy = a_policy(upstream.base_url)
    policy["backends"] = {"up": policy["backends"]["up"]}
    policy["models"] = {"up": policy["models"]["up"]}

    async def told(gateway: Gateway, words: str) -> None:
        async with asyncio.timeout(300):
            while True:
                response = await gateway.http.get("/readyz", headers=OPERATOR)
                assert (response.status_code, response.json()["status"]) == (200, "ready")
                if words in response.json()["backends"]["up"]:
                    return

    async with serving(tmp_path / "policies", policy) as gateway:
        await told(gateway, "ready")
        await upstream.stop()
        await told(gateway, "cannot be reached")
        await upstream.start()
        await told(gateway, "ready")


async def test_refused_credentials_are_told_by_readiness(gateway: Gateway, upstream: FakeUpstream) -> None:
    """Seen by requests alone: many providers tell their models to anyone."""
    upstream.scripts = [reply({"error": {"message": "who are you"}}, status=401)]
    assert (await gateway.http.get("/readyz", headers=OPERATOR)).json()["backends"]["up"] == "ready"
    assert (await gateway.http.post("/v1/chat/completions", json=chat(model="up"))).status_code == 502
    await asyncio.sleep(1.1)  # what is told is a second old at most
    response = await gateway.http.get("/readyz", headers=OPERATOR)
    assert response.status_code == 200
    assert "refuses the gateway's credentials" in response.json()["backends"]["up"]


async def test_an_engine_of_ones_own_has_to_decode(tmp_path: Path, upstream: FakeUpstream) -> None:
    policy = a_policy(upstream.base_url)
    policy["backends"]["own"] = {"kind": "engine", "launch": True, "base_url": "http://127.0.0.1:1"}
    policy["backends"]["shared"] = {"kind": "engine", "base_url": "http://127.0.0.1:1"}
    async with serving(tmp_path / "policies", policy) as gateway:
        response = await gateway.http.get("/readyz", headers=OPERATOR)
        assert response.status_code == 503
        assert response.json()["waits_for"] == ["own"]
        assert (await gateway.http.get("/healthz")).status_code == 200, "alive all the same"
        del policy["backends"]["own"]
        gateway.write(policy)
        await gateway.generation(2)
        response = await gateway.http.get("/readyz", headers=OPERATOR)
        assert response.status_code == 200
        assert response.json()["backends"]["shared"] != "ready"


async def test_it_is_not_ready_while_no_engine_can_be_reached(
    tmp_path: Path, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that answers changes nothing: the model that people ask for cannot be served."""
    monkeypatch.setattr("gateway.runtime.build.Readiness", partial(Readiness, fresh=0.0, seldom=0.0))
    policy = a_policy(upstream.base_url)
    policy["backends"]["far"] = {"kind": "engine", "base_url": upstream.base_url.removesuffix("/v1")}
    policy["models"] = {
        "fake": policy["models"]["fake"],
        "demo": {"targets": [{"backend": "far", "model": "x"}], "aliases": ["gpt-4o"]},
    }
    policy["keys"] = policy["keys"][:2]
    async with serving(tmp_path / "policies", policy) as gateway:

        async def ready(status: int, path: str = "/readyz") -> dict[str, Any]:
            async with asyncio.timeout(300):
                while (answer := await gateway.http.get(path, headers=OPERATOR)).status_code != status:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return dict(answer.json())

        assert (await ready(200))["models"] == {"fake": "ready", "demo": "ready"}
        await upstream.stop()
        told = await ready(503)
        assert told["waits_for"] == ["far"]
        assert told["models"]["fake"] == "ready"
        assert told["models"]["demo"].startswith("far: ")
        await ready(200, "/readyz?model=fake")
        await ready(503, "/readyz?model=gpt-4o")
        stranger = await gateway.http.get("/readyz?model=demo")
        assert (stranger.status_code, stranger.json()) == (503, {"status": "not ready"})
        await upstream.start()
        await ready(200)


async def test_the_operator_asks_for_one_model(gateway: Gateway) -> None:
    answers = {
        name: (await gateway.http.get(f"/readyz?model={name}", headers=OPERATOR)).status_code
        for name in ("fake", "up", "down", "unheard-of")
    }
    assert answers == {"fake": 200, "up": 200, "down": 503, "unheard-of": 404}
    assert (await gateway.http.get("/readyz?model=down")).status_code == 200, "a stranger learns of no model"


@pytest.mark.parametrize(("failure", "status"), [("closed", 503), ("local", 200)])
async def test_it_is_not_ready_while_the_policy_closes(
    tmp_path: Path, upstream: FakeUpstream, own_redis: RedisServer, failure: str, status: int
) -> None:
    limits = {"tenants": {"acme": {"quotas": {"requests_per_minute": 100}}}}
    policy = a_policy(upstream.base_url, store=own_redis.url, on_store_failure=failure, **limits)
    async with serving(tmp_path / "policies", policy) as gateway:
        assert (await gateway.http.get("/readyz", headers=OPERATOR)).status_code == 200
        own_redis.kill()
        refused = await gateway.http.post("/v1/chat/completions", json=chat())
        assert refused.status_code == status
        await asyncio.sleep(1.1)  # what is told is a second old at most
        answer = await gateway.http.get("/readyz", headers=OPERATOR)
        assert answer.status_code == status
        assert ("store" in answer.json()) is (failure == "closed")
