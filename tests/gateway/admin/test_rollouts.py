"""``/admin/api/rollouts``: what is seen, and the button."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.control.audit_log import AuditLog
from tests.serving import KEY, OTHER_KEY, Gateway, chat, key, serving

pytestmark = pytest.mark.anyio

ADMIN = KEY


def policy() -> dict[str, Any]:
    scripted = {"kind": "fake", "script": [{"reply": "one"}]}
    return {
        "version": 1,
        "admin": {"enabled": True},
        "backends": {"a": scripted, "b": scripted},
        "models": {
            "m": {
                "targets": [{"backend": "a", "model": "x"}],
                "rollout": {"to": {"backend": "b", "model": "y"}, "steps": [50, 100]},
            },
            "plain": {"targets": [{"backend": "a", "model": "x"}]},
        },
        "keys": [key(ADMIN, "boss", scopes=["admin", "inference"]), key(OTHER_KEY, "other")],
    }


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    monkeypatch.setattr("gateway.runtime.rollouts.EVERY", 0.05)
    async with serving(tmp_path / "policies", policy(), state_dir=tmp_path / "state") as gateway:
        yield gateway


async def ask(gateway: Gateway, method: str, path: str, token: str = ADMIN) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"}
    return await gateway.http.request(method, f"/admin/api{path}", headers=headers)


async def seen(gateway: Gateway) -> dict[str, Any]:
    (one,) = (await ask(gateway, "GET", "/rollouts")).json()["rollouts"]
    return dict(one)


async def requests(gateway: Gateway, count: int) -> list[str]:
    """Who is asked first, of so many conversations."""
    headers = {"authorization": f"Bearer {ADMIN}"}
    firsts = []
    for number in range(count):
        answer = await gateway.http.post(
            "/v1/chat/completions", json=chat("m", f"{number}?"), headers=headers
        )
        assert answer.status_code == 200
        path = f"/v1/requests/{answer.headers['x-request-id']}"
        while (found := await gateway.http.get(path, headers=headers)).status_code == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        firsts.append(found.json()["stages"]["route"]["candidates"][0])
    return firsts


async def test_it_is_seen_stopped_and_begun_anew(gateway: Gateway, tmp_path: Path) -> None:
    firsts = await requests(gateway, 30)
    assert {*firsts} == {"a/x", "b/y"}
    async with asyncio.timeout(300):
        while sum(counted(one := await seen(gateway))) < 30:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (one["model"], one["target"], one["status"], one["share"]) == ("m", "y", "running", 50.0)
    assert counted(one) == (firsts.count("a/x"), firsts.count("b/y"))
    assert one["new"]["errors"] == 0.0 and one["new"]["errors_high"] > 0.0
    assert [guard["name"] for guard in one["guards"]] == ["errors"]

    assert (await ask(gateway, "POST", "/rollouts/m/begin")).status_code == 409
    stopped = (await ask(gateway, "POST", "/rollouts/m/stop")).json()
    assert (stopped["status"], stopped["share"]) == ("stopped", 0.0)
    assert {*await requests(gateway, 10)} == {"a/x"}
    assert (await ask(gateway, "POST", "/rollouts/m/stop")).status_code == 409
    again = (await ask(gateway, "POST", "/rollouts/m/begin")).json()
    assert (again["status"], again["run"], again["new"]["requests"]) == ("running", 2, 0)
    assert {*await requests(gateway, 30)} == {"a/x", "b/y"}

    log = AuditLog(tmp_path / "state")
    async with asyncio.timeout(300):
        while len(entries := decisions(log)) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    told = [(one["action"], one["target"], one["by"].get("key")) for one in entries]
    assert told == [
        ("rollout.began", "m", None),
        ("rollout.stopped", "m", "boss"),
        ("rollout.began", "m", "boss"),
    ]
    assert log.problems() == []


def counted(one: dict[str, Any]) -> tuple[int, int]:
    return one["control"]["requests"], one["new"]["requests"]


def decisions(log: AuditLog) -> list[dict[str, Any]]:
    return [one for one in reversed(log.page(50).entries) if one["action"].startswith("rollout.")]


@pytest.mark.parametrize("model", ["plain", "nosuch"])
async def test_a_model_without_one_has_none_to_stop(gateway: Gateway, model: str) -> None:
    answer = await ask(gateway, "POST", f"/rollouts/{model}/stop")
    assert answer.status_code == 404
    assert model in answer.json()["error"]["message"]


async def test_who_is_no_operator_sees_nothing(gateway: Gateway) -> None:
    assert (await ask(gateway, "GET", "/rollouts", OTHER_KEY)).status_code == 403
    assert (await ask(gateway, "POST", "/rollouts/m/stop", OTHER_KEY)).status_code == 403
