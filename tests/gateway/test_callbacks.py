"""A gateway tells a receiver what happens: over real sockets, verified as its receivers would."""

from __future__ import annotations

import asyncio
import base64
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from gateway.databases.sqlite import SqliteDatabase
from gateway.observe import callbacks
from gateway.observe.ended import Ended
from gateway.observe.ledger.ledger import Ledger
from gateway.stores import tally
from gateway.types import Usage
from tests.fakes import FakeUpstream, a_bill, a_call, completion, reply
from tests.ledgers import rows
from tests.redis_server import RedisServer
from tests.serving import Gateway, a_policy, chat, key, serving

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like a store or a receiver that is away."""
    monkeypatch.setattr(tally, "TIMEOUT", 60.0)
    monkeypatch.setattr(callbacks, "SECONDS_TO_CLOSE", 300.0)


SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"
WORD = "Bluebird"
TAKEN = reply("", status=204)


def policy(receiver: FakeUpstream, up: str = "http://127.0.0.1:1/v1", **more: Any) -> dict[str, Any]:
    callback = {"url": f"http://127.0.0.1:{receiver.port}/hook", "secret": SECRET, "timeout": "60s"}
    return a_policy(up, callbacks=[{**callback, **more.pop("callback", {})}], **more)


async def heard(receiver: FakeUpstream, count: int = 1) -> list[dict[str, Any]]:
    """What the receiver has been told, once it is so much."""
    await receiver.arrived(count)
    return [Webhook(SECRET).verify(request.body, request.headers) for request in receiver.requests]


async def ask(gateway: Gateway, content: str = "Hi", model: str = "fake") -> Any:
    return await gateway.http.post("/v1/chat/completions", json=chat(model, content))


async def test_an_end_user_who_costs_far_more_than_others(tmp_path: Path) -> None:
    ledger = Ledger(SqliteDatabase(tmp_path / "state" / "ledger.sqlite"))
    for number in range(40):
        call = a_call(request_id=f"req_{number}", params={"user": f"user-{number}"})
        call.receipt.created = time.time() - 3600
        ledger.record(Ended(call, a_bill(Usage(1, 1), 10**8 * (1000 if number == 7 else 1 + number % 5))))
    await ledger.aclose()
    (user,) = (row["end_user"] for row in rows(ledger.database) if row["request_id"] == "req_7")
    callback = {"events": ["cost"]}
    async with (
        FakeUpstream(TAKEN) as receiver,
        serving(tmp_path / "p", policy(receiver, callback=callback)),
    ):
        (event,) = await heard(receiver)
    assert event["type"] == "cost.outlier"
    told = event["data"]
    assert (told["tenant"], told["user"], told["spent_usd"], told["users"]) == ("acme", user, 100.0, 40)
    assert told["usual_usd"] == 0.3 and told["z"] >= 5


@pytest.mark.parametrize("direction", ["input", "output"])
async def test_what_a_guard_blocks(tmp_path: Path, direction: str) -> None:
    guards = {"topics": {"words": [WORD], "on": [direction], "action": "block"}}
    async with (
        FakeUpstream(TAKEN) as receiver,
        FakeUpstream(reply(completion(f"It is {WORD}."))) as up,
        serving(tmp_path / "p", policy(receiver, up.base_url, guards=guards)) as gateway,
    ):
        assert (await ask(gateway, "What else?", "fake")).status_code == 200
        answer = await ask(gateway, f"I know of {WORD}." if direction == "input" else "Hi", "up")
        (event,) = await heard(receiver)
    assert event["type"] == "guard.blocked"
    assert event["data"] == {
        "request_id": answer.headers["x-request-id"],
        "tenant": "acme",
        "key_id": "acme-1",
        "model": "up",
        "route": "/v1/chat/completions",
        "guard": "topics",
        "direction": direction,
        "labels": {"word:0": 1},
        "check": "fast",
        "score": 1.0,
    }
    assert WORD.encode() not in receiver.requests[0].body


async def test_a_policy_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ODD_SECRET", "hunter2hunter2")
    async with FakeUpstream(TAKEN) as receiver:
        good = policy(receiver)
        async with serving(tmp_path / "p", good) as gateway:
            gateway.write({**good, "store": "${ODD_SECRET}", "modles": {}})
            (event,) = await heard(receiver)
            assert (await ask(gateway)).status_code == 200, "the last good one stays in force"
            gateway.write(good | {"limits": {}})
            await gateway.generation(2)
    assert event["type"] == "policy.rejected"
    assert {problem["file"] for problem in event["data"]["problems"]} == {
        str(tmp_path / "p" / "gateway.yaml")
    }
    assert any("modles" in problem["message"] for problem in event["data"]["problems"])
    assert all(problem["line"] > 0 for problem in event["data"]["problems"])
    assert b"hunter2" not in receiver.requests[0].body


async def test_a_breaker_that_opens_and_closes(tmp_path: Path) -> None:
    failing = reply({"error": {"message": "no"}}, status=500)
    async with FakeUpstream(TAKEN) as receiver, FakeUpstream(failing) as up:
        rules = policy(receiver, up.base_url, callback={"events": ["breaker"]})
        rules["backends"]["up"]["breaker"] = {"failures": 2, "cooldown": "1ms"}
        async with serving(tmp_path / "p", rules) as gateway:
            for _ in range(3):
                await ask(gateway, model="up")
            await heard(receiver)
            up.scripts = [reply(completion())]
            async with asyncio.timeout(300):
                while (await ask(gateway, model="up")).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            events = await heard(receiver, 2)
    opened = next(event for event in events if event["type"] == "breaker.opened")
    assert (opened["data"]["backend"], opened["data"]["failures"]) == ("up", 2)
    assert {event["type"] for event in events} == {"breaker.opened", "breaker.closed"}


PRICED: dict[str, Any] = {
    "prices": {"upstream-model": {"input": 0, "output": 1_000_000}},  # a dollar a token, three an answer
}


def budgeted(receiver: FakeUpstream, up: str, **more: Any) -> dict[str, Any]:
    keys = [key("tg-acme-1", "acme-1", tenant="acme", budget={"usd_per_day": 20.0})]
    return policy(receiver, up, callback={"events": ["budget"]}, keys=keys, **PRICED, **more)


async def spend(gateway: Gateway) -> int:
    body = {**chat("up", "Hi"), "max_tokens": 3}
    return int((await gateway.http.post("/v1/chat/completions", json=body)).status_code)


async def test_a_budget_that_is_spent(tmp_path: Path) -> None:
    async with (
        FakeUpstream(TAKEN) as receiver,
        FakeUpstream(reply(completion())) as up,
        serving(tmp_path / "p", budgeted(receiver, up.base_url)) as gateway,
    ):
        assert [await spend(gateway) for _ in range(7)] == [200] * 6 + [429]
        events = await heard(receiver, 3)
    told = {(event["type"], event["data"].get("share")): event["data"] for event in events}
    assert told.keys() == {("budget.reached", 0.5), ("budget.reached", 0.8), ("budget.refused", None)}
    last = told["budget.refused", None]
    assert (last["scope"], last["key"], last["window"]) == ("key", "acme-1", "day")
    assert (last["spent_usd"], last["budget_usd"]) == (18.0, 20.0)


async def test_gateways_with_one_store_tell_it_once(tmp_path: Path, redis_server: RedisServer) -> None:
    store = redis_server.url.replace("/0", "/11")
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(FakeUpstream(TAKEN))
        up = await stack.enter_async_context(FakeUpstream(reply(completion())))
        rules = budgeted(receiver, up.base_url, store=store)
        gateways = [
            await stack.enter_async_context(serving(tmp_path / name / "p", rules)) for name in ("a", "b")
        ]
        for _ in range(3):
            assert [await spend(gateway) for gateway in gateways] == [200, 200]
        assert [await spend(gateway) for gateway in gateways] == [429, 429]
        await heard(receiver, 3)
    # Both gateways have stopped, and told what they had to tell.
    events = await heard(receiver, 3)
    assert sorted(event["data"].get("share", 2) for event in events) == [0.5, 0.8, 2]
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 3


async def test_what_waits_is_sent_at_the_end(tmp_path: Path) -> None:
    guards = {"topics": {"words": [WORD], "action": "block"}}
    async with FakeUpstream(reply("", status=500), TAKEN) as receiver:
        async with serving(tmp_path / "p", policy(receiver, guards=guards)) as gateway:
            await ask(gateway, WORD)
            await receiver.arrived(1)
        assert len(receiver.requests) == 2
    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]


async def test_a_receiver_of_another_policy_takes_over(tmp_path: Path) -> None:
    guards = {"topics": {"words": [WORD], "action": "block"}}
    async with (
        FakeUpstream(TAKEN) as first,
        FakeUpstream(TAKEN) as second,
        serving(tmp_path / "p", policy(first, guards=guards)) as gateway,
    ):
        await ask(gateway, WORD)
        await heard(first)
        gateway.write(policy(second, guards=guards))
        await gateway.generation(2)
        await ask(gateway, WORD)
        await heard(second)
        gateway.write(a_policy("http://127.0.0.1:1/v1", guards=guards))
        await gateway.generation(3)
        assert (await ask(gateway, WORD)).status_code == 400
    assert (len(first.requests), len(second.requests)) == (1, 1)
