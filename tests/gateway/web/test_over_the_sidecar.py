"""Embeddings and moderations of a whole gateway with the real sidecar, and without one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from tests.fakes import FakeUpstream, completion, reply
from tests.serving import KEY, OTHER_KEY, Gateway, a_policy, serving
from tests.sidecars import SidecarProcess

pytestmark = pytest.mark.anyio

CRUEL = "I hate those people, they are animals and should all be killed."
MILD = "Could you recommend a book about gardening?"


def rules(upstream: FakeUpstream, **more: Any) -> dict[str, Any]:
    policy = a_policy(upstream.base_url, ledger={"enabled": False}, **more)
    policy["backends"]["embedder"] = {"kind": "sidecar"}
    policy["models"]["mini"] = {"targets": [{"backend": "embedder", "model": "all-MiniLM-L6-v2"}]}
    policy["models"]["both"] = {
        "targets": [{"backend": "embedder", "model": "all-MiniLM-L6-v2"}],
        "fallbacks": ["up"],
        "retry": {"attempts": 1},
    }
    policy["models"]["steps"] = {"cascade": [{"model": "fake"}, {"model": "up"}]}
    return policy


def sdk(gateway: Gateway, token: str = KEY) -> AsyncOpenAI:
    http = httpx.AsyncClient(verify=False, trust_env=False)
    return AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=token, max_retries=0, http_client=cast("Any", http)
    )


@pytest.fixture
async def gateway(upstream: FakeUpstream, sidecar: SidecarProcess, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", rules(upstream), sidecar=sidecar.path) as running:
        yield running


@pytest.fixture
async def alone(upstream: FakeUpstream, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "alone", rules(upstream)) as running:
        yield running


async def test_the_sidecar_embeds(gateway: Gateway) -> None:
    texts = ["A cat sleeps.", "A kitten is asleep.", "Shares fell on Monday."]
    async with sdk(gateway) as client:
        answer = await client.embeddings.create(model="mini", input=texts)
    cat, kitten, shares = (one.embedding for one in answer.data)
    assert len(cat) == 384
    assert sum(a * b for a, b in zip(cat, kitten, strict=True)) > 0.5
    assert sum(a * b for a, b in zip(cat, shares, strict=True)) < 0.3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens > 8


async def test_what_was_counted_by_guess_is_billed_as_prompt_alone(gateway: Gateway) -> None:
    got = await gateway.http.post("/v1/embeddings", json={"model": "mini", "input": ["one", "two"]})
    receipt = (await gateway.http.get(f"/v1/requests/{got.headers['x-request-id']}")).json()["stages"]
    assert receipt["quota"]["source"] == "estimated"
    assert receipt["quota"]["used_tokens"] == got.json()["usage"]["total_tokens"]
    assert receipt["quota"]["unpriced"] == ["embedder/all-MiniLM-L6-v2"]


async def test_the_embedder_does_not_chat(gateway: Gateway) -> None:
    async with sdk(gateway) as client:
        with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
            await client.chat.completions.create(model="mini", messages=[{"role": "user", "content": "Hi"}])


async def test_without_a_sidecar_another_answers(alone: Gateway, upstream: FakeUpstream) -> None:
    data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
    upstream.scripts = [reply({"object": "list", "data": data, "usage": {"prompt_tokens": 1}})]
    got = await alone.http.post("/v1/embeddings", json={"model": "both", "input": "a"})
    assert (got.status_code, got.json()["model"]) == (200, "up")
    got = await alone.http.post("/v1/embeddings", json={"model": "mini", "input": "a"})
    assert (got.status_code, got.json()["error"]["code"]) == (503, "upstream_unavailable")
    assert int(got.headers["retry-after"]) >= 1


async def test_a_cascade_has_no_vectors(gateway: Gateway) -> None:
    got = await gateway.http.post("/v1/embeddings", json={"model": "steps", "input": "a"})
    assert (got.status_code, got.json()["error"]["code"]) == (400, "unsupported_parameter")


async def test_equal_requests_share_an_answer_and_tenants_do_not(
    upstream: FakeUpstream, sidecar: SidecarProcess, tmp_path: Path
) -> None:
    policy = rules(upstream, caches={"exact": {"ttl": "1h"}})
    body = {"model": "mini", "input": "a text"}
    async with serving(tmp_path / "policies", policy, sidecar=sidecar.path) as gateway:
        first, second, packed = [
            await gateway.http.post("/v1/embeddings", json={**body, **more})
            for more in ({}, {}, {"encoding_format": "base64"})
        ]
        other = await gateway.http.post(
            "/v1/embeddings", json=body, headers={"authorization": f"Bearer {OTHER_KEY}"}
        )
    found = [answer.headers["x-tollgate-cache"] for answer in (first, second, packed, other)]
    assert found == ["miss", "exact", "miss", "miss"]
    assert first.json() == second.json()


async def test_moderations_with_the_sidecar_and_without(gateway: Gateway, alone: Gateway) -> None:
    for one, check in ((gateway, "model"), (alone, "fast")):
        async with sdk(one) as client:
            raw = await client.moderations.with_raw_response.create(input=[CRUEL, MILD])
        cruel, mild = raw.parse().results
        assert (cruel.flagged, mild.flagged) == (True, False)
        assert cruel.category_scores.hate > mild.category_scores.hate
        receipt = (await one.http.get(f"/v1/requests/{raw.headers['x-request-id']}")).json()["stages"]
        assert receipt["moderation"] == {"guard": None, "texts": 2, "flagged": 1, "checks": [check]}


async def test_a_judge_is_asked_where_the_others_are_not_sure(
    upstream: FakeUpstream, tmp_path: Path, quick_reload: None
) -> None:
    upstream.scripts = [reply(completion("unsafe\nS11"))]
    guard = {"checks": ["fast"], "tenants": ["acme"]}
    async with serving(tmp_path / "policies", rules(upstream, guards={"toxicity": guard})) as gateway:
        [sure] = (await gateway.http.post("/v1/moderations", json={"input": CRUEL})).json()["results"]
        unclear = {**guard, "judge": "up", "threshold": max(sure["category_scores"].values())}
        gateway.write(rules(upstream, guards={"toxicity": unclear}))
        await gateway.generation(2)
        [judged] = (await gateway.http.post("/v1/moderations", json={"input": CRUEL})).json()["results"]
        metrics = await gateway.metrics()
    assert judged["flagged"]
    assert [name for name, flagged in judged["categories"].items() if flagged] == ["self-harm"]
    assert [request.json()["messages"][-1]["content"] for request in upstream.requests] == [CRUEL]
    assert metrics['tollgate_attempts_total{backend="up",outcome="ok"}'] == 1


async def test_keys_are_asked_for(alone: Gateway) -> None:
    nobody = {"authorization": "Bearer tg-nobody"}
    got = await alone.http.post("/v1/moderations", json={"input": "a"}, headers=nobody)
    assert got.status_code == 401
