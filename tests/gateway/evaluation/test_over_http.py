"""Answers are judged after they were given, over real sockets: by what, at whose expense, and what is seen of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.judging import JudgingServer, counted, judging
from tests.serving import Gateway, chat, key, serving

pytestmark = pytest.mark.anyio
ADMIN = {"authorization": "Bearer tg-admin-1"}


def with_admin(policy: dict[str, Any]) -> dict[str, Any]:
    keys = [*policy["keys"], key("tg-admin-1", "admin-1", tenant="house", scopes=["admin"])]
    return {**policy, "admin": {"enabled": True}, "keys": keys}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_is_scored_and_the_house_pays(tmp_path: Path, stream: bool) -> None:
    async with (
        JudgingServer(lambda text: 4) as up,
        serving(tmp_path / "p", with_admin(judging(up.base_url))) as gateway,
    ):
        answer = await gateway.http.post(
            "/v1/chat/completions", json=chat("m", "I am ann@example.com", stream=stream)
        )
        assert answer.status_code == 200
        figures = await counted(gateway, "scored")
        assert figures['tollgate_evaluation_score_sum{model="m"}'] == 0.75
        (asked,) = up.judged
        assert "Here is big." in asked
        assert "I am <EMAIL_ADDRESS_1>" in asked
        assert "ann@example.com" not in asked
        async with asyncio.timeout(300):
            while len(spent := await spendings(gateway)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert set(spent) == {("acme", "answer"), ("tollgate", "evaluation")}
        assert spent[("tollgate", "evaluation")] > 0
        assert await score_in_the_ledger(gateway, answer.headers["x-request-id"]) == 0.75


async def score_in_the_ledger(gateway: Gateway, request_id: str) -> float:
    """Once there is one."""
    path = f"/admin/api/requests/{request_id}"
    async with asyncio.timeout(300):
        while True:
            row = (await gateway.http.get(path, headers=ADMIN)).json()["request"]
            if row.get("score") is not None:
                return float(row["score"])
            await asyncio.sleep(0.01)


async def spendings(gateway: Gateway) -> dict[tuple[str, str], float]:
    """Dollars by tenant and purpose."""
    usage = (await gateway.http.get("/admin/api/usage?by=tenant&by=purpose", headers=ADMIN)).json()
    return {(row["tenant"], row["purpose"]): row["usd"] for row in usage["rows"]}
