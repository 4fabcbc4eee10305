"""APIs that do not chat, through the whole gateway: what servers get, byte for byte, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import h11
import httpx
import openai
import orjson
import pytest
from openai import AsyncOpenAI

from tests.fakes import Action, FakeUpstream, Script, reply, sse, stream
from tests.gateway.web.test_uploads import a_wave
from tests.serving import KEY, NARROW_KEY, Gateway, RawConnection, a_policy, request

pytestmark = pytest.mark.anyio

RANKED = {
    "id": "r1",
    "results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}],
    "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
}
QUERY = {
    "model": "up",
    "query": "capital?",
    "documents": ["Rome", {"text": "Paris", "title": "F"}],
    "top_n": 2,
}


SCORED = {
    "data": [{"index": 0, "object": "score", "score": 0.2}, {"index": 1, "object": "score", "score": 0.9}],
    "usage": {"prompt_tokens": 21, "total_tokens": 21},
}
PAIRS = {"model": "up", "text_1": "capital?", "text_2": ["Rome", "Paris"]}


@pytest.fixture
async def client(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    http = httpx.AsyncClient(verify=False, trust_env=False)
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0, http_client=http) as it:
        yield it


def priced(upstream: FakeUpstream, price: dict[str, Any], **more: Any) -> dict[str, Any]:
    return a_policy(upstream.base_url, prices={"upstream-model": price}, **more)


async def receipt(gateway: Gateway, answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.http.get(f"/v1/requests/{answer.headers['x-request-id']}")).json()
    return found["stages"]


async def test_speech_streams_through_the_sdk(client: AsyncOpenAI, upstream: FakeUpstream) -> None:
    """The first sound arrives while the server still speaks."""
    go_on = asyncio.Event()
    upstream.scripts = [stream(b"ID3\x00\xff", go_on, b"\x80rest", kind="audio/mpeg")]
    async with client.audio.speech.with_streaming_response.create(
        model="up", voice="alloy", input="Hello", response_format="mp3", speed=1.5
    ) as answer:
        assert answer.headers["content-type"] == "audio/mpeg"
        assert answer.headers["x-tollgate-model"] == "up"
        parts = answer.iter_bytes(5)
        assert await anext(parts) == b"ID3\x00\xff"
        go_on.set()
        assert b"".join([part async for part in parts]) == b"\x80rest"
    sent = upstream.requests[0]
    assert (sent.path, sent.headers["content-type"]) == ("/v1/audio/speech", "application/json")
    assert sent.headers["authorization"] == "Bearer sk-upstream-secret"
    assert sent.json() == {
        "model": "upstream-model",
        "input": "Hello",
        "voice": "alloy",
        "response_format": "mp3",
        "speed": 1.5,
    }


async def test_speech_in_events_comes_as_it_was_sent(gateway: Gateway, upstream: FakeUpstream) -> None:
    events = [
        sse({"type": "speech.audio.delta", "audio": "AAAA"}),
        sse(
            {
                "type": "speech.audio.done",
                "usage": {"input_tokens": 3, "output_tokens": 40, "total_tokens": 43},
            }
        ),
    ]
    whole = b"".join(events)
    upstream.scripts = [stream(whole[:9], whole[9:60], whole[60:])]
    body = {"model": "up", "input": "Hi", "voice": "ash", "stream_format": "sse"}
    answer = await gateway.http.post("/v1/audio/speech", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.content == whole
    stages = await receipt(gateway, answer)
    assert stages["quota"]["used_tokens"] == 43
    assert (stages["quota"]["spent"][0]["unit"], stages["quota"]["spent"][0]["units"]) == ("character", 2)


async def test_pictures_through_the_sdk(client: AsyncOpenAI, upstream: FakeUpstream) -> None:
    usage = {"input_tokens": 5, "output_tokens": 4160, "total_tokens": 4165}
    drawn = {
        "created": 1,
        "data": [{"b64_json": "iVBORw=="}],
        "size": "1024x1024",
        "quality": "high",
        "usage": usage,
    }
    upstream.scripts = [reply(drawn)]
    answer = await client.images.generate(model="up", prompt="a cat", quality="high", size="1024x1024")
    assert answer.data is not None
    assert answer.data[0].b64_json == "iVBORw=="
    assert answer.usage is not None
    assert answer.usage.output_tokens == 4160
    assert upstream.requests[0].path == "/v1/images/generations"
    assert upstream.requests[0].json() == {
        "model": "upstream-model",
        "prompt": "a cat",
        "quality": "high",
        "size": "1024x1024",
    }


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_ranks_wherever_clients_look_for_them(
    gateway: Gateway, upstream: FakeUpstream, path: str
) -> None:
    upstream.scripts = [reply(RANKED)]
    answer = await gateway.http.post(path, json={**QUERY, "new_field": [1]})
    assert answer.content == orjson.dumps(RANKED), "byte for byte"
    assert upstream.requests[0].path == "/v1/rerank"
    assert upstream.requests[0].json() == {**QUERY, "model": "upstream-model", "new_field": [1]}
    spent = (await receipt(gateway, answer))["quota"]["spent"][0]
    assert (spent["unit"], spent["units"]) == ("search", 1)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
@pytest.mark.parametrize("text_1", ["capital?", ["capital?"], ["capital?", "river?"]], ids=str)
async def test_scores_of_pairs(gateway: Gateway, upstream: FakeUpstream, path: str, text_1: Any) -> None:
    upstream.scripts = [reply(SCORED)]
    answer = await gateway.http.post(path, json={**PAIRS, "text_1": text_1, "use_activation": False})
    assert answer.content == orjson.dumps(SCORED), answer.text
    assert upstream.requests[0].path == "/v1/score"
    assert upstream.requests[0].json() == {
        **PAIRS,
        "text_1": text_1,
        "model": "upstream-model",
        "use_activation": False,
    }
    spent = (await receipt(gateway, answer))["quota"]["spent"][0]
    assert "unit" not in spent and spent["prompt_tokens"] == 21


async def test_scores_are_for_callers_with_a_key_and_models_that_are_theirs(gateway: Gateway) -> None:
    for key, status in (("wrong", 401), (NARROW_KEY, 404)):
        answer = await gateway.http.post("/v1/score", json=PAIRS, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == status, answer.text


async def test_scores_cost_tokens(gateway: Gateway, upstream: FakeUpstream) -> None:
    """And are held in full before: each pair with both of its texts."""
    budget = {"acme": {"budget": {"usd_per_day": 0.001}}}
    gateway.write(priced(upstream, {"input": 1.0, "output": 0.0}, tenants=budget))
    await gateway.generation(2)
    upstream.scripts = [reply(SCORED), reply({"data": []})]
    told = await gateway.http.post("/v1/score", json=PAIRS)
    assert (await receipt(gateway, told))["quota"]["cost_usd"] == pytest.approx(0.000021)
    untold = await gateway.http.post("/v1/score", json=PAIRS)
    quota = (await receipt(gateway, untold))["quota"]
    bound = 2 * len("capital?") + len("Rome") + len("Paris") + 2 * 4
    assert (quota["source"], quota["cost_usd"]) == ("estimated", pytest.approx(bound / 1e6))
    too_long = {**PAIRS, "text_1": "word " * 100, "text_2": ["x"] * 2}
    refused = await gateway.http.post("/v1/score", json=too_long)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota"), refused.text
    assert len(upstream.requests) == 2


async def test_tokens_of_pairs_count_against_limits(gateway: Gateway, upstream: FakeUpstream) -> None:
    gateway.write(a_policy(upstream.base_url, tenants={"acme": {"quotas": {"tokens_per_minute": 200}}}))
    await gateway.generation(2)
    upstream.scripts = [reply(SCORED)]
    assert (await gateway.http.post("/v1/score", json=PAIRS)).status_code == 200
    long = {**PAIRS, "text_1": "word " * 50, "text_2": ["a"] * 20}
    refused = await gateway.http.post("/v1/score", json=long)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "tokens_exceed_limit")


async def test_guards_read_both_texts_of_a_pair(gateway: Gateway, upstream: FakeUpstream) -> None:
    mask = {"on": ["input"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}
    block = {
        "on": ["input"],
        "kind": "topics",
        "action": "block",
        "words": ["heron"],
        "routes": ["/v1/score"],
    }
    gateway.write(a_policy(upstream.base_url, guards={"pii": mask, "projects": block}))
    await gateway.generation(2)
    upstream.scripts = [reply(SCORED)]
    body = {"model": "up", "text_1": ["a@example.com", "b"], "text_2": ["c", "write to d@example.com"]}
    answer = await gateway.http.post("/v1/score", json=body)
    assert answer.status_code == 200, answer.text
    assert b"@example.com" not in upstream.requests[0].body
    sent = upstream.requests[0].json()
    assert sent["text_1"][1] == "b" and sent["text_2"][1].startswith("write to <EMAIL_ADDRESS")
    for name in ("text_1", "text_2"):
        refused = await gateway.http.post("/v1/score", json={**PAIRS, name: "the heron"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "content_policy_violation")
    assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    ("price", "path", "body", "told", "dollars"),
    [
        ({"million_characters": 15.0}, "/v1/audio/speech", {"input": "x" * 200}, None, 0.003),
        ({"input": 0.6, "output": 12.0}, "/v1/audio/speech", {"input": "x" * 100}, None, None),
        ({"thousand_searches": 2.0}, "/v1/rerank", QUERY, RANKED, 0.002),
        (
            {"thousand_searches": 2.0},
            "/v1/rerank",
            QUERY,
            {**RANKED, "meta": {"billed_units": {"search_units": 3}}},
            0.006,
        ),
        (
            {"input": 0.02, "output": 0.0},
            "/v1/rerank",
            QUERY,
            {"results": [], "usage": {"total_tokens": 1000}},
            0.00002,
        ),
        (
            {"image": {"high 1024x1024": 0.167, "*": 0.04}},
            "/v1/images/generations",
            {"prompt": "a", "n": 2, "quality": "high", "size": "1024x1024"},
            {"data": [{}, {}]},
            0.334,
        ),
        (
            {"input": 5.0, "output": 40.0},
            "/v1/images/generations",
            {"prompt": "a"},
            {"data": [{}], "usage": {"input_tokens": 10, "output_tokens": 1056}},
            0.04229,
        ),
    ],
)
async def test_each_is_billed_by_its_own_unit(
    gateway: Gateway,
    upstream: FakeUpstream,
    price: dict[str, Any],
    path: str,
    body: dict[str, Any],
    told: dict[str, Any] | None,
    dollars: float | None,
) -> None:
    gateway.write(priced(upstream, price))
    await gateway.generation(2)
    upstream.scripts = [reply(told) if told is not None else reply(b"sound", kind="audio/mpeg")]
    answer = await gateway.http.post(path, json={**body, "model": "up", "voice": "a"})
    assert answer.status_code == 200, answer.text
    quota = (await receipt(gateway, answer))["quota"]
    if dollars is None:
        assert quota["source"] == "estimated", "nobody has told the tokens"
        assert quota["cost_usd"] > 0
    else:
        assert quota["cost_usd"] == pytest.approx(dollars)
        assert quota["source"] == "backend"


async def test_a_budget_holds_what_is_asked_before_it_is_spent(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    """Ten thousand characters fit; the next five do not, nor what is asked while the first are being spoken."""
    budget = {"acme": {"budget": {"usd_per_day": 0.15}}}
    gateway.write(priced(upstream, {"million_characters": 15.0}, tenants=budget))
    await gateway.generation(2)
    speaks = asyncio.Event()
    upstream.scripts = [stream(b"a", speaks, b"b", kind="audio/mpeg")]
    first = asyncio.create_task(
        gateway.http.post("/v1/audio/speech", json={"model": "up", "input": "x" * 9_990, "voice": "a"})
    )
    await upstream.arrived()
    second = await gateway.http.post(
        "/v1/audio/speech", json={"model": "up", "input": "x" * 20, "voice": "a"}
    )
    assert second.status_code == 429
    assert "by it and by requests in flight" in second.json()["error"]["message"]
    speaks.set()
    assert (await first).status_code == 200
    assert len(upstream.requests) == 1
    upstream.scripts = [reply(b"s", kind="audio/mpeg")]
    third = await gateway.http.post("/v1/audio/speech", json={"model": "up", "input": "x" * 5, "voice": "a"})
    assert third.status_code == 200


async def test_a_budget_holds_nothing_without_a_price_for_the_unit(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    budget = {"acme": {"budget": {"usd_per_day": 1.0}}}
    gateway.write(priced(upstream, {"thousand_searches": 2.0}, tenants=budget))
    await gateway.generation(2)
    spoken = await gateway.http.post("/v1/audio/speech", json={"model": "up", "input": "x", "voice": "a"})
    chat = await gateway.http.post(
        "/v1/chat/completions", json={"model": "up", "messages": [{"role": "user", "content": "Hi"}]}
    )
    for answer in (spoken, chat):
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "model_has_no_price")
    unknown = await gateway.http.post("/v1/rerank", json={**QUERY, "think_hard": True})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "think_hard")
    assert not upstream.requests


@pytest.mark.parametrize("named", [True, False], ids=["its own price", "the default price"])
async def test_a_price_for_tokens_is_none_for_other_units_unless_it_says_so(
    gateway: Gateway, upstream: FakeUpstream, named: bool
) -> None:
    budget = {"acme": {"budget": {"usd_per_day": 100.0}}}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/audio/speech": {"model": "up", "input": "x", "voice": "a"},
        "/v1/rerank": QUERY,
        "/v1/images/generations": {"model": "up", "prompt": "a"},
    }

    async def statuses() -> list[int]:
        heard = await gateway.http.post(
            "/v1/audio/transcriptions", data={"model": "up"}, files={"file": ("a.wav", a_wave(1))}
        )
        if heard.status_code == 403:
            assert "`minute`" in heard.json()["error"]["message"]
        return [
            heard.status_code,
            *[(await gateway.http.post(path, json=body)).status_code for path, body in bodies.items()],
        ]

    def policy_of(price: dict[str, Any]) -> dict[str, Any]:
        if named:
            return priced(upstream, price, tenants=budget)
        return a_policy(upstream.base_url, default_price=price, tenants=budget)

    tokens = {"input": 1.0, "output": 1.0, "audio_input": 6.0}
    gateway.write(policy_of(tokens))
    await gateway.generation(2)
    assert await statuses() == [403] * 4
    assert not upstream.requests
    gateway.write(policy_of({**tokens, "only_tokens": True}))
    await gateway.generation(3)
    upstream.scripts = [
        reply({"text": "", "usage": {"type": "tokens", "input_tokens": 9, "output_tokens": 1}}),
        reply(b"sound", kind="audio/mpeg"),
        reply(RANKED),
        reply({"data": [{}], "usage": {"input_tokens": 10, "output_tokens": 1056}}),
    ]
    assert await statuses() == [200] * 4


async def test_quotas_count_requests_and_tokens(gateway: Gateway, upstream: FakeUpstream) -> None:
    gateway.write(a_policy(upstream.base_url, tenants={"acme": {"quotas": {"requests_per_minute": 2}}}))
    await gateway.generation(2)
    upstream.scripts = [reply(RANKED)] * 3
    statuses = [(await gateway.http.post("/v1/rerank", json=QUERY)).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    gateway.write(a_policy(upstream.base_url, tenants={"acme": {"quotas": {"tokens_per_minute": 200}}}))
    await gateway.generation(3)
    long = {**QUERY, "documents": ["word " * 100] * 3}
    refused = await gateway.http.post("/v1/rerank", json=long)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "tokens_exceed_limit")


def with_fallback(upstream: FakeUpstream, other: FakeUpstream) -> dict[str, Any]:
    policy = a_policy(upstream.base_url)
    policy["backends"]["other"] = {"kind": "openai", "base_url": other.base_url}
    policy["models"]["second"] = {"targets": [{"backend": "other", "model": "other-model"}]}
    policy["models"]["up"]["fallbacks"] = ["second"]
    return policy


@pytest.mark.parametrize(
    "script",
    [
        reply({"error": {"message": "busy"}}, status=503),
        (Action.ABORT,),
        stream(kind="audio/mpeg"),
        stream(sse({"error": {"message": "no voice"}})),
        reply({"error": {"message": "no voice"}}),
    ],
    ids=["503", "reset", "empty", "an event", "a body"],
)
async def test_another_speaks_before_the_first_byte(
    gateway: Gateway, upstream: FakeUpstream, script: Script
) -> None:
    async with FakeUpstream(reply(b"sound", kind="audio/wav")) as other:
        gateway.write(with_fallback(upstream, other))
        await gateway.generation(2)
        upstream.scripts = [script]
        answer = await gateway.http.post(
            "/v1/audio/speech", json={"model": "up", "input": "Hi", "voice": "a"}
        )
        assert (answer.status_code, answer.content) == (200, b"sound"), answer.text
        assert answer.headers["content-type"] == "audio/wav"
        assert answer.headers["x-tollgate-model"] == "second"
        assert other.requests[0].json() == {"model": "other-model", "input": "Hi", "voice": "a"}


async def test_nobody_goes_on_with_half_a_sound(gateway: Gateway, upstream: FakeUpstream) -> None:
    async with FakeUpstream(reply(b"sound", kind="audio/wav")) as other:
        gateway.write(with_fallback(upstream, other))
        await gateway.generation(2)
        upstream.scripts = [stream(b"half a s", Action.ABORT, kind="audio/mpeg", whole=False)]
        with pytest.raises(httpx.RemoteProtocolError):
            await gateway.http.post("/v1/audio/speech", json={"model": "up", "input": "Hi", "voice": "a"})
        assert not other.requests


async def test_events_that_break_off_end_in_an_error(gateway: Gateway, upstream: FakeUpstream) -> None:
    first = sse({"type": "speech.audio.delta", "audio": "AAAA"})
    secret = sse({"error": {"message": "key sk-upstream-secret is bad"}})
    upstream.scripts = [stream(first, secret)]
    body = {"model": "up", "input": "Hi", "voice": "a", "stream_format": "sse"}
    answer = await gateway.http.post("/v1/audio/speech", json=body)
    assert answer.content.startswith(first)
    last = answer.text.removeprefix(first.decode())
    assert last.startswith("event: error\ndata: ")
    assert "sk-upstream" not in last
    assert orjson.loads(last.splitlines()[1][6:])["error"]["message"]


async def test_a_caller_that_leaves_stops_the_server(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [stream(b"sound", Action.HANG, kind="audio/mpeg")]
    body = {"model": "up", "input": "Hi", "voice": "a"}
    async with gateway.http.stream("POST", "/v1/audio/speech", json=body) as answer:
        assert await anext(answer.aiter_raw()) == b"sound"
    async with asyncio.timeout(300):
        await upstream.requests[0].left.wait()


async def test_silence_has_an_end(gateway: Gateway, upstream: FakeUpstream) -> None:
    policy = a_policy(upstream.base_url)
    policy["models"]["up"]["timeouts"] = {"first_token": "100ms", "total": "200ms"}
    gateway.write(policy)
    await gateway.generation(2)
    for path, body in (("/v1/audio/speech", {"input": "Hi", "voice": "a"}), ("/v1/rerank", QUERY)):
        upstream.scripts = [(Action.HANG,)]
        answer = await gateway.http.post(path, json={**body, "model": "up"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")


async def test_guards_read_what_is_text(gateway: Gateway, upstream: FakeUpstream) -> None:
    guards = {"pii": {"on": ["input", "output"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}}
    gateway.write(a_policy(upstream.base_url, guards=guards))
    await gateway.generation(2)
    documents = ["write to a@example.com", {"text": "or b@example.com", "tags": ["c@example.com"]}]
    echo = {"results": [{"index": 0, "document": {"text": "write to <EMAIL_ADDRESS_2> \\u003c"}}]}
    upstream.scripts = [reply(echo), reply(b"s", kind="audio/mpeg"), reply({"data": [{}]})]
    answer = await gateway.http.post(
        "/v1/rerank", json={"model": "up", "query": "who is d@example.com?", "documents": documents}
    )
    sent = upstream.requests[0].body
    assert b"@example.com" not in sent
    given = upstream.requests[0].json()["documents"]
    assert answer.json()["results"][0]["document"]["text"].startswith("write to "), answer.text
    assert "<EMAIL_ADDRESS" in given[0]
    stages = await receipt(gateway, answer)
    assert stages["guard_output"] == {"unread": ["rerank"]}
    spoken = {
        "model": "up",
        "input": "I am a@example.com",
        "instructions": "like e@example.com does",
        "voice": "a",
    }
    await gateway.http.post("/v1/audio/speech", json=spoken)
    assert b"@example.com" not in upstream.requests[1].body
    await gateway.http.post(
        "/v1/images/generations", json={"model": "up", "prompt": "the face of a@example.com"}
    )
    assert b"@example.com" not in upstream.requests[2].body


async def test_a_guard_refuses(gateway: Gateway, upstream: FakeUpstream) -> None:
    guards = {
        "pii": {"on": ["input"], "action": "block", "entities": ["EMAIL_ADDRESS"], "routes": ["/v1/rerank"]}
    }
    gateway.write(a_policy(upstream.base_url, guards=guards))
    await gateway.generation(2)
    answer = await gateway.http.post("/v1/rerank", json={**QUERY, "query": "a@example.com"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_policy_violation")
    assert not upstream.requests


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/audio/speech", {"model": "up"}, 400, "input"),
        ("/v1/audio/speech", {"input": "a"}, 400, "model"),
        ("/v1/audio/speech", {"model": "up", "input": "a", "speed": -1}, 400, "speed"),
        ("/v1/images/generations", {"model": "up", "prompt": "a", "n": 10**9}, 400, "n"),
        ("/v1/rerank", {"model": "up", "query": "a", "documents": []}, 400, "documents"),
        ("/v1/score", {"model": "up", "text_1": "a"}, 400, "text_2"),
        ("/v1/score", {"model": "up", "text_1": ["a"] * 2, "text_2": ["a"] * 3}, 400, "text_1"),
        ("/v1/score", {"model": "up", "text_1": "a", "text_2": ["a"] * 3000}, 400, "text_2"),
        ("/v1/rerank", {"model": "up", "query": "a", "documents": ["a"] * 3000}, 400, "documents"),
        ("/v1/rerank", {"model": "nope", "query": "a", "documents": ["a"]}, 404, "model"),
        ("/v1/rerank", {"model": "fake", "query": "a", "documents": ["a"]}, 400, "model"),
    ],
)
async def test_refusals(
    gateway: Gateway, upstream: FakeUpstream, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    got = await gateway.http.post(path, json=body)
    assert (got.status_code, got.json()["error"]["param"]) == (status, param)
    assert not upstream.requests


async def test_keys_are_asked_for_and_heeded(gateway: Gateway) -> None:
    for path in ("/v1/audio/speech", "/v1/rerank", "/v1/images/generations"):
        nobody = {"authorization": "Bearer tg-nobody"}
        assert (await gateway.http.post(path, json={}, headers=nobody)).status_code == 401
    narrow = {"authorization": f"Bearer {NARROW_KEY}"}
    assert (await gateway.http.post("/v1/rerank", json=QUERY, headers=narrow)).status_code == 404


@pytest.mark.parametrize(
    "backend",
    [
        {"kind": "anthropic", "base_url": "http://127.0.0.1:1"},
        {"kind": "gemini", "api_key": "k"},
        {"kind": "openai", "preset": "deepseek", "api_key": "k"},
        {"kind": "engine", "base_url": "http://127.0.0.1:1"},
    ],
    ids=lambda backend: backend.get("preset", backend["kind"]),
)
async def test_one_that_has_none_says_so_or_is_passed_over(
    gateway: Gateway, upstream: FakeUpstream, backend: dict[str, Any]
) -> None:
    policy = a_policy(upstream.base_url)
    policy["backends"]["mute"] = backend
    policy["models"]["mute"] = {"targets": [{"backend": "mute", "model": "m"}]}
    policy["models"]["both"] = {"targets": [{"backend": "mute", "model": "m"}], "fallbacks": ["up"]}
    gateway.write(policy)
    await gateway.generation(2)
    got = await gateway.http.post("/v1/audio/speech", json={"model": "mute", "input": "a", "voice": "a"})
    assert (got.status_code, got.json()["error"]["code"]) == (400, "unsupported_parameter")
    assert "'mute'" in got.json()["error"]["message"]
    upstream.scripts = [reply(b"s", kind="audio/mpeg")]
    got = await gateway.http.post("/v1/audio/speech", json={"model": "both", "input": "a", "voice": "a"})
    assert (got.status_code, got.content) == (200, b"s")


@pytest.mark.parametrize(
    "answer",
    [
        reply({"detail": "Not Found"}, status=404),
        reply("<html>", status=404, kind="text/html"),
        reply({"detail": "Method Not Allowed"}, status=405),
    ],
    ids=["FastAPI's", "a page", "405"],
)
async def test_a_server_that_knows_no_such_path_is_explained(
    gateway: Gateway, upstream: FakeUpstream, answer: Script
) -> None:
    upstream.scripts = [answer]
    got = await gateway.http.post("/v1/rerank", json=QUERY)
    assert (got.status_code, got.json()["error"]["code"]) == (400, "unsupported_parameter")
    assert "'/rerank'" in got.json()["error"]["message"]


async def test_a_model_that_a_server_does_not_know_is_its_own_matter(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.scripts = [reply({"error": {"message": "no x", "code": "model_not_found"}}, status=404)]
    got = await gateway.http.post("/v1/rerank", json=QUERY)
    assert (got.status_code, got.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_policy_refuses_fields_that_nobody_knows(gateway: Gateway, upstream: FakeUpstream) -> None:
    policy = a_policy(upstream.base_url)
    policy["backends"]["up"]["unsupported_fields"] = "refuse"
    gateway.write(policy)
    await gateway.generation(2)
    got = await gateway.http.post("/v1/rerank", json={**QUERY, "new_field": 1})
    assert (got.status_code, got.json()["error"]["param"]) == (400, "new_field")
    upstream.scripts = [reply(RANKED)]
    assert (await gateway.http.post("/v1/rerank", json=QUERY)).status_code == 200


async def test_no_page_of_a_providers_becomes_one_of_ours(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(b"<script>", kind="text/html")]
    answer = await gateway.http.post("/v1/audio/speech", json={"model": "up", "input": "a", "voice": "a"})
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_metrics_and_the_sdks_errors(
    gateway: Gateway, client: AsyncOpenAI, upstream: FakeUpstream
) -> None:
    upstream.scripts = [reply(RANKED), reply({"error": {"message": "no such voice"}}, status=400)]
    await gateway.http.post("/v1/rerank", json=QUERY)
    metrics = await gateway.metrics()
    assert metrics['tollgate_units_total{model="up",purpose="answer",unit="search"}'] == 1
    with pytest.raises(openai.BadRequestError, match="no such voice"):
        await client.audio.speech.create(model="up", input="a", voice="nobody")


async def test_cohere_is_asked_beside_its_compatibility_api(gateway: Gateway, upstream: FakeUpstream) -> None:
    policy = a_policy(upstream.base_url)
    policy["backends"]["up"] |= {"preset": "cohere", "base_url": f"{upstream.base_url}/compatibility"}
    gateway.write(policy)
    await gateway.generation(2)
    upstream.scripts = [reply(RANKED)]
    assert (await gateway.http.post("/v2/rerank", json=QUERY)).status_code == 200
    assert upstream.requests[0].path == "/v2/rerank"


TOKENS = {"count": 2, "max_model_len": 4096, "tokens": [1, 15043], "token_strs": None}


@pytest.mark.parametrize("kind", ["engine", "openai"])
async def test_tokens_where_vllm_has_them(gateway: Gateway, upstream: FakeUpstream, kind: str) -> None:
    policy = a_policy(upstream.base_url)
    root = upstream.base_url.removesuffix("/v1")
    policy["backends"]["up"] = {"kind": kind, "base_url": root if kind == "engine" else upstream.base_url}
    gateway.write(policy)
    await gateway.generation(2)
    upstream.scripts = [reply(TOKENS)] * 2 + [reply({"prompt": "Hello"})]
    answer = await gateway.http.post(
        "/tokenize", json={"model": "up", "prompt": "Hello", "add_special_tokens": True}
    )
    assert answer.json() == TOKENS
    messages = [{"role": "user", "content": "Hello"}]
    await gateway.http.post(
        "/tokenize", json={"model": "up", "messages": messages, "add_generation_prompt": False}
    )
    back = await gateway.http.post("/detokenize", json={"model": "up", "tokens": [1, 15043]})
    assert back.json() == {"prompt": "Hello"}
    asked = [request for request in upstream.requests if request.method == "POST"]
    assert [(one.path, one.json()) for one in asked] == [
        ("/tokenize", {"model": "upstream-model", "prompt": "Hello", "add_special_tokens": True}),
        ("/tokenize", {"model": "upstream-model", "messages": messages, "add_generation_prompt": False}),
        ("/detokenize", {"model": "upstream-model", "tokens": [1, 15043]}),
    ]
    stages = await receipt(gateway, answer)
    assert (stages["quota"]["used_tokens"], stages["quota"]["cost_usd"]) == (0, 0)


async def test_tokens_are_asked_for_under_limits(gateway: Gateway, upstream: FakeUpstream) -> None:
    limits = {"quotas": {"requests_per_minute": 2, "tokens_per_minute": 5}, "budget": {"usd_per_day": 1.0}}
    prices = {"upstream-model": {"input": 1e6, "output": 1e6}}
    gateway.write(a_policy(upstream.base_url, tenants={"acme": limits}, prices=prices))
    await gateway.generation(2)
    upstream.scripts = [reply(TOKENS)]
    long = {"model": "up", "prompt": "word " * 100}
    assert (await gateway.http.post("/tokenize", json=long)).status_code == 200
    counted = await gateway.http.post(
        "/v1/messages/count_tokens",
        json={"model": "up", "messages": [{"role": "user", "content": "word " * 100}]},
    )
    assert counted.status_code == 200
    assert counted.headers["x-ratelimit-remaining-requests"] == "0"
    assert counted.json()["input_tokens"] > 50
    assert (await receipt(gateway, counted))["trace"]["status"] == 200
    refused = await gateway.http.post(
        "/v1/responses/input_tokens", json={"model": "up", "input": "word " * 100}
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"model": "up"}, None),
        ("/tokenize", {"model": "up", "prompt": "a", "messages": [{"role": "user", "content": "b"}]}, None),
        ("/detokenize", {"model": "up", "tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"model": "fake", "tokens": [1]}, "model"),
    ],
)
async def test_tokens_of_nothing(
    gateway: Gateway, upstream: FakeUpstream, path: str, body: dict[str, Any], param: str | None
) -> None:
    answer = await gateway.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not upstream.requests


async def test_a_client_that_has_ended_its_sending_hears_all_of_it(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent to see whether it is still there is no part of the sound."""
    monkeypatch.setattr("gateway.server.half_close.KEEPALIVE", 0.01)
    monkeypatch.setattr("gateway.server.half_close.CHECK", 0.01)
    go_on = asyncio.Event()
    upstream.scripts = [stream(b"first", go_on, b"second" * 10, kind="audio/mpeg")]
    body = orjson.dumps({"model": "up", "input": "Hi", "voice": "a"})
    async with RawConnection(gateway.port) as wire:
        wire.send(request("POST", "/v1/audio/speech", body))
        wire.writer.write_eof()
        heard = await wire.reader.readuntil(b"5\r\nfirst\r\n")
        waited = await wire.reader.readexactly(3)
        assert waited == b"000"
        go_on.set()
        rest = await wire.reader.read()
    answer, _ = h11_read(heard + waited + rest)
    assert answer == b"first" + b"second" * 10


def h11_read(data: bytes) -> tuple[bytes, int]:
    """A response by a parser that is strict about chunks."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    body, status = b"", 0
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    return body, status
