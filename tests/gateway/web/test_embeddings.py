"""``/v1/embeddings`` through the whole gateway, with the official SDK."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.fakes import FakeUpstream, reply
from tests.serving import KEY, NARROW_KEY, Gateway, a_policy

pytestmark = pytest.mark.anyio


@pytest.fixture
def client(gateway: Gateway) -> AsyncOpenAI:
    http = httpx.AsyncClient(verify=False, trust_env=False)
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0, http_client=http)


def answer(*vectors: Any, tokens: int = 3) -> dict[str, Any]:
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": "upstream-model", "usage": usage}


async def test_sdk(client: AsyncOpenAI) -> None:
    async with client:
        plain = await client.embeddings.create(model="fake", input=["one", "two"], encoding_format="float")
        packed = await client.embeddings.create(model="fake", input=["one", "two"])
    assert (plain.object, plain.model, [one.index for one in plain.data]) == ("list", "fake", [0, 1])
    assert len(plain.data[0].embedding) == 8
    for one, other in zip(plain.data, packed.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding)
    assert (plain.usage.prompt_tokens, plain.usage.total_tokens) == (2, 2)


async def test_the_sdk_gets_what_the_server_sent(client: AsyncOpenAI, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(answer("AAAAPwAAgD4="))]
    async with client:
        got = await client.embeddings.with_raw_response.create(model="up", input="Hi", dimensions=2)
    assert got.parse().data[0].embedding == [0.5, 0.25]
    assert got.headers["x-tollgate-model"] == "up"
    sent = upstream.requests[0]
    assert sent.path == "/v1/embeddings"
    assert sent.json() == {
        "model": "upstream-model",
        "input": "Hi",
        "dimensions": 2,
        "encoding_format": "base64",
    }


async def test_it_leaves_a_receipt_and_is_metered(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(answer([0.5], tokens=7))]
    got = await gateway.http.post("/v1/embeddings", json={"model": "up", "input": "Hi there"})
    receipt = (await gateway.http.get(f"/v1/requests/{got.headers['x-request-id']}")).json()
    assert receipt["stages"]["quota"]["used_tokens"] == 7
    assert receipt["stages"]["meter"]["completion_tokens"] == 0
    metrics = await gateway.metrics()
    assert metrics['tollgate_tokens_total{direction="in",model="up",purpose="answer"}'] == 7


async def test_quotas_hold_the_prompt_alone(gateway: Gateway, upstream: FakeUpstream) -> None:
    """A limit that no answer of unknown length would fit has room for a text, until it is used up."""
    gateway.write(a_policy(upstream.base_url, tenants={"acme": {"quotas": {"tokens_per_minute": 40}}}))
    await gateway.generation(2)
    text = {"model": "fake", "input": ["one two three"] * 3}
    statuses = [(await gateway.http.post("/v1/embeddings", json=text)).status_code for _ in range(8)]
    assert statuses[0] == 200
    assert statuses[-1] == 429


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "fake", "input": "a", "stream": True}, 400, "stream"),
        ({"model": "fake"}, 400, "input"),
        ({"model": "nope", "input": "a"}, 404, "model"),
    ],
)
async def test_refusals(gateway: Gateway, body: dict[str, Any], status: int, param: str) -> None:
    got = await gateway.http.post("/v1/embeddings", json=body)
    assert (got.status_code, got.json()["error"]["param"]) == (status, param)


async def test_keys_are_asked_for_and_heeded(gateway: Gateway) -> None:
    body = {"model": "up", "input": "a"}
    nobody = {"authorization": "Bearer tg-nobody"}
    assert (await gateway.http.post("/v1/embeddings", json=body, headers=nobody)).status_code == 401
    narrow = {"authorization": f"Bearer {NARROW_KEY}"}
    assert (await gateway.http.post("/v1/embeddings", json=body, headers=narrow)).status_code == 404


async def test_one_that_has_none_is_passed_over(gateway: Gateway, upstream: FakeUpstream) -> None:
    policy = a_policy(upstream.base_url)
    policy["backends"]["claude"] = {"kind": "anthropic", "base_url": "http://127.0.0.1:1"}
    policy["models"]["claude"] = {"targets": [{"backend": "claude", "model": "c"}]}
    policy["models"]["both"] = {"targets": [{"backend": "claude", "model": "c"}], "fallbacks": ["fake"]}
    gateway.write(policy)
    await gateway.generation(2)
    got = await gateway.http.post("/v1/embeddings", json={"model": "both", "input": "a"})
    assert (got.status_code, got.json()["model"]) == (200, "fake")
    got = await gateway.http.post("/v1/embeddings", json={"model": "claude", "input": "a"})
    assert (got.status_code, got.json()["error"]["code"]) == (400, "unsupported_parameter")


async def test_an_error_reaches_the_sdk(client: AsyncOpenAI) -> None:
    async with client:
        with pytest.raises(openai.APIStatusError) as caught:
            await client.embeddings.create(model="fake", input="fail")
    assert caught.value.status_code == 503
