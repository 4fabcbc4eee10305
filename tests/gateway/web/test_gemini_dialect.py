"""Google's dialect over real sockets: keys, forms of streams, errors, and that guards, caches and quotas see it as they
see the others. Before a model of Google's, what the caller writes and what the model says pass unchanged."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.fakes import DONE, FakeUpstream, delta, reply, sse, stream, usage_event
from tests.serving import KEY, Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
GOOGLE = {"x-goog-api-key": KEY}
EMAIL = "jane.doe@example.com"
USAGE = {
    "promptTokenCount": 9,
    "candidatesTokenCount": 5,
    "totalTokenCount": 20,
    "thoughtsTokenCount": 6,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 9}],
    "ofTomorrow": 1,
}
TOLD: dict[str, Any] = {
    "candidates": [
        {
            "content": {
                "role": "model",
                "parts": [
                    {"text": "Hm.", "thought": True, "thoughtSignature": "c2ln"},
                    {"text": "I will look.", "thoughtSignature": "c2ln"},
                    {"executableCode": {"language": "PYTHON", "code": "print(1)"}},
                    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
                    {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
                    {"functionCall": {"name": "f", "args": {"a": 1}, "id": "f1"}, "thoughtSignature": "c2ln"},
                    {"functionCall": {"name": "f", "args": {}, "id": "f2"}},
                ],
            },
            "finishReason": "STOP",
            "index": 0,
            "safetyRatings": [{"category": "HARM_CATEGORY_HARASSMENT", "probability": "LOW"}],
            "groundingMetadata": {"webSearchQueries": ["q"]},
            "avgLogprobs": -0.5,
            "ofTomorrow": {"a": [1]},
        }
    ],
    "usageMetadata": USAGE,
    "modelVersion": "g",
    "responseId": "r1",
    "ofTomorrow": {"a": [1]},
}
WRITTEN: dict[str, Any] = {
    "contents": [
        {
            "role": "user",
            "parts": [{"text": "Hi", "ofTomorrow": 1}, {"fileData": {"fileUri": "gs://b/a.png"}}],
        },
        {
            "role": "model",
            "parts": [{"executableCode": {"code": "1"}}, {"functionCall": {"name": "f", "args": {"a_b": 1}}}],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"x_y": [1]}}}]},
    ],
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "tools": [{"googleSearch": {}}, {"functionDeclarations": [{"name": "f", "behavior": "NON_BLOCKING"}]}],
    "toolConfig": {"retrievalConfig": {"languageCode": "de"}},
    "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    "generationConfig": {"thinkingConfig": {"thinkingBudget": 9}, "topK": 3, "ofTomorrow": {"a": 1}},
    "labels": {"a": "b"},
    "ofTomorrow": {"a": [1]},
}


def a_policy_of(upstream: FakeUpstream, **more: Any) -> dict[str, Any]:
    policy = a_policy(upstream.base_url, **more)
    policy["backends"]["g"] = {
        "kind": "gemini",
        "base_url": upstream.base_url.removesuffix("/v1"),
        "api_key": "upstreams",
    }
    policy["models"]["g"] = {"targets": [{"backend": "g", "model": "gemini-2.5-pro"}]}
    return policy


@pytest.fixture
async def gateway(upstream: FakeUpstream, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", a_policy_of(upstream)) as running:
        yield running


async def post(gateway: Gateway, method: str, body: Any = ASK, model: str = "up") -> httpx.Response:
    path = f"{gateway.url}/v1beta/models/{model}:{method}"
    async with httpx.AsyncClient() as http:
        return await http.post(path, json=body, headers=GOOGLE)


def said(*words: str) -> tuple[Any, ...]:
    events = [delta(word) for word in words]
    return stream(*map(sse, [*events, delta(finish="stop"), usage_event()]), DONE)


def events_of(answer: httpx.Response) -> list[Any]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [orjson.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n") if event]


def text_of(events: list[Any]) -> str:
    parts = [p for e in events for c in e.get("candidates", ()) for p in c["content"].get("parts", ())]
    return "".join(part.get("text", "") for part in parts)


async def test_a_stream_in_both_forms_and_a_whole_answer(upstream: FakeUpstream, gateway: Gateway) -> None:
    upstream.scripts = [said("One", " two")]
    whole = (await post(gateway, "generateContent")).json()
    events = events_of(await post(gateway, "streamGenerateContent?alt=sse"))
    array = await post(gateway, "streamGenerateContent")
    assert array.headers["content-type"].startswith("application/json")
    assert text_of(events) == text_of(array.json()) == text_of([whole]) == "One two"
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10}
    for last in (whole, events[-1], array.json()[-1]):
        assert last["usageMetadata"] == usage
        assert (last["candidates"][0]["finishReason"], last["modelVersion"]) == ("STOP", "up")
    assert all("finishReason" not in event["candidates"][0] for event in events[:-1])
    assert {event["responseId"] for event in events} == {"upstream"}


async def test_tool_calls_come_whole_at_the_end(upstream: FakeUpstream, gateway: Gateway) -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}
    more = {"index": 0, "function": {"arguments": " 1}"}}
    upstream.scripts = [
        stream(
            *map(sse, [delta("Well."), delta(tool_calls=[call]), delta(tool_calls=[more])]),
            *map(sse, [delta(finish="tool_calls"), usage_event()]),
            DONE,
        )
    ]
    events = events_of(await post(gateway, "streamGenerateContent?alt=sse"))
    assert text_of(events) == "Well."
    part = {"functionCall": {"name": "f", "id": "call_1", "args": {"a": 1}}}
    assert events[-1]["candidates"][0]["content"]["parts"] == [part]
    assert events[-1]["candidates"][0]["finishReason"] == "STOP"


@pytest.mark.parametrize("path", ["/v1beta/models", "/v1/v1beta/models", "/v1/models"])
@pytest.mark.parametrize("where", ["header", "query"])
async def test_keys_are_taken_where_googles_clients_put_them_and_are_not_logged(
    gateway: Gateway, path: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    if (path, where) == ("/v1/models", "query"):
        path = "/v1beta/models/fake"
    async with httpx.AsyncClient() as http:
        given = {"headers": GOOGLE} if where == "header" else {"params": {"key": KEY}}
        answer = await http.get(gateway.url + path, **given)  # type: ignore[arg-type]
        assert answer.status_code == 200
        names = [one["name"] for one in answer.json().get("models", [answer.json()])]
        assert "models/fake" in names
        url = f"{gateway.url}/v1/models/fake:generateContent"
        asked = await http.post(url, json=ASK, **given)  # type: ignore[arg-type]
        assert text_of([asked.json()]) == "one two three"
        receipt = await gateway.http.get(f"/v1/requests/{asked.headers['x-request-id']}")
    assert receipt.status_code == 200
    assert KEY not in receipt.text
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert KEY not in "".join(record.getMessage() for record in ours)


async def test_models_come_page_by_page(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, headers=GOOGLE) as http:
        first = (await http.get("/v1beta/models?pageSize=3")).json()
        rest = (await http.get(f"/v1beta/models?pageToken={first['nextPageToken']}")).json()
        assert len(first["models"]) == 3 and "nextPageToken" not in rest
        assert (await http.get("/v1beta/models?pageSize=x")).json()["error"]["status"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "name"),
    [
        ("POST", "/v1beta/models/nope:generateContent", ASK, 404, "NOT_FOUND"),
        ("GET", "/v1beta/models/nope", None, 404, "NOT_FOUND"),
        ("GET", "/v1beta/files", None, 404, "NOT_FOUND"),
        ("DELETE", "/v1beta/models/fake", None, 405, "UNIMPLEMENTED"),
        ("POST", "/v1beta/models/fake:generateContent", {"contents": 1}, 400, "INVALID_ARGUMENT"),
        ("POST", "/v1/models/fake:countTokens", {}, 400, "INVALID_ARGUMENT"),
        ("POST", "/v1beta/models/fake:embedContent", {}, 400, "INVALID_ARGUMENT"),
        ("POST", "/v1beta/models/down:generateContent", ASK, 503, "UNAVAILABLE"),
    ],
)
async def test_errors_have_googles_shape(
    gateway: Gateway, method: str, path: str, body: Any, status: int, name: str
) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, headers=GOOGLE) as http:
        answer = await http.request(method, path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["status"]) == (status, status, name)
        assert error["message"] and error["details"][0]["domain"] == "tollgate"
        anonymous = await http.request(method, path, json=body, headers={"x-goog-api-key": "tg-nobody"})
        assert anonymous.json()["error"]["status"] == "UNAUTHENTICATED"


async def test_an_answer_that_breaks_off_ends_with_an_error(gateway: Gateway) -> None:
    body = {"contents": [{"parts": [{"text": "cut"}]}]}
    events = events_of(await post(gateway, "streamGenerateContent?alt=sse", body, "fake"))
    assert (text_of(events), events[-1]["error"]["status"]) == ("one two", "UNAVAILABLE")
    array = (await post(gateway, "streamGenerateContent", body, "fake")).json()
    assert "error" in array[-1]


async def test_counts_and_embeddings(upstream: FakeUpstream, gateway: Gateway) -> None:
    counted = await post(gateway, "countTokens", {"generateContentRequest": {"model": "models/up", **ASK}})
    assert counted.headers["x-tollgate-count"] == "estimate"
    assert counted.json()["totalTokens"] > 0
    upstream.scripts = [reply({"totalTokens": 31, "promptTokensDetails": [{"modality": "TEXT"}]})]
    counted = await post(gateway, "countTokens", ASK, "g")
    assert counted.headers["x-tollgate-count"] == "provider"
    assert counted.json() == {"totalTokens": 31, "promptTokensDetails": [{"modality": "TEXT"}]}
    assert upstream.requests[-1].path == "/v1beta/models/gemini-2.5-pro:countTokens"
    asked = upstream.requests[-1].json()
    assert asked == {"generateContentRequest": {"model": "models/gemini-2.5-pro", **ASK}}
    upstream.scripts = [reply({"totalTokens": -5})]
    assert (await post(gateway, "countTokens", ASK, "g")).headers["x-tollgate-count"] == "estimate"
    content = {"content": {"parts": [{"text": "Hi"}]}, "taskType": "RETRIEVAL_QUERY"}
    one = (await post(gateway, "embedContent", content, "fake")).json()
    two = (await post(gateway, "batchEmbedContents", {"requests": [content, content]}, "fake")).json()
    assert two == {"embeddings": [one["embedding"], one["embedding"]]}


async def test_google_gets_what_the_caller_wrote(upstream: FakeUpstream, gateway: Gateway) -> None:
    upstream.scripts = [reply(TOLD)]
    await post(gateway, "generateContent", WRITTEN, "g")
    assert upstream.requests[-1].json() == WRITTEN
    assert "x-goog-api-key" in upstream.requests[-1].headers


async def test_the_caller_gets_what_google_said(upstream: FakeUpstream, gateway: Gateway) -> None:
    upstream.scripts = [reply(TOLD)]
    assert (await post(gateway, "generateContent", model="g")).json() == TOLD
    upstream.scripts = [stream(sse(TOLD))]
    events = events_of(await post(gateway, "streamGenerateContent?alt=sse", model="g"))
    parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
    assert [part for part in parts if part != {"text": ""}] == TOLD["candidates"][0]["content"]["parts"]
    last = {**events[-1], "candidates": [{**events[-1]["candidates"][0], "content": None}]}
    assert last == {**TOLD, "candidates": [{**TOLD["candidates"][0], "content": None}]}


@pytest.mark.parametrize("reason", ["RECITATION", "PROHIBITED_CONTENT", "MAX_TOKENS", "SPII"])
async def test_the_reason_of_googles_is_kept(upstream: FakeUpstream, gateway: Gateway, reason: str) -> None:
    candidate = {"content": {"parts": [{"text": "x"}], "role": "model"}, "finishReason": reason}
    upstream.scripts = [reply({"candidates": [candidate]})]
    answer = (await post(gateway, "generateContent", model="g")).json()
    assert answer["candidates"][0]["finishReason"] == reason


async def test_googles_block_comes_back_as_one(upstream: FakeUpstream, gateway: Gateway) -> None:
    upstream.scripts = [reply({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})]
    answer = await post(gateway, "generateContent", model="g")
    assert answer.status_code == 200
    assert answer.json()["promptFeedback"]["blockReason"] == "PROHIBITED_CONTENT"


PII = {"pii": {"on": ["input", "output"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}}


@pytest.mark.parametrize("model", ["up", "g"])
async def test_a_guard_masks_what_the_model_sees_and_gives_it_back(
    upstream: FakeUpstream, tmp_path: Path, model: str
) -> None:
    body = {
        "systemInstruction": {"parts": [{"text": f"Write to {EMAIL}."}]},
        "contents": [
            {"role": "user", "parts": [{"text": f"I am {EMAIL}"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"to": EMAIL}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"from": EMAIL}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "f", "description": f"Mails {EMAIL}"}]}],
    }
    async with serving(tmp_path / "policies", a_policy_of(upstream, guards=PII)) as gateway:
        if model == "up":
            upstream.scripts = [said("To <EMAIL", "_ADDRESS_1> now")]
        else:
            part = {"content": {"parts": [{"text": "To <EMAIL_ADDRESS_1> now"}]}, "finishReason": "STOP"}
            upstream.scripts = [stream(sse({"candidates": [part], "usageMetadata": USAGE}))]
        events = events_of(await post(gateway, "streamGenerateContent?alt=sse", body, model))
        sent = upstream.requests[-1].body.decode()
        assert EMAIL not in sent and sent.count("<EMAIL_ADDRESS_1>") == 5
        assert text_of(events) == f"To {EMAIL} now"


async def test_a_signed_answer_stays_whole_behind_an_output_guard(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    async with serving(tmp_path / "policies", a_policy_of(upstream, guards=PII)) as gateway:
        upstream.scripts = [stream(sse(TOLD))]
        answer = (await post(gateway, "generateContent", model="g")).json()
        told = TOLD["candidates"][0]["content"]["parts"]
        parts = answer["candidates"][0]["content"]["parts"]
        assert [part for part in parts if "functionCall" in part] == told[5:]
        assert [part for part in parts if "inlineData" in part] == told[4:5]
        assert "".join(part.get("text", "") for part in parts) == "Hm.I will look."


async def test_a_guard_cuts_a_stream_and_says_so(upstream: FakeUpstream, tmp_path: Path) -> None:
    guards = {"pii": {"on": ["output"], "action": "block", "entities": ["EMAIL_ADDRESS"]}}
    async with serving(tmp_path / "policies", a_policy_of(upstream, guards=guards)) as gateway:
        upstream.scripts = [said("Ask ", EMAIL, " for it")]
        events = events_of(await post(gateway, "streamGenerateContent?alt=sse"))
        assert EMAIL not in text_of(events)
        assert events[-1]["candidates"][0]["finishReason"] == "SAFETY"
        assert events[-1]["tollgate"]["revoked"] is True


@pytest.mark.parametrize(
    "method", ["generateContent", "streamGenerateContent?alt=sse", "streamGenerateContent"]
)
async def test_a_guard_blocks_a_prompt(upstream: FakeUpstream, tmp_path: Path, method: str) -> None:
    guards = {"pii": {"on": ["input"], "action": "block", "entities": ["EMAIL_ADDRESS"]}}
    async with serving(tmp_path / "policies", a_policy_of(upstream, guards=guards)) as gateway:
        answer = await post(gateway, method, {"contents": [{"parts": [{"text": EMAIL}]}]})
        assert answer.status_code == 200
        found = events_of(answer) if "alt=sse" in method else answer.json()
        one = found[0] if isinstance(found, list) else found
        assert one["promptFeedback"]["blockReason"] == "SAFETY"
        assert "candidates" not in one and one["tollgate"]["reason"] == "content_policy_violation"
        receipt = await gateway.http.get(f"/v1/requests/{answer.headers['x-request-id']}")
        assert receipt.status_code == 200
        assert not upstream.requests


async def test_a_cache_hits_and_quotas_are_told(upstream: FakeUpstream, tmp_path: Path) -> None:
    tenants = {"acme": {"quotas": {"requests_per_minute": 2, "tokens_per_minute": 100000}}}
    more = {"caches": {"exact": {"ttl": "1h", "max_bytes": "1MiB"}}, "tenants": tenants}
    async with serving(tmp_path / "policies", a_policy_of(upstream, **more)) as gateway:
        upstream.scripts = [said("One", " two")]
        first = await post(gateway, "generateContent")
        again = await post(gateway, "streamGenerateContent?alt=sse", {**ASK, "labels": {"a": "b"}})
        assert (first.headers["x-tollgate-cache"], again.headers["x-tollgate-cache"]) == ("miss", "exact")
        assert text_of(events_of(again)) == "One two"
        assert len(upstream.requests) == 1
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        refused = await post(gateway, "generateContent")
        error = refused.json()["error"]
        assert (refused.status_code, error["status"]) == (429, "RESOURCE_EXHAUSTED")
        assert int(refused.headers["retry-after"]) > 0
        assert error["details"][-1]["retryDelay"].endswith("s")


async def test_a_stream_waits_with_empty_lines(upstream: FakeUpstream, tmp_path: Path) -> None:
    """Google's SDK for Python takes a comment for an answer that it cannot read."""
    async with serving(tmp_path / "policies", a_policy_of(upstream), heartbeat=0.05) as gateway:
        upstream.scripts = [stream(0.3, sse(delta("One")), sse(delta(finish="stop")), DONE)]
        for method in ("streamGenerateContent?alt=sse", "streamGenerateContent"):
            answer = await post(gateway, method)
            assert answer.text.startswith("\n") and ":" not in answer.text.split("{")[0].replace("data:", "")


