"""What one worker keeps, asked for at another: receipts, stored responses, conversations, the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.redis_server import RedisServer
from tests.serving import OTHER_KEY, Gateway, a_policy, chat, serving

pytestmark = pytest.mark.anyio

TIMES = 40
Pair = tuple[Gateway, Gateway]


@pytest.fixture
async def workers(tmp_path: Path) -> AsyncIterator[Pair]:
    """Two workers of one gateway, without Redis."""
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(
                serving(
                    *(tmp_path / str(number), a_policy("http://127.0.0.1:1/v1")),
                    workers=2,
                    worker=number,
                    peers=tmp_path / "peers",
                )
            )
            for number in (1, 2)
        ]
        yield one, other


@pytest.fixture(params=[1, 2], ids=["one worker each", "two workers each"])
async def replicas(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer
) -> AsyncIterator[Pair]:
    """Two gateways on one Redis, without a way to ask one another."""
    policy = a_policy("http://127.0.0.1:1/v1", store=redis_server.url)
    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(
                serving(
                    *(tmp_path / name, policy),
                    workers=request.param,
                    peers=tmp_path / f"peers-{name}" if request.param > 1 else None,
                )
            )
            for name in ("one", "other")
        ]
        yield one, other


async def found(pair: Pair) -> int:
    """How many receipts the one that did not answer finds, asked at once."""
    count = 0
    for number in range(TIMES):
        answers, looks = pair if number % 2 else pair[::-1]
        answer = await answers.http.post("/v1/chat/completions", json=chat("fake", f"x{number}"))
        name = answer.headers["x-request-id"]
        receipt = await looks.http.get(f"/v1/requests/{name}")
        count += receipt.status_code == 200 and receipt.json()["id"] == name
        if number:
            continue
        others = await looks.http.get(
            f"/v1/requests/{name}", headers={"authorization": f"Bearer {OTHER_KEY}"}
        )
        assert others.status_code == 404
    return count


async def test_every_receipt_is_found_at_the_other_worker(workers: Pair) -> None:
    assert await found(workers) == TIMES


async def test_every_receipt_is_found_at_the_other_gateway_on_one_redis(replicas: Pair) -> None:
    assert await found(replicas) == TIMES


async def test_a_receipt_that_nobody_has_is_not_waited_for_by_many(workers: Pair) -> None:
    made_up = [f"req_{number:024x}" for number in range(50)]
    answers = await asyncio.gather(*(workers[0].http.get(f"/v1/requests/{name}") for name in made_up))
    assert {one.status_code for one in answers} == {404}


async def test_a_conversation_goes_on_at_whichever_worker(workers: Pair) -> None:
    previous: dict[str, Any] = {}
    for number in range(6):
        body = {"model": "fake", "input": f"question {number}", **previous}
        answer = await workers[number % 2].http.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        previous = {"previous_response_id": answer.json()["id"]}
    name = previous["previous_response_id"]
    for worker in workers:
        assert (await worker.http.get(f"/v1/responses/{name}")).json()["id"] == name
        items = (await worker.http.get(f"/v1/responses/{name}/input_items?limit=100")).json()["data"]
        assert len(items) == 11
        foreign = {"authorization": f"Bearer {OTHER_KEY}"}
        assert (await worker.http.get(f"/v1/responses/{name}", headers=foreign)).status_code == 404
    assert (await workers[0].http.delete(f"/v1/responses/{name}")).json()["deleted"]
    for worker in workers:
        assert (await worker.http.get(f"/v1/responses/{name}")).status_code == 404


async def test_what_is_made_in_the_background_is_seen_and_cancelled_at_the_other_worker(
    workers: Pair,
) -> None:
    one, other = workers
    body = {"model": "slow", "input": "x", "background": True}
    name = (await one.http.post("/v1/responses", json=body)).json()["id"]
    assert (await other.http.get(f"/v1/responses/{name}")).json()["status"] in ("queued", "in_progress")
    assert (await other.http.post(f"/v1/responses/{name}/cancel")).json()["status"] == "cancelled"
    for worker in workers:
        assert (await worker.http.get(f"/v1/responses/{name}")).json()["status"] == "cancelled"


async def test_a_worker_that_does_not_answer_is_not_taken_for_one_that_has_nothing(
    workers: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("gateway.control.peers.TIMEOUT", 0.2)
    silent = await asyncio.start_unix_server(_never, tmp_path / "peers" / "3.sock")
    async with silent:
        answer = await workers[0].http.get("/v1/responses/resp_" + "0" * 24)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


async def _never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()
