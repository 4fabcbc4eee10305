"""Two gateways on one Redis: both give a user the same target, and the one that decides is killed in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.e2e.gateways import serving
from tests.fakes import FakeUpstream, completion, reply
from tests.redis_server import RedisServer
from tests.serving import KEY, chat, key

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def a_policy(old: str, new: str, store: str) -> dict[str, Any]:
    rollout = {"to": {"backend": "other", "model": "new"}, "steps": [50, 100], "hold": "1h"}
    return {
        "version": 1,
        "store": store,
        "admin": {"enabled": True},
        "backends": {
            "up": {"kind": "openai", "base_url": old},
            "other": {"kind": "openai", "base_url": new},
        },
        "models": {
            "m": {
                "targets": [{"backend": "up", "model": "old"}],
                "retry": {"attempts": 1},
                "rollout": rollout,
            }
        },
        "keys": [key(KEY, "boss", scopes=["admin", "inference"])],
    }


HEADERS = {"authorization": f"Bearer {KEY}"}


async def asked(http: httpx.AsyncClient, url: str, user: int) -> str:
    """The target that a user is sent to first."""
    answer = await http.post(
        f"{url}/v1/chat/completions", json={**chat("m"), "user": f"u{user}"}, headers=HEADERS
    )
    assert answer.status_code == 200
    path = f"{url}/v1/requests/{answer.headers['x-request-id']}"
    async with asyncio.timeout(300):
        while (found := await http.get(path, headers=HEADERS)).status_code == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return str(found.json()["stages"]["route"]["candidates"][0])


async def state_of(redis: RedisServer) -> dict[str, Any]:
    from redis.asyncio import Redis

    client = Redis.from_url(redis.url)
    try:
        return dict(orjson.loads(await client.get("tollgate:rollout:m to other/new") or b"{}"))
    finally:
        await client.aclose()


def told_of_it(folder: Path) -> bool:
    """Whether this gateway has the lease: who has it tells what is decided."""
    return "roll-out of 'm to other/new': began" in (folder / "log").read_text()


def counted(state: dict[str, Any]) -> int:
    evidence = state["evidence"]
    return sum(arm["requests"] for part in ("total", "block") for arm in evidence[part].values())


async def test_a_killed_gateway_loses_nothing_of_a_roll_out(own_redis: RedisServer, tmp_path: Path) -> None:
    fine = reply(completion("fine"))
    async with FakeUpstream(fine) as old, FakeUpstream(fine) as new:
        policy = a_policy(old.base_url, new.base_url, own_redis.url)
        with (
            serving(tmp_path / "a", policy) as first,
            serving(tmp_path / "b", policy) as second,
        ):
            async with httpx.AsyncClient(timeout=300) as http:
                users = range(30)
                both = [[await asked(http, url, user) for user in users] for url in (first, second)]
                assert both[0] == both[1]
                assert {*both[0]} == {"up/old", "other/new"}
                async with asyncio.timeout(300):
                    while counted(before := await state_of(own_redis)) < 60:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)

                decides = [told_of_it(tmp_path / folder) for folder in "ab"]
                assert sorted(decides) == [False, True]
                survivor = first if decides[1] else second
                os.kill(int((tmp_path / ("a" if decides[0] else "b") / "pid").read_text()), signal.SIGKILL)
                # From now on the new target fails: only who takes the lease over can return it.
                new.scripts = [reply({"error": {"message": "no"}}, status=500)]
                async with asyncio.timeout(300):
                    while (after := await state_of(own_redis))["status"] == "running":
                        for user in users:
                            await http.post(
                                f"{survivor}/v1/chat/completions",
                                json={**chat("m"), "user": f"u{user}"},
                                headers=HEADERS,
                            )
                        await asyncio.sleep(0.05)
                assert counted(after) >= counted(before)
                assert after["owner"] != before["owner"]