async def test_a_budget_holds_what_is_asked(upstream: FakeUpstream, tmp_path: Path) -> None:
    """What may cost more than its tokens is refused by name; a picture counts as one, and not by its characters."""
    tenants = {"acme": {"budget": {"usd_per_day": 0.1}}}
    prices = {"gemini-2.5-pro": {"input": 1.25, "output": 10.0}}
    async with serving(
        tmp_path / "policies", a_policy_of(upstream, tenants=tenants, prices=prices)
    ) as gateway:
        upstream.scripts = [
            reply({"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}]})
        ]
        for more, param in (
            ({"tools": [{"googleSearch": {}}]}, "tools[0].googleSearch"),
            ({"cachedContent": "cachedContents/1"}, "cachedContent"),
            ({"generationConfig": {"responseModalities": ["IMAGE"]}}, "responseModalities"),
        ):
            refused = await post(gateway, "generateContent", {**ASK, **more}, "g")
            violation = refused.json()["error"]["details"][1]["fieldViolations"][0]
            assert (refused.status_code, violation["field"]) == (400, param)
        assert not upstream.requests
        picture = {"inlineData": {"mimeType": "image/png", "data": "A" * 400_000}}
        asked = {"contents": [{"parts": [picture]}], "generationConfig": {"maxOutputTokens": 100}}
        answer = await post(gateway, "generateContent", asked, "g")
        assert answer.status_code == 200, answer.text
        assert upstream.requests[-1].json() == asked
