"""The app as a whole: policies that change under it, readiness, figures, logs, and a store that goes away."""

from __future__ import annotations

import asyncio
import logging
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from starlette.types import Message

from gateway.app import build_app
from gateway.policy.problems import PolicyError
from gateway.settings import Settings
from tests.conftest import RedisServer
from tests.fakes import Action, FakeUpstream, answer_events, completion, delta, reply, sse, stream, within
from tests.serving import KEY, OPERATOR, OTHER_KEY, Gateway, RawConnection, a_policy, chat, key, serving

pytestmark = pytest.mark.anyio


async def test_a_broken_policy_at_the_start_keeps_the_gateway_down(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("version: 1\nbackend: {}\n")
    app = build_app(Settings(policies=tmp_path))
    told: list[Message] = []

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        told.append(message)

    with pytest.raises(PolicyError, match=r"gateway\.yaml:"):
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert [message["type"] for message in told] == ["lifespan.startup.failed"]


async def test_the_last_good_policy_stands_in_for_a_broken_one(tmp_path: Path) -> None:
    broken, good = tmp_path / "policies", tmp_path / "good"
    good.mkdir()
    (good / "gateway.yaml").write_text(yaml.safe_dump(a_policy("http://127.0.0.1:1/v1")))
    async with serving(broken, {"version": 2}, last_good=good) as gateway:
        assert (await gateway.http.post("/v1/chat/completions", json=chat())).status_code == 200
        assert (await gateway.metrics())["tollgate_policy_errors_total"] == 1


async def test_a_stream_ends_under_the_policy_it_began_with(gateway: Gateway, upstream: FakeUpstream) -> None:
    reloaded = asyncio.Event()
    upstream.scripts = [stream(sse(delta("a")), reloaded, *answer_events("b"))]
    async with RawConnection(gateway.port) as wire:
        wire.post(chat("up", stream=True))
        await wire.head()
        chunks = wire.chunks()
        await anext(chunks)
        policy = a_policy(upstream.base_url)
        del policy["models"]["up"], policy["backends"]["up"]
        policy["keys"] = [key(KEY, "acme-1", tenant="acme", models=["fake"])]
        gateway.write(policy)
        await gateway.generation(2)
        assert (await gateway.http.post("/v1/chat/completions", json=chat("up"))).status_code == 404
        assert (await gateway.http.post("/v1/chat/completions", json=chat())).status_code == 200
        assert len(upstream.open) == 1
        reloaded.set()
        rest = b"".join([chunk async for chunk in chunks])
    assert b'"b"' in rest
    assert rest.endswith(b"[DONE]\n\n")
    async with asyncio.timeout(300):
        while upstream.open:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_reload_keeps_the_connections_of_unchanged_backends(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    await gateway.http.post("/v1/chat/completions", json=chat("up"))
    policy = a_policy(upstream.base_url)
    policy["models"]["again"] = policy["models"]["up"]
    gateway.write(policy)
    await gateway.generation(2)
    await gateway.http.post("/v1/chat/completions", json=chat("again"))
    assert (len(upstream.requests), upstream.connections) == (2, 1)


async def test_a_revoked_key_is_out_and_a_new_one_in(gateway: Gateway, upstream: FakeUpstream) -> None:
    gateway.write(a_policy(upstream.base_url, keys=[key("tg-new", "new-1")]))
    await gateway.generation(2)
    assert (await gateway.http.get("/v1/models")).status_code == 401
    new = {"authorization": "Bearer tg-new"}
    assert (await gateway.http.get("/v1/models", headers=new)).status_code == 200


@pytest.mark.parametrize(
    "edit", ["version: [", "version: 1\nnonsense: true\n", ""], ids=["syntax", "key", "empty"]
)
async def test_a_broken_edit_leaves_all_as_it_was(
    gateway: Gateway, upstream: FakeUpstream, edit: str
) -> None:
    gateway.write(edit)
    async with asyncio.timeout(300):
        while not (await gateway.metrics())["tollgate_policy_errors_total"]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await gateway.http.post("/v1/chat/completions", json=chat())).status_code == 200
    assert (await gateway.metrics())["tollgate_policy_generation"] == 1
    gateway.write(a_policy(upstream.base_url, keys=[key(KEY, "k", models=["up"])]))
    await gateway.generation(2)
    assert [model["id"] for model in (await gateway.http.get("/v1/models")).json()["data"]] == ["up"]


async def test_it_is_not_ready_once_it_is_to_stop(tmp_path: Path, upstream: FakeUpstream) -> None:
    draining = tmp_path / "draining"
    async with serving(tmp_path / "policies", a_policy(upstream.base_url), draining=draining) as gateway:
        assert (await gateway.http.get("/readyz", headers=OPERATOR)).status_code == 200
        draining.touch()
        response = await gateway.http.get("/readyz", headers=OPERATOR)
        assert (response.status_code, response.json()["status"]) == (503, "stopping")
        assert (await gateway.http.post("/v1/chat/completions", json=chat())).status_code == 200
        assert (await gateway.http.get("/healthz")).status_code == 200


async def test_readiness_names_each_backend(gateway: Gateway) -> None:
    verdicts = (await gateway.http.get("/readyz", headers=OPERATOR)).json()["backends"]
    assert {name: verdict == "ready" for name, verdict in verdicts.items()} == {
        "scripted": True,
        "slow": True,
        "up": True,
        "down": False,
    }


async def test_figures_after_known_traffic(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [
        reply(completion()),
        reply({"error": "no"}, status=400),
        stream(*answer_events("a", "b")),
    ]
    for streamed in (False, False, True):
        await gateway.http.post("/v1/chat/completions", json=chat("up", stream=streamed))
    await gateway.http.post("/v1/completions", json={"model": "fake", "prompt": "x"})
    await gateway.http.post("/v1/chat/completions", content=b"{")
    await gateway.http.get("/v1/models", headers={"authorization": "Bearer no"})
    for path in ("/made/up/1", "/made/up/2"):
        await gateway.http.get(path)
    metrics = await gateway.metrics()
    counted = {
        name.removeprefix("tollgate_"): value
        for name, value in metrics.items()
        if name.startswith(
            ("tollgate_requests_total", "tollgate_tokens_total", "tollgate_http_requests_total")
        )
    }
    assert counted == {
        'requests_total{backend="up",model="up",status="200"}': 2,
        'requests_total{backend="up",model="up",status="400"}': 1,
        'requests_total{backend="scripted",model="fake",status="200"}': 1,
        'tokens_total{direction="in",model="up",purpose="answer"}': 14,
        'tokens_total{direction="out",model="up",purpose="answer"}': 6,
        'tokens_total{direction="in",model="fake",purpose="answer"}': 1,
        'tokens_total{direction="out",model="fake",purpose="answer"}': 3,
        'http_requests_total{route="/v1/chat/completions",status="200"}': 2,
        'http_requests_total{route="/v1/chat/completions",status="400"}': 2,
        'http_requests_total{route="/v1/completions",status="200"}': 1,
        'http_requests_total{route="none",status="401"}': 1,
        'http_requests_total{route="none",status="404"}': 2,
    }
    assert metrics['tollgate_time_to_first_token_seconds_count{model="up"}'] == 2
    assert metrics['tollgate_request_seconds_count{model="up"}'] == 3
    assert not any(value for name, value in metrics.items() if name.startswith("tollgate_requests_in_flight"))


async def test_logs_hold_no_words_and_no_keys(
    gateway: Gateway, upstream: FakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    upstream.scripts = [
        reply(completion("ANSWER-WORDS")),
        stream(*answer_events("ANSWER-WORDS")),
        (*stream(sse(delta("ANSWER-WORDS")), whole=False), Action.CLOSE),
        reply({"error": {"message": "no"}}, status=401),
        reply({"nonsense": "ANSWER-WORDS"}),
    ]
    caplog.set_level(logging.DEBUG, "gateway")
    caplog.set_level(logging.DEBUG, "uvicorn")
    caplog.set_level(logging.DEBUG, "httpcore")
    for streamed in (False, True, True, False, False):
        await gateway.http.post("/v1/chat/completions", json=chat("up", "QUESTION-WORDS", stream=streamed))
    await gateway.http.post("/v1/chat/completions", json=chat("up", "QUESTION-WORDS", temperature=9))
    await gateway.http.get("/v1/models", headers={"authorization": "Bearer tg-wrong-key"})
    text = "\n".join(str(record.__dict__) + record.getMessage() for record in caplog.records)
    assert text.count("req_") >= 5
    for secret in ("QUESTION-WORDS", "ANSWER-WORDS", KEY, "tg-wrong-key", "sk-upstream-secret"):
        assert secret not in text


async def test_a_bug_inside_is_a_500_that_the_log_explains(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("gateway.routing.router.Router.plan", broken)
    async with RawConnection(gateway.port) as wire:
        for streamed in (True, False):
            wire.post(chat(stream=streamed))
            answer = await wire.answer()
            assert answer.status == 500
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("internal_error", "server_error")
            assert answer.headers["x-request-id"] in error["message"]
            assert "a bug" not in answer.body.decode()
            assert answer.headers["x-request-id"] in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text
    assert (await gateway.metrics())['tollgate_requests_total{backend="",model="fake",status="500"}'] == 2


async def test_without_keys_the_development_key_counts(tmp_path: Path) -> None:
    policy = a_policy("http://127.0.0.1:1/v1", keys=[])
    digest = sha256(KEY.encode()).hexdigest()
    async with serving(tmp_path / "policies", policy, dev_key_sha256=digest) as gateway:
        assert (await gateway.http.get("/v1/models")).status_code == 200
        other = {"authorization": f"Bearer {OTHER_KEY}"}
        assert (await gateway.http.get("/v1/models", headers=other)).status_code == 401


async def test_without_any_key_nobody_gets_in(tmp_path: Path) -> None:
    async with serving(tmp_path / "policies", a_policy("http://127.0.0.1:1/v1", keys=[])) as gateway:
        assert (await gateway.http.get("/v1/models")).status_code == 401


async def test_receipts_in_redis_and_life_without_it(
    tmp_path: Path, upstream: FakeUpstream, own_redis: RedisServer
) -> None:
    # Without a ledger, which would answer for what Redis has lost.
    policy = a_policy(upstream.base_url, store=own_redis.url, ledger={"enabled": False})
    async with serving(tmp_path / "policies", policy) as gateway:
        response = await gateway.http.post("/v1/chat/completions", json=chat())
        path = f"/v1/requests/{response.headers['x-request-id']}"
        async with asyncio.timeout(300):
            while (found := await gateway.http.get(path)).status_code == 404:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert found.json()["stages"]["trace"]["status"] == 200
        own_redis.kill()
        async with within(1.0):
            for streamed in (True, False):
                answer = await gateway.http.post("/v1/chat/completions", json=chat(stream=streamed))
                assert answer.status_code == 200
        async with asyncio.timeout(300):  # a receipt that was not stored yet is found until it is lost
            while (lost := await gateway.http.get(path)).status_code == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (lost.status_code, lost.headers["retry-after"]) == (503, "1")
        assert "Receipts cannot be read now" in lost.json()["error"]["message"]
        own_redis.start()
        async with asyncio.timeout(300):
            while (found := await gateway.http.get(path)).status_code == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert found.status_code == 404
        response = await gateway.http.post("/v1/chat/completions", json=chat())
        path = f"/v1/requests/{response.headers['x-request-id']}"
        async with asyncio.timeout(300):
            while (await gateway.http.get(path)).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_shutting_down_lets_a_stream_end(tmp_path: Path, upstream: FakeUpstream) -> None:
    upstream.scripts = [stream(sse(delta("a")), 0.3, *answer_events("b"))]
    wire: RawConnection
    async with serving(tmp_path / "policies", a_policy(upstream.base_url)) as gateway:
        wire = await RawConnection(gateway.port).__aenter__()
        wire.post(chat("up", stream=True))
        await wire.head()
        heard = asyncio.create_task(anext(wire.chunks()))
        await heard
    rest = await wire.reader.read()
    assert b'"b"' in rest
    assert b"[DONE]" in rest
    await wire.close()
