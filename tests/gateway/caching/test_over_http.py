"""Answers that are given again, as a client sees them: every dialect, asked and asked again streamed or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import orjson
import pytest

from gateway.observe.cache_days import read_cache_days
from tests.fakes import FakeUpstream
from tests.serving import KEY, OTHER_KEY, Gateway, RawConnection, RawResponse, a_policy, chat, serving

pytestmark = pytest.mark.anyio

CONVERSATION = [{"role": "user", "content": "Hi"}]
DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"model": "fake", "messages": CONVERSATION}),
    "completions": ("/v1/completions", {"model": "fake", "prompt": "Hi"}),
    "messages": ("/v1/messages", {"model": "fake", "messages": CONVERSATION, "max_tokens": 100}),
}
OWN = ("id", "created")


@pytest.fixture
async def cached(upstream: FakeUpstream, tmp_path: Path, quick_reload: None) -> AsyncIterator[Gateway]:
    prices = {"x": {"input": 1000.0, "output": 1000.0}}
    policy = a_policy(upstream.base_url, caches={"exact": {}}, prices=prices)
    async with serving(tmp_path / "policies", policy) as running:
        yield running


async def ask(gateway: Gateway, path: str, body: dict[str, Any], **headers: str) -> RawResponse:
    async with RawConnection(gateway.port) as wire:
        wire.post(body, path, **headers)
        return await wire.answer()


def contents(answer: RawResponse, *, stream: bool) -> Any:
    """All that an answer says, without what is its own: of a stream, what a client puts together."""
    assert answer.status == 200
    if not stream:
        return {name: value for name, value in answer.json().items() if name not in OWN}
    told: dict[str, Any] = {"text": "", "ends": []}
    lines = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    for line in lines:
        if line == b"[DONE]":
            told["ends"].append("[DONE]")
            continue
        event = orjson.loads(line)
        told["model"] = event.get("model") or event.get("message", {}).get("model") or told["model"]
        for choice in event.get("choices", ()):
            told["text"] += choice.get("text") or choice.get("delta", {}).get("content") or ""
            if choice["finish_reason"]:
                told["ends"].append(choice["finish_reason"])
        if event.get("usage") and "choices" in event:
            told["usage"] = event["usage"]
        if event.get("type") == "content_block_delta":
            told["text"] += event["delta"]["text"]
        if event.get("type") in ("message_delta", "message_stop"):
            told["ends"].append(event)
    return told


@pytest.mark.parametrize("again", [False, True], ids=["again whole", "again streamed"])
@pytest.mark.parametrize("first", [False, True], ids=["first whole", "first streamed"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_it_is_the_same_answer(cached: Gateway, dialect: str, first: bool, again: bool) -> None:
    path, body = DIALECTS[dialect]

    def asked(stream: bool) -> dict[str, Any]:
        options = {"stream_options": {"include_usage": True}} if stream and dialect != "messages" else {}
        return {**body, "stream": stream, **options}

    # What the answer would have been without a cache.
    original = await ask(cached, path, asked(again), cache_control="no-store")
    assert original.headers["x-tollgate-cache"] == "bypass"
    miss = await ask(cached, path, asked(first))
    assert miss.headers["x-tollgate-cache"] == "miss"
    hit = await ask(cached, path, asked(again))
    assert hit.headers["x-tollgate-cache"] == "exact"
    assert hit.headers["x-tollgate-model"] == "fake"
    assert hit.headers["content-type"] == original.headers["content-type"]
    assert contents(hit, stream=again) == contents(original, stream=again)
    if not again:
        assert hit.json()["id"] != miss.headers["x-request-id"]
        assert hit.headers["x-request-id"] in hit.json()["id"]


async def test_what_a_shadowed_semantic_cache_looks_up_is_counted_by_day(
    upstream: FakeUpstream, tmp_path: Path, quick_reload: None
) -> None:
    policy = a_policy(upstream.base_url, caches={"exact": {}, "semantic": {"mode": "shadow"}})
    async with serving(tmp_path / "policies", policy) as gateway:
        for text in (
            "Who wrote Faust?",
            "Who is Faust by?",
            "Who wrote Faust?",
        ):  # the last is the exact cache's
            answer = await gateway.http.post("/v1/chat/completions", json=chat(content=text))
            assert answer.status_code == 200
    (found,) = read_cache_days(tmp_path / "state" / "cache_days.sqlite", since=time.time() - 60)
    assert (found.mode, found.lookups, found.hits, sum(found.refused.values())) == ("shadow", 2, 0, 2)


async def test_what_is_billed_and_told(cached: Gateway) -> None:
    path, body = DIALECTS["chat"]
    miss, hit = await ask(cached, path, body), await ask(cached, path, body)
    receipts = [
        (await cached.http.get(f"/v1/requests/{answer.headers['x-request-id']}")).json()
        for answer in (miss, hit)
    ]
    costs = [receipt["stages"]["quota"]["cost_usd"] for receipt in receipts]
    assert costs[0] > 0 and costs[1] == 0
    metrics = await cached.metrics()
    assert metrics['tollgate_cache_requests_total{cache="exact",result="hit"}'] == 1
    assert metrics['tollgate_tokens_total{direction="out",model="fake",purpose="answer"}'] == 3


async def test_another_tenant_asks_for_itself(cached: Gateway) -> None:
    path, body = DIALECTS["chat"]
    assert (await ask(cached, path, body, token=KEY)).headers["x-tollgate-cache"] == "miss"
    assert (await ask(cached, path, body, token=OTHER_KEY)).headers["x-tollgate-cache"] == "miss"
    assert (await ask(cached, path, body, token=OTHER_KEY)).headers["x-tollgate-cache"] == "exact"


async def test_failures_are_not_kept(cached: Gateway) -> None:
    for content in ("fail", "cut"):
        for _ in range(2):
            answer = await ask(cached, "/v1/chat/completions", chat("fake", content))
            assert answer.status in (502, 503)
            assert answer.headers["x-tollgate-cache"] == "miss"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_only_if_cached(cached: Gateway, dialect: str) -> None:
    path, body = DIALECTS[dialect]
    answer = await ask(cached, path, body, cache_control="only-if-cached")
    error = answer.json()["error"]
    assert (answer.status, error["type"]) == (504, "invalid_request_error"), "it is no timeout"
    assert "only-if-cached" in error["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert (await ask(cached, path, body)).headers["x-tollgate-cache"] == "miss"
    again = await ask(cached, path, body, cache_control="only-if-cached")
    assert (again.status, again.headers["x-tollgate-cache"]) == (200, "exact")


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_clients_do_not_try_again_what_is_not_cached(cached: Gateway, dialect: str) -> None:
    only = {"cache-control": "only-if-cached"}
    message: Any = {"role": "user", "content": "Hi"}
    if dialect == "openai":
        async with openai.AsyncOpenAI(base_url=f"{cached.url}/v1", api_key=KEY, default_headers=only) as one:
            with pytest.raises(openai.InternalServerError, match="only-if-cached"):
                await one.chat.completions.create(model="fake", messages=[message])
    else:
        async with anthropic.AsyncAnthropic(base_url=cached.url, api_key=KEY, default_headers=only) as other:
            with pytest.raises(anthropic.InternalServerError, match="only-if-cached"):
                await other.messages.create(model="fake", max_tokens=9, messages=[message])
    figures = await cached.metrics()
    assert sum(figures[name] for name in figures if name.startswith("tollgate_requests_total")) == 1


async def test_a_hang_up_in_a_shared_call(cached: Gateway) -> None:
    """Two ask the same of a slow model; the first one leaves, the other gets it all."""
    body = chat("slow", "Hi", stream=True)
    async with RawConnection(cached.port) as first, RawConnection(cached.port) as second:
        first.post(body)
        await first.head()
        second.post(body)
        status, headers = await second.head()
        assert (status, headers["x-tollgate-cache"]) == (200, "exact")
        await first.close()
        data = b"".join([part async for part in second.chunks()])
    assert data.endswith(b"data: [DONE]\n\n")
    events = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: {")]
    text = "".join(
        choice["delta"].get("content") or "" for event in events for choice in orjson.loads(event)["choices"]
    )
    assert text == "a b c d"
    metrics = await cached.metrics()
    assert metrics['tollgate_cache_requests_total{cache="exact",result="shared"}'] == 1
    attempts = 'tollgate_attempts_total{backend="slow",outcome="ok"}'
    assert metrics[attempts] == 1


async def test_entries_live_on_through_an_unrelated_edit(cached: Gateway, upstream: FakeUpstream) -> None:
    path, body = DIALECTS["chat"]
    await ask(cached, path, body)
    more = a_policy(upstream.base_url, caches={"exact": {"ttl": "2h"}}, tenants={"acme": {}})
    cached.write(more)
    await cached.generation(2)
    assert (await ask(cached, path, body)).headers["x-tollgate-cache"] == "exact"
    more["backends"]["scripted"]["script"][-1]["reply"] = "four five"
    cached.write(more)
    await cached.generation(3)
    assert (await ask(cached, path, body)).headers["x-tollgate-cache"] == "miss"


async def test_many_at_once_make_one_call(cached: Gateway) -> None:
    answers = await asyncio.gather(
        *(ask(cached, "/v1/chat/completions", chat("slow", "Hi")) for _ in range(20))
    )
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers} == {"a b c d"}
    metrics = await cached.metrics()
    assert metrics['tollgate_attempts_total{backend="slow",outcome="ok"}'] == 1
