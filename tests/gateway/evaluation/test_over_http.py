"""Answers are judged after they were given, over real sockets: by what, at whose expense, and what is seen of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.spans import ids_of
from tests import faults
from tests.json_server import json_server
from tests.judging import PRICES, JudgingServer, counted, judging, says
from tests.redis_server import RedisServer
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


async def test_only_a_callers_score_replaces_the_judges(tmp_path: Path) -> None:
    async with (
        JudgingServer(lambda text: 4) as up,
        serving(tmp_path / "p", with_admin(judging(up.base_url))) as gateway,
    ):
        answer = await gateway.http.post("/v1/chat/completions", json=chat("m"))
        request_id = answer.headers["x-request-id"]
        assert await score_in_the_ledger(gateway, request_id) == 0.75
        for body, score in (({"label": "odd"}, 0.75), ({"score": 0.5}, 0.5)):
            told = await gateway.http.post(f"/v1/requests/{request_id}/feedback", json=body)
            assert told.status_code == 200
            assert await score_in_the_ledger(gateway, request_id) == score


async def test_its_score_hangs_on_the_requests_trace(tmp_path: Path) -> None:
    with json_server() as tool:
        telemetry = {"endpoint": tool.url, "metrics": False, "scores": {"receiver": "phoenix"}}
        async with (
            JudgingServer(lambda text: 4) as up,
            serving(tmp_path / "p", {**with_admin(judging(up.base_url)), "telemetry": telemetry}) as gateway,
        ):
            answer = await gateway.http.post("/v1/chat/completions", json=chat("m", "Hello"))
            await counted(gateway, "scored")
    (body,) = tool.bodies("/v1/span_annotations")
    (one,) = body["data"]
    assert (one["name"], one["annotator_kind"], one["result"]) == ("judge", "LLM", {"score": 0.75})
    assert one["span_id"] == ids_of(answer.headers["x-request-id"])[1]


async def score_in_the_ledger(gateway: Gateway, request_id: str) -> float:
    """Once there is one."""
    path = f"/admin/api/requests/{request_id}"
    async with asyncio.timeout(300):
        while True:
            row = (await gateway.http.get(path, headers=ADMIN)).json().get("request", {})
            if row.get("score") is not None:
                return float(row["score"])
            await asyncio.sleep(0.01)


async def spendings(gateway: Gateway) -> dict[tuple[str, str], float]:
    """Dollars by tenant and purpose."""
    usage = (await gateway.http.get("/admin/api/usage?by=tenant&by=purpose", headers=ADMIN)).json()
    return {(row["tenant"], row["purpose"]): row["usd"] for row in usage["rows"]}


async def found(gateway: Gateway, name: str, count: int = 1) -> dict[str, Any]:
    """What the API says, once so many rows are there under ``name``."""
    async with asyncio.timeout(300):
        while True:
            told = dict((await gateway.http.get("/admin/api/evaluation", headers=ADMIN)).json())
            if len(told[name]) >= count:
                return told
            await asyncio.sleep(0.01)


async def test_a_shadows_answer_is_compared_in_both_orders(tmp_path: Path) -> None:
    prices = {**PRICES, "big": {"input": 4.0, "output": 4.0}}
    async with JudgingServer(lambda text: 5 if "big" in text else 3) as up:
        policy = {**judging(up.base_url, shadow=1.0), "prices": prices}
        async with serving(tmp_path / "p", with_admin(policy)) as gateway:
            answer = await gateway.http.post("/v1/chat/completions", json=chat("m", stream=True))
            assert answer.text.endswith("data: [DONE]\n\n")
            told = await found(gateway, "worst")
            assert len(up.judged) == 4
            (pair,), (shadow,) = told["worst"], told["shadows"]
            assert (pair["score"], pair["shadow_score"], pair["preferred"]) == (1.0, 0.5, -1)
            assert (pair["target"], pair["shadow_target"]) == ("up/big", "up/small")
            assert pair["request_id"] == answer.headers["x-request-id"]
            assert "question" not in pair
            assert pair["dollars"] == pytest.approx(4 * pair["shadow_dollars"])
            assert pair["seconds"] > 0 < pair["shadow_seconds"]
            assert (shadow["agreement"], shadow["preferred"], shadow["against"]) == (0.0, 0, 1)
            assert told["scores"][0] | {"start": 0, "low": 0, "high": 1} == {
                "model": "m",
                "start": 0,
                "count": 1,
                "mean": 1.0,
                "low": 0,
                "high": 1,
            }
            (budget,) = told["budgets"]
            assert 0 < budget["used"] < budget["dollars"] == 1.0


async def test_beside_a_cache_too_both_answers_are_compared(tmp_path: Path) -> None:
    async with (
        JudgingServer(lambda text: 2) as up,
        serving(
            tmp_path / "p", {**with_admin(judging(up.base_url, shadow=1.0)), "caches": {"exact": {}}}
        ) as gateway,
    ):
        answer = await gateway.http.post("/v1/chat/completions", json=chat("m"))
        assert answer.headers["x-tollgate-cache"] == "miss"
        (shadow,) = (await found(gateway, "scores"))["shadows"]
        assert shadow["count"] == 1


async def test_beside_a_cache_too_what_is_not_to_be_stored_is_not_judged(tmp_path: Path) -> None:
    async with JudgingServer(lambda text: 2) as up:
        policy = {**with_admin(judging(up.base_url, shadow=1.0)), "caches": {"exact": {}}}
        async with serving(tmp_path / "p", policy) as gateway:
            for store, text in ((False, "A secret"), (True, "No secret")):
                body = {"model": "m", "input": text, "store": store}
                assert (await gateway.http.post("/v1/responses", json=body)).status_code == 200
            await found(gateway, "shadows")
        assert up.judged
        assert not any("A secret" in asked for asked in up.judged)


async def test_equal_answers_agree_and_are_asked_about_once(tmp_path: Path) -> None:
    async with (
        JudgingServer(lambda text: 2, big=says("42"), small=says("42")) as up,
        serving(tmp_path / "p", with_admin(judging(up.base_url, shadow=1.0))) as gateway,
    ):
        await gateway.http.post("/v1/chat/completions", json=chat("m"))
        (shadow,) = (await found(gateway, "shadows"))["shadows"]
        assert (shadow["agreement"], shadow["score"], shadow["shadow_score"]) == (1.0, 0.25, 0.25)
        assert len(up.judged) == 1


async def test_where_the_shadow_fails_the_answer_is_judged_alone(tmp_path: Path) -> None:
    async with (
        JudgingServer(small=faults.bad_request) as up,
        serving(tmp_path / "p", with_admin(judging(up.base_url, shadow=1.0))) as gateway,
    ):
        await gateway.http.post("/v1/chat/completions", json=chat("m"))
        await counted(gateway, "scored")
        assert (await found(gateway, "scores"))["shadows"] == []


@pytest.mark.parametrize(
    ("said", "outcome"), [("It is fine.", "unreadable"), ('{"score": 9}', "unreadable"), (None, "failed")]
)
async def test_a_judge_that_answers_badly_is_counted_and_not_asked_again(
    tmp_path: Path, said: str | None, outcome: str
) -> None:
    async with JudgingServer(lambda text: said) as up:
        if said is None:
            up.broken = True
        policy = judging(up.base_url)
        policy["models"]["judge"]["retry"] = {"attempts": 5, "backoff": "1ms"}
        async with serving(tmp_path / "p", with_admin(policy)) as gateway:
            await gateway.http.post("/v1/chat/completions", json=chat("m"))
            figures = await counted(gateway, outcome)
            assert 'tollgate_evaluation_answers_total{model="m",outcome="scored"}' not in figures
            assert len(up.judged) == 1
            assert (await found(gateway, "scores", 0))["scores"] == []


async def test_a_judge_of_the_houses_own_is_shown_what_the_model_was(tmp_path: Path) -> None:
    async with JudgingServer() as up:
        policy = judging(up.base_url)
        policy["backends"]["up"]["local"] = True
        async with serving(tmp_path / "p", policy) as gateway:
            await gateway.http.post("/v1/chat/completions", json=chat("m", "I am ann@example.com"))
            await counted(gateway, "scored")
            assert "I am ann@example.com" in up.judged[0]


async def test_what_stays_local_is_not_shown_to_a_judge_elsewhere(tmp_path: Path) -> None:
    async with JudgingServer() as up:
        policy = judging(up.base_url, models=["fake"])
        policy["models"]["fake"] = {"targets": [{"backend": "scripted", "model": "x"}]}
        policy["tenants"] = {"acme": {"local_only": True}}
        async with serving(tmp_path / "p", policy) as gateway:
            answer = await gateway.http.post("/v1/chat/completions", json=chat("fake"))
            assert answer.status_code == 200
            await counted(gateway, "failed", model="fake")
            assert up.judged == []


async def test_what_is_not_to_be_stored_and_what_a_cache_gives_is_not_judged(tmp_path: Path) -> None:
    async with JudgingServer() as up:
        policy = {**judging(up.base_url), "caches": {"exact": {"ttl": "1h"}}}
        async with serving(tmp_path / "p", policy) as gateway:
            for more in ({"store": False}, {"seed": 1}, {"seed": 1}, {"seed": 1}, {"seed": 2}):
                answer = await gateway.http.post(
                    "/v1/chat/completions", json=chat("m", temperature=0, **more)
                )
                assert answer.status_code == 200
            await counted(gateway, "scored", 2)
            await gateway.http.post("/v1/chat/completions", json=chat("m", "the last"))
            await counted(gateway, "scored", 3)
            assert len(up.judged) == 3


async def test_a_question_gives_its_place_to_a_request_at_once(tmp_path: Path) -> None:
    """The judge says nothing, on the only slot of the backend: the next request does not wait for it."""
    async with JudgingServer() as up:
        up.silent = True
        policy = judging(up.base_url)
        policy["backends"]["up"]["max_concurrency"] = 1
        async with serving(tmp_path / "p", policy) as gateway:
            await gateway.http.post("/v1/chat/completions", json=chat("m", "first"))
            async with asyncio.timeout(300):
                while not up.judged:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            answer = await gateway.http.post("/v1/chat/completions", json=chat("m", "second"))
            assert answer.status_code == 200
            await counted(gateway, "gave_way")


async def test_a_judge_waits_while_its_backend_is_in_use(tmp_path: Path) -> None:
    async with JudgingServer(other=faults.silence) as up:
        policy = judging(up.base_url)
        policy["backends"]["busy"] = {**policy["backends"]["up"], "max_concurrency": 2}
        policy["models"]["other"] = {"targets": [{"backend": "busy", "model": "other"}]}
        policy["models"]["judge"] = {"targets": [{"backend": "busy", "model": "judge"}]}
        async with serving(tmp_path / "p", policy) as gateway:
            hanging = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat("other")))
            async with asyncio.timeout(300):
                while "other" not in up.asked:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            for _ in range(5):
                await gateway.http.post("/v1/chat/completions", json=chat("m"))
            assert up.judged == [], "half of the backend is in use"
            hanging.cancel()
            await asyncio.gather(hanging, return_exceptions=True)
            await counted(gateway, "scored", 5)


async def test_a_policy_without_it_judges_no_more(tmp_path: Path) -> None:
    async with JudgingServer() as up:
        policy = judging(up.base_url)
        async with serving(tmp_path / "p", policy) as gateway:
            await gateway.http.post("/v1/chat/completions", json=chat("m"))
            await counted(gateway, "scored")
            gateway.write({name: value for name, value in policy.items() if name != "evaluation"})
            await gateway.generation(2)
            await gateway.http.post("/v1/chat/completions", json=chat("m"))
            gateway.write(policy)
            await gateway.generation(3)
            await gateway.http.post("/v1/chat/completions", json=chat("m"))
            await counted(gateway, "scored", 2)
            assert len(up.judged) == 2


async def test_replicas_share_the_budget(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.evaluation.evaluator.AGAIN", 0.02)
    async with JudgingServer() as up:
        policy = {**judging(up.base_url, budget={"usd_per_day": 0.012}), "store": redis_server.url}
        policy["prices"]["judge"] = {"input": 10.0, "output": 10.0}
        async with (
            serving(tmp_path / "a" / "p", with_admin(policy)) as one,
            serving(tmp_path / "b" / "p", with_admin(policy)) as other,
        ):
            for gateway in (one, other):
                for _ in range(8):
                    await gateway.http.post("/v1/chat/completions", json=chat("m"))
            dealt = 0.0
            async with asyncio.timeout(300):
                while dealt < 16:
                    pages = [await gateway.metrics() for gateway in (one, other)]
                    outcomes = [page for page in pages for page in page.items()]
                    named = "tollgate_evaluation_answers_total"
                    dealt = sum(value for name, value in outcomes if name.startswith(named))
                    await asyncio.sleep(0.01)
            spent = sum(
                value for name, value in outcomes if name.startswith("tollgate_cost") and "evaluation" in name
            )
            assert 0.003 < spent <= 0.012
            assert sum(value for name, value in outcomes if 'outcome="over_budget"' in name) >= 1
            assert sum(value for name, value in outcomes if 'outcome="scored"' in name) == len(up.judged)
