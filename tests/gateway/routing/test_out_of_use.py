"""Models whose backends are drained, or have no key, over HTTP: what a caller is told, and who answers instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import FakeUpstream, completion, reply
from tests.serving import KEY, OPERATOR, Gateway, a_policy, chat, key, serving

pytestmark = pytest.mark.anyio

ADMIN = {"authorization": "Bearer tg-admin-1"}
CASCADE = [{"model": "m", "when": {"complexity": {"below": 1.0}}}, {"model": "fake"}]


def policy(upstream: FakeUpstream, api_key: str = "sk-upstream", **more: Any) -> dict[str, Any]:
    """``m`` is served by ``o`` alone, ``n`` and ``row`` by others where that is out of use."""
    whole = a_policy(upstream.base_url, admin={"enabled": True})
    whole["backends"]["o"] = {"kind": "openai", "base_url": upstream.base_url, "api_key": api_key}
    whole["models"] |= {
        "m": {"targets": [{"backend": "o", "model": "m"}], "aliases": ["alias"]},
        "n": {"targets": [{"backend": "o", "model": "n"}], "fallbacks": ["fake"]},
        "row": {"cascade": CASCADE},
        **more.pop("models", {}),
    }
    whole["keys"].append(key("tg-admin-1", "ops", tenant="ops", scopes=["admin"]))
    return {**whole, **more}


@asynccontextmanager
async def out_of_use(tmp_path: Path, upstream: FakeUpstream, **more: Any) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", policy(upstream, drained=["o"], **more)) as gateway:
        yield gateway


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat("m"),
    "/v1/completions": {"model": "m", "prompt": "Hi"},
    "/v1/responses": {"model": "m", "input": "Hi"},
    "/v1/messages": {**chat("m"), "max_tokens": 5},
    "/v1/embeddings": {"model": "m", "input": "Hi"},
    "/v1/rerank": {"model": "m", "query": "Hi", "documents": ["a", "b"]},
    "/v1/images/generations": {"model": "m", "prompt": "a hat"},
    "/v1/audio/speech": {"model": "m", "input": "Hi", "voice": "alloy"},
}


NOT_STREAMED = ("/v1/embeddings", "/v1/rerank")


@pytest.mark.parametrize(
    ("path", "stream"),
    [(path, stream) for path in BODIES for stream in (False, True) if not (stream and path in NOT_STREAMED)],
)
async def test_it_is_unavailable_for_a_while_and_not_unknown(
    path: str, stream: bool, tmp_path: Path, upstream: FakeUpstream
) -> None:
    body = BODIES[path] | ({"stream": True} if stream else {})
    async with out_of_use(tmp_path, upstream) as gateway:
        refused = await gateway.http.post(path, json=body)
        assert refused.status_code == 503, refused.text
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        error = refused.json()["error"]
        assert "'m' is out of service for now" in error["message"] and "'o'" not in error["message"]
        assert error.get("code", "model_unavailable") == "model_unavailable"
        assert upstream.requests == []


async def test_a_key_that_is_not_set_passes_too(tmp_path: Path, upstream: FakeUpstream) -> None:
    async with serving(tmp_path / "policies", policy(upstream, "${NOBODY_SETS_THIS}")) as gateway:
        refused = await gateway.http.post("/v1/chat/completions", json=chat("m"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_unavailable")
        assert refused.headers["retry-after"]
        listed = (await gateway.http.get("/v1/models")).json()["data"]
        assert "m" not in {one["id"] for one in listed}, "it was never set up"


async def test_it_stays_listed_while_it_is_drained(tmp_path: Path, upstream: FakeUpstream) -> None:
    async with out_of_use(tmp_path, upstream) as gateway:
        listed = {one["id"] for one in (await gateway.http.get("/v1/models")).json()["data"]}
        assert {"m", "alias", "n", "row", "fake"} <= listed
        assert (await gateway.http.get("/v1/models/m")).json()["owned_by"] == "o"


async def test_others_answer_in_its_place(tmp_path: Path, upstream: FakeUpstream) -> None:
    async with out_of_use(tmp_path, upstream) as gateway:
        for model in ("n", "row"):
            answer = await gateway.http.post("/v1/chat/completions", json=chat(model))
            assert (answer.status_code, answer.headers["x-tollgate-model"]) == (200, "fake")


async def test_the_operator_is_told_which_and_why(tmp_path: Path, upstream: FakeUpstream) -> None:
    async with out_of_use(tmp_path, upstream) as gateway:
        page = await gateway.http.get("/readyz", headers=OPERATOR)
        assert page.status_code == 200, "others serve"
        assert page.json()["backends"]["o"] == "disabled: it is drained"
        assert page.json()["models"]["m"] == "o: it is drained"
        assert page.json()["models"]["n"] == "ready"
        one = await gateway.http.get("/readyz?model=m", headers=OPERATOR)
        assert (one.status_code, bool(one.headers["retry-after"])) == (503, True)
        assert "o" not in (await gateway.http.get("/readyz")).text.split('"'), "others are not told"


async def test_a_gateway_that_can_answer_nothing_is_not_ready(tmp_path: Path, upstream: FakeUpstream) -> None:
    """A script proves nothing."""
    rules = policy(upstream, drained=["o", "up", "down"])
    async with serving(tmp_path / "policies", rules) as gateway:
        page = await gateway.http.get("/readyz", headers=OPERATOR)
        assert (page.status_code, page.json()["waits_for"]) == (503, ["down", "o", "up"])


async def drained(gateway: Gateway, how: str) -> httpx.Response:
    return await gateway.http.post(f"/admin/api/backends/o/{how}", headers=ADMIN)


REFUSED = {"error": {"message": "prompt is too long", "code": "context_length_exceeded"}}
PARAMETER = {"error": {"message": "no such field", "code": "unsupported_parameter", "param": "seed"}}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, REFUSED),
        (400, PARAMETER),
        (422, {"error": {"message": "no"}}),
        (500, {"error": {"message": "oh"}}),
    ],
    ids=["too long", "parameter", "rejected", "failed"],
)
async def test_a_refusal_by_who_stands_in_is_not_the_answer(
    status: int, body: dict[str, Any], stream: bool, tmp_path: Path, upstream: FakeUpstream
) -> None:
    """The fallback refuses what the model that was asked for would take, were it in use."""
    upstream.scripts = [reply(body, status=status)]
    models = {"x": {"targets": [{"backend": "o", "model": "x"}], "fallbacks": ["up"]}}
    async with out_of_use(tmp_path, upstream, models=models) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=chat("x", stream=stream))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
        assert len(upstream.requests) >= 1


@pytest.mark.parametrize("out", [True, False], ids=["drained", "in use"])
async def test_too_long_for_now(out: bool, tmp_path: Path, upstream: FakeUpstream) -> None:
    """The model with the larger context is out of use; where there is none, the refusal is the answer."""
    upstream.scripts = [reply(REFUSED, status=400)]
    target = [{"backend": "up", "model": "x"}]
    models = {"x": {"targets": target, "larger_context": "m"} if out else {"targets": target}}
    async with out_of_use(tmp_path, upstream, models=models) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=chat("x"))
        assert answer.status_code == (503 if out else 400)


async def test_a_shadow_that_is_out_of_use_changes_nothing(tmp_path: Path, upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(completion("the answer"))]
    models = {
        "x": {"targets": [{"backend": "up", "model": "x"}], "shadow": {"model": "m", "share": 1.0}},
    }
    async with out_of_use(tmp_path, upstream, models=models) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=chat("x"))
        assert answer.json()["choices"][0]["message"]["content"] == "the answer"
        async with asyncio.timeout(300):
            while not any(  # noqa: ASYNC110
                name.startswith("tollgate_shadow_requests_total{") and '"503"' in name and value == 1
                for name, value in (await gateway.metrics()).items()
            ):
                await asyncio.sleep(0.02)


async def test_its_answers_come_again_once_it_is_used_again(
    tmp_path: Path, upstream: FakeUpstream, quick_reload: None
) -> None:
    upstream.scripts = [reply(completion("the answer"))]
    headers = {"authorization": f"Bearer {KEY}"}
    async with serving(tmp_path / "policies", policy(upstream)) as gateway:
        assert (await drained(gateway, "drain")).json()["changed"]
        await gateway.generation(2)
        assert (await gateway.http.post("/v1/chat/completions", json=chat("m"))).status_code == 503
        assert (await drained(gateway, "undrain")).json()["changed"]
        await gateway.generation(3)
        answer = await gateway.http.post("/v1/chat/completions", json=chat("m"), headers=headers)
        assert answer.status_code == 200
