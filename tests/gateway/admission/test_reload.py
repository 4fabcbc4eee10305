"""An edit of the tiers reaches those who wait."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import Action, FakeUpstream, Script, completion, reply
from tests.serving import KEY, OTHER_KEY, Gateway, a_policy, chat, serving

pytestmark = pytest.mark.anyio


class First(FakeUpstream):
    """Answers all but the first request, which it leaves waiting."""

    def next_script(self) -> Script:
        return (Action.HANG,) if len(self.requests) == 1 else reply(completion())


def policy(upstream: FakeUpstream, mine: float, others: float) -> dict[str, Any]:
    given = a_policy(
        upstream.base_url,
        tiers={"one": {"weight": mine}, "two": {"weight": others}},
        tenants={"acme": {"tier": "one"}, "other": {"tier": "two"}},
    )
    given["backends"]["up"]["max_concurrency"] = 1
    return given


async def ask(gateway: Gateway, token: str, said: str) -> None:
    headers = {"authorization": f"Bearer {token}"}
    answer = await gateway.http.post("/v1/chat/completions", json=chat("up", said), headers=headers)
    assert answer.status_code == 200, answer.text


async def waiting(gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(300):
        name = 'tollgate_backend_requests_waiting{backend="up"}'
        while (await gateway.metrics()).get(name) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("edited", [True, False])
async def test_weights(tmp_path: Path, quick_reload: None, edited: bool) -> None:
    async with First() as upstream:
        async with serving(tmp_path / "p", policy(upstream, 100.0, 1.0)) as gateway:
            held = asyncio.create_task(ask(gateway, KEY, "held"))
            await upstream.arrived()
            asked = [
                asyncio.create_task(ask(gateway, token, said))
                for token, said in ((KEY, "mine"), (OTHER_KEY, "others"))
                for _ in range(4)
            ]
            await waiting(gateway, 8)
            if edited:
                gateway.write(policy(upstream, 1.0, 100.0))
                await gateway.generation(2)
            held.cancel()
            with suppress(asyncio.CancelledError):
                await held
            await asyncio.gather(*asked)
        order = [request.json()["messages"][0]["content"] for request in upstream.requests[1:]]
        first, then = ("others", "mine") if edited else ("mine", "others")
        assert order == [first] * 4 + [then] * 4
