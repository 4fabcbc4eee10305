"""``/v1/batches`` over a real socket, by OpenAI's SDK: from a file to files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.batches import validation
from gateway.batches.batch_table import BATCHES
from gateway.databases.sqlite import SqliteDatabase
from gateway.web.batch_host import BatchHost
from tests.gateway.batches.submitting import CHAT, content, create, end, line, until, written
from tests.serving import KEY, NARROW_KEY, OTHER_KEY, Gateway, a_policy, key, serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def gateway(tmp_path: Path, quick_reload: None) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", policy()) as running:
        yield running


def policy(**more: Any) -> dict[str, Any]:
    return a_policy("http://127.0.0.1:1/v1", **more)


Client = Callable[..., openai.AsyncOpenAI]


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:

        def make(gateway: Gateway, token: str = KEY) -> openai.AsyncOpenAI:
            one = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=token, max_retries=0)
            stack.push_async_callback(one.close)
            return one

        yield make


async def test_lines_become_answers_in_the_order_of_the_input(gateway: Gateway, client: Client) -> None:
    acme = client(gateway)
    lines = [line(f"line {i}", f"Hi {i}") for i in range(25)]
    batch = await create(acme, *lines, metadata={"night": "ly"})
    assert (batch.status, batch.object, batch.completion_window) == ("validating", "batch", "24h")
    assert batch.expires_at == batch.created_at + 86_400
    done = await end(acme, batch)
    assert (done.status, done.metadata, done.model, done.errors) == (
        "completed",
        {"night": "ly"},
        "fake",
        None,
    )
    assert done.request_counts is not None and done.usage is not None
    assert done.request_counts.model_dump() == {"total": 25, "completed": 25, "failed": 0}
    times = [done.created_at, done.in_progress_at, done.finalizing_at, done.completed_at]
    assert times == sorted(one for one in times if one is not None)
    output = await content(acme, done.output_file_id)
    assert [one["custom_id"] for one in output] == [f"line {i}" for i in range(25)]
    assert done.error_file_id is None
    first = output[0]
    assert first.keys() == {"id", "custom_id", "response", "error"}
    assert first["response"].keys() == {"status_code", "request_id", "body"}
    assert first["error"] is None
    assert first["response"]["body"]["choices"][0]["message"]["content"] == "one two three"
    assert done.usage.output_tokens == 25 * 3
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    file = await acme.files.retrieve(done.output_file_id or "")
    assert (file.purpose, file.expires_at) == ("batch_output", None)


async def test_errors_of_lines_are_in_a_file_of_their_own(gateway: Gateway, client: Client) -> None:
    acme = client(gateway)
    wrong = {**line("wrong"), "body": {"model": "fake", "messages": "none"}}
    batch = await create(
        acme,
        *(line("good"), wrong),
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    done = await end(acme, batch)
    assert done.request_counts is not None
    assert (done.status, done.request_counts.failed) == ("completed", 1)
    (error,) = await content(acme, done.error_file_id)
    assert (error["custom_id"], error["error"], error["response"]["status_code"]) == ("wrong", None, 400)
    assert error["response"]["body"]["error"]["param"] == "messages"
    assert [one["custom_id"] for one in await content(acme, done.output_file_id)] == ["good"]
    file = await acme.files.retrieve(done.error_file_id or "")
    assert file.expires_at is not None
    assert file.expires_at - 3600 <= file.created_at < file.expires_at, (
        "it was begun an hour before it expires"
    )


BODIES = {
    "/v1/completions": {"model": "fake", "prompt": "Once"},
    "/v1/responses": {"model": "fake", "input": "Hi"},
    "/v1/embeddings": {"model": "up", "input": ["one", "two"]},
}


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/responses"])
async def test_each_endpoint_answers_as_it_does_itself(
    gateway: Gateway, client: Client, endpoint: str
) -> None:
    acme = client(gateway)
    one = {"custom_id": "a", "method": "POST", "url": endpoint, "body": BODIES[endpoint]}
    done = await end(acme, await create(acme, one, endpoint=endpoint))
    (answer,) = await content(acme, done.output_file_id)
    alone = (await gateway.http.post(endpoint, json=BODIES[endpoint])).json()
    assert answer["response"]["body"].keys() == alone.keys()
    assert done.usage is not None
    assert done.usage.output_tokens == 3
    if endpoint == "/v1/responses":
        stored = await acme.responses.retrieve(answer["response"]["body"]["id"])
        assert stored.output_text == "one two three"


BAD = {
    "not JSON": (b"{", "invalid_json_line", None),
    "nested too deep": (
        written(line("deep")).replace(b'"Hi"', b"[" * 600 + b"]" * 600),
        "invalid_json_line",
        None,
    ),
    "not an object": (b"[]", "invalid_json_line", None),
    "no custom_id": ({**line("x1"), "custom_id": None}, "missing_required_parameter", "custom_id"),
    "a custom_id with a NUL": ({**line("x"), "custom_id": "a\0b"}, "missing_required_parameter", "custom_id"),
    "another url": (line("x2", url="/v1/embeddings"), "url_mismatch", "url"),
    "another method": ({**line("x3"), "method": "GET"}, "invalid_request", "method"),
    "no body": ({**line("x4"), "body": None}, "missing_required_parameter", "body"),
    "no model": ({**line("x5"), "body": {"messages": []}}, "missing_required_parameter", "body.model"),
    "a stream": (line("x6", stream=True), "invalid_request", "body.stream"),
    "an unknown model": (line("x7", model="none"), "model_not_found", "body.model"),
    "the same custom_id": (line("first"), "duplicate_custom_id", "custom_id"),
}


async def test_bad_lines_fail_the_batch_and_each_is_told(gateway: Gateway, client: Client) -> None:
    acme = client(gateway)
    wrong = [bad for bad, _, _ in BAD.values()]
    done = await end(acme, await create(acme, line("first"), b"", *wrong, line("last")))
    assert (done.status, done.output_file_id, done.error_file_id) == ("failed", None, None)
    assert done.failed_at is not None and done.errors is not None and done.errors.data is not None
    told = [(one.line, one.code, one.param) for one in done.errors.data]
    assert told == [(n, code, param) for n, (_, code, param) in enumerate(BAD.values(), 3)]
    assert all(one.message for one in done.errors.data)


async def test_an_empty_input_fails(gateway: Gateway, client: Client) -> None:
    acme = client(gateway)
    done = await end(acme, await create(acme, b"\n\n"))
    assert done.errors is not None and done.errors.data is not None
    assert [one.code for one in done.errors.data] == ["empty_file"]


async def test_a_model_that_the_key_may_not_use_is_as_unknown(gateway: Gateway, client: Client) -> None:
    narrow = client(gateway, NARROW_KEY)
    done = await end(narrow, await create(narrow, line("a"), line("b", model="slow")))
    assert done.errors is not None and done.errors.data is not None
    assert [(one.line, one.code) for one in done.errors.data] == [(2, "model_not_found")]


async def test_tenants_do_not_see_each_others_batches(gateway: Gateway, client: Client) -> None:
    acme, other = client(gateway), client(gateway, OTHER_KEY)
    batch = await end(acme, await create(acme, line("a")))
    assert [one.id for one in (await acme.batches.list()).data] == [batch.id]
    assert (await other.batches.list()).data == []
    with pytest.raises(openai.NotFoundError):
        await other.batches.retrieve(batch.id)
    with pytest.raises(openai.NotFoundError):
        await other.batches.cancel(batch.id)
    with pytest.raises(openai.NotFoundError):
        await other.files.content(batch.output_file_id or "")
    with pytest.raises(openai.BadRequestError, match="no file"):
        await other.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")


async def test_batches_are_listed_page_by_page_the_newest_first(gateway: Gateway, client: Client) -> None:
    acme = client(gateway)
    made = [(await create(acme, line("a"))).id for _ in range(5)]
    first = await acme.batches.list(limit=2)
    assert [one.id for one in first.data] == made[:2:-1]
    assert first.has_more
    assert [one.id async for one in acme.batches.list(limit=2)] == made[::-1]


WRONG: dict[str, dict[str, Any]] = {
    "completion_window": {"completion_window": "1h"},
    "endpoint": {"endpoint": "/v1/messages"},
    "input_file_id": {"input_file_id": "file-none"},
    "metadata.a": {"metadata": {"a": "x" * 513}},
    "output_expires_after.seconds": {"output_expires_after": {"anchor": "created_at", "seconds": 60}},
}


@pytest.mark.parametrize("param", WRONG)
async def test_what_is_wrong_with_a_batch_is_said_at_once(
    gateway: Gateway, client: Client, param: str
) -> None:
    acme = client(gateway)
    file = await acme.files.create(file=("input.jsonl", written(line("a"))), purpose="batch")
    given = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **WRONG[param]}
    answer = await gateway.http.post("/v1/batches", json=given)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_file_for_another_purpose_is_refused(gateway: Gateway, client: Client) -> None:
    acme = client(gateway)
    file = await acme.files.create(file=("input.jsonl", written(line("a"))), purpose="user_data")
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await acme.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")


async def test_cancelling_stops_what_runs_and_keeps_what_is_done(gateway: Gateway, client: Client) -> None:
    acme = client(gateway)
    quick = [line(f"quick {i}") for i in range(3)]
    slow = [line(f"slow {i}", model="slow") for i in range(200)]
    batch = await create(acme, *quick, *slow)
    batch = await until(acme, batch, 3)
    asked = await acme.batches.cancel(batch.id)
    assert (asked.status, asked.cancelling_at is None) == ("cancelling", False)
    done = await end(acme, asked)
    assert (done.status, done.cancelled_at is None) == ("cancelled", False)
    output = await content(acme, done.output_file_id)
    undone = await content(acme, done.error_file_id)
    assert {f"quick {i}" for i in range(3)} <= {one["custom_id"] for one in output}
    assert len(output) + len(undone) == 203
    assert {one["error"]["code"] for one in undone} == {"batch_cancelled"}
    metrics = await gateway.metrics()
    assert metrics.get('tollgate_backend_requests_in_flight{backend="slow"}', 0.0) == 0.0
    with pytest.raises(openai.ConflictError, match="Cannot cancel"):
        await acme.batches.cancel(batch.id)


async def test_what_is_cancelled_before_its_input_is_known_has_no_lines(
    gateway: Gateway, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, parse, parsed = asyncio.Event(), BatchHost.parse, 0

    async def parse_once(self: BatchHost, tenant: str, data: bytes, endpoint: str) -> Any:
        nonlocal parsed
        parsed += 1
        if parsed == 2:  # what was parsed first is in the database
            kept.set()
            await asyncio.get_running_loop().create_future()
        return await parse(self, tenant, data, endpoint)

    monkeypatch.setattr(validation, "CHUNK", 100)
    monkeypatch.setattr(BatchHost, "parse", parse_once)
    acme = client(gateway)
    batch = await create(acme, *(line(f"{i}") for i in range(3)))
    await kept.wait()
    done = await end(acme, await acme.batches.cancel(batch.id))
    assert done.request_counts is not None
    assert (done.status, done.request_counts.total) == ("cancelled", 0)
    assert (done.output_file_id, done.error_file_id) == (None, None)


async def test_moderations_name_whatever_model_they_do_alone(gateway: Gateway, client: Client) -> None:
    acme = client(gateway)
    url = "/v1/moderations"
    bodies: list[dict[str, Any]] = [{"input": "Hi", "model": "omni-moderation-latest"}, {"input": "Hi"}]
    lines = [
        {"custom_id": f"{i}", "method": "POST", "url": url, "body": body} for i, body in enumerate(bodies)
    ]
    done = await end(acme, await create(acme, *lines, endpoint=url))
    assert (done.status, done.errors, done.model) == ("completed", None, None)
    answers = await content(acme, done.output_file_id)
    assert [one["response"]["body"]["results"][0]["flagged"] for one in answers] == [False, False]


async def test_a_revoked_key_fails_what_is_left_with_that_reason(gateway: Gateway, client: Client) -> None:
    acme, other = client(gateway), client(gateway, OTHER_KEY)
    batch = await create(other, *(line(f"{i}", model="slow") for i in range(60)))
    batch = await until(other, batch, 1)
    second = key("tg-other-2", "other-2", tenant="other")
    keys = [one for one in policy()["keys"] if one["id"] != "other-1"]
    gateway.write(policy(keys=[*keys, second]))
    await gateway.generation(2)
    other = client(gateway, "tg-other-2")
    done = await end(other, batch)
    assert done.status == "completed"
    assert done.request_counts is not None
    assert done.request_counts.completed + done.request_counts.failed == 60
    errors = await content(other, done.error_file_id)
    assert len(errors) == done.request_counts.failed > 0
    assert {one["error"]["code"] for one in errors} == {"invalid_api_key"}
    assert all("'other-1'" in one["error"]["message"] for one in errors), "it is not one that was mistyped"
    assert (await acme.batches.list()).data == []


async def test_a_model_that_is_taken_away_fails_its_lines(gateway: Gateway, client: Client) -> None:
    acme = client(gateway)
    batch = await create(acme, *(line(f"{i}", model="slow") for i in range(60)))
    batch = await until(acme, batch, 1)
    without = policy()
    del without["models"]["slow"]
    gateway.write(without)
    done = await end(acme, batch)
    errors = await content(acme, done.error_file_id)
    assert errors
    assert {one["response"]["body"]["error"]["code"] for one in errors} == {"model_not_found"}


async def test_one_that_expires_has_what_was_done_and_says_what_was_not(
    gateway: Gateway, client: Client, tmp_path: Path
) -> None:
    acme = client(gateway)
    quick = [line(f"quick {i}") for i in range(3)]
    batch = await create(acme, *quick, *(line(f"slow {i}", model="slow") for i in range(100)))
    batch = await until(acme, batch, 3)
    with SqliteDatabase(tmp_path / "state" / "batches.sqlite", BATCHES.scripts).changing() as change:
        change.run("UPDATE batches SET expires_at = created_at", {})
    done = await end(acme, batch)
    assert (done.status, done.expired_at is None, done.completed_at) == ("expired", False, None)
    output = await content(acme, done.output_file_id)
    undone = await content(acme, done.error_file_id)
    assert {f"quick {i}" for i in range(3)} <= {one["custom_id"] for one in output}
    assert len(output) + len(undone) == 103
    assert {one["error"]["code"] for one in undone} == {"batch_expired"}
    assert {one["response"] for one in undone} == {None}


async def test_lines_of_several_models_run_beside_each_other(gateway: Gateway, client: Client) -> None:
    acme = client(gateway)
    lines = [line(f"{i}", model=("fake", "slow")[i % 2]) for i in range(6)]
    done = await end(acme, await create(acme, *lines, b""))
    assert (done.status, done.model) == ("completed", None)
    output = await content(acme, done.output_file_id)
    assert [one["response"]["body"]["model"] for one in output] == ["fake", "slow"] * 3


async def test_metrics_tell_how_lines_ended(gateway: Gateway, client: Client) -> None:
    acme = client(gateway)
    wrong = {**line("wrong"), "body": {"model": "fake", "messages": "none"}}
    await end(acme, await create(acme, *(line(f"{i}") for i in range(4)), wrong))
    metrics = await gateway.metrics()
    assert metrics['tollgate_batch_line_runs_total{outcome="completed"}'] == 4
    assert metrics['tollgate_batch_line_runs_total{outcome="failed"}'] == 1


async def test_what_is_too_long_for_one_batch_fails_it(tmp_path: Path, client: Client) -> None:
    async with serving(tmp_path / "policies", policy(batches={"max_lines": 3})) as gateway:
        acme = client(gateway)
        done = await end(acme, await create(acme, *(line(f"{i}") for i in range(4))))
        assert done.errors is not None and done.errors.data is not None
        assert [(one.code, one.line) for one in done.errors.data] == [("too_many_tasks", None)]
