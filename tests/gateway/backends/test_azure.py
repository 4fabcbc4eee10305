"""Azure OpenAI over real sockets: its addresses, both ways to prove who asks, and what its filters say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway import errors
from gateway.backends.credentials import bearer_token
from gateway.backends.credentials.entra import token_request
from gateway.policy.schema import AzureBackend, EntraAuth, Target
from gateway.runtime.backends import build_backend
from gateway.types import Backend, Call, Chunk
from gateway.wire.openai.dialect import CHAT
from tests.fakes import FakeUpstream, a_call, reply, stream

pytestmark = pytest.mark.anyio

RECORDED = Path(__file__).parents[2] / "recorded" / "azure"
TARGET = Target(backend="azure", model="our gpt")


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


class State:
    """All that ``build_backend`` asks of a worker for a server."""

    transport = None


def azure(upstream: FakeUpstream, **config: Any) -> Backend:
    given = {"kind": "azure", "base_url": upstream.base_url.removesuffix("/v1"), **config}
    return build_backend("azure", AzureBackend.model_validate(given), State())  # type: ignore[arg-type]


async def ask(backend: Backend, call: Call | None = None) -> list[Chunk]:
    async with aclosing(backend.stream(call or a_call(stream=False), TARGET)) as chunks:
        return [chunk async for chunk in chunks]


@pytest.fixture
async def issuer() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(
        reply({"token_type": "Bearer", "expires_in": 3599, "access_token": "T1"})
    ) as server:
        yield server


# Where it is asked, and how


@pytest.mark.parametrize(
    ("version", "path", "probe"),
    [
        (None, "/openai/v1/chat/completions", "/openai/v1/models"),
        (
            "2024-10-21",
            "/openai/deployments/our%20gpt/chat/completions?api-version=2024-10-21",
            "/openai/models?api-version=2024-10-21",
        ),
    ],
    ids=["v1", "deployments"],
)
async def test_where_it_is_asked(upstream: FakeUpstream, version: str | None, path: str, probe: str) -> None:
    upstream.scripts = [reply(recorded("chat.json"))]
    backend = azure(upstream, api_version=version, api_key="0123azurekey")
    await ask(backend)
    await backend.probe()
    [request], [looked] = upstream.requests, upstream.probes
    assert (request.path, looked.path) == (path, probe)
    assert request.headers["api-key"] == looked.headers["api-key"] == "0123azurekey"
    assert "authorization" not in request.headers
    assert request.json() == {
        "model": "our gpt",
        "stream": False,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    await backend.aclose()


@pytest.mark.parametrize("embeds", [False, True], ids=["completions", "embeddings"])
async def test_its_other_paths(upstream: FakeUpstream, embeds: bool) -> None:
    answer = {"data": [{"index": 0, "embedding": [0.5]}]} if embeds else {"choices": [{"text": "on"}]}
    upstream.scripts = [reply({**answer, "usage": {"prompt_tokens": 1, "completion_tokens": 0}})]
    backend = azure(upstream, api_version="2024-10-21")
    await ask(backend, a_call(prompt="Once", stream=False, embeds=embeds))
    name = "embeddings" if embeds else "completions"
    assert upstream.requests[0].path == f"/openai/deployments/our%20gpt/{name}?api-version=2024-10-21"
    await backend.aclose()


# What comes back


def as_called(chunks: list[Chunk], call: Call) -> dict[str, Any]:
    """The one body that a caller of OpenAI's dialect gets."""
    writer = CHAT.body_writer(call)
    for chunk in chunks:
        writer.add(chunk)
    body: dict[str, Any] = orjson.loads(writer.body())
    return body


async def test_verdicts_of_its_filters_reach_the_caller(upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(recorded("chat.json"))]
    backend, call = azure(upstream), a_call(stream=False)
    body = as_called(await ask(backend, call), call)
    told = orjson.loads(recorded("chat.json"))
    assert body == {**told, "model": "m"}
    ChatCompletion.model_validate(body)
    await backend.aclose()


@pytest.mark.parametrize("name", ["chat.sse", "async_filter.sse"])
async def test_a_stream_brings_the_same_verdicts(upstream: FakeUpstream, name: str) -> None:
    upstream.scripts = [stream(recorded(name))]
    backend, call = azure(upstream), a_call(include_usage=True)
    writer, events = CHAT.event_writer(call), []
    for chunk in await ask(backend, call):
        events += [orjson.loads(line[6:]) for line in writer.event(chunk).split(b"\n\n") if line]
    for event in events:
        ChatCompletionChunk.model_validate(event)
    sent = [orjson.loads(line[6:]) for line in recorded(name).split(b"\n\n") if line[6:7] == b"{"]
    # The verdict on the prompt comes with the first choice: clients of OpenAI's expect one in each event.
    assert events[0]["prompt_filter_results"] == sent[0]["prompt_filter_results"]
    theirs = [event["choices"][0] for event in sent if event["choices"]]
    ours = [event["choices"][0] for event in events]
    for name in ("content_filter_results", "content_filter_offsets"):
        assert [choice.get(name) for choice in ours] == [choice.get(name) for choice in theirs]
    assert "".join(choice["delta"].get("content") or "" for choice in ours) == "Hello there"
    await backend.aclose()


async def test_a_prompt_that_is_filtered_is_refused_with_the_verdicts(upstream: FakeUpstream) -> None:
    body = orjson.loads(recorded("filtered.json"))
    inner = body["error"]["innererror"]
    inner["content_filter_result"]["custom_blocklists"] = {
        "filtered": False,
        "details": ["10.0.0.7:8000 said"],
    }
    upstream.scripts = [reply(body, status=400)]
    backend = azure(upstream)
    with pytest.raises(errors.ContentPolicy) as caught:
        await ask(backend)
    told = caught.value.body()["error"]
    assert (told["code"], told["param"]) == ("content_filter", "prompt")
    verdicts = told["innererror"]["content_filter_result"]
    assert told["innererror"]["code"] == "ResponsibleAIPolicyViolation"
    assert verdicts["hate"] == {"filtered": True, "severity": "high"}
    assert verdicts["custom_blocklists"] == {"filtered": False}  # and nothing of its inside
    await backend.aclose()


# Who asks

REFUSED = {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided."}


def by_secret(issuer: FakeUpstream, **more: Any) -> dict[str, Any]:
    authority = issuer.base_url.removesuffix("/v1")
    return {"tenant_id": "t-1", "client_id": "c-1", "authority": authority, **more}


async def test_a_token_is_bought_with_a_secret_and_used_until_it_runs_out(
    upstream: FakeUpstream, issuer: FakeUpstream
) -> None:
    upstream.scripts = [reply(recorded("chat.json"))]
    backend = azure(upstream, entra=by_secret(issuer, client_secret="s-1"))
    await ask(backend)
    await ask(backend)
    assert [one.headers["authorization"] for one in upstream.requests] == ["Bearer T1", "Bearer T1"]
    [asked] = issuer.requests
    assert asked.path == "/t-1/oauth2/v2.0/token"
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
    assert {name: value for name, [value] in parse_qs(asked.body.decode()).items()} == {
        "grant_type": "client_credentials",
        "client_id": "c-1",
        "client_secret": "s-1",
        "scope": "https://cognitiveservices.azure.com/.default",
    }
    await backend.aclose()


async def test_a_workloads_token_is_read_anew_each_time(
    upstream: FakeUpstream, issuer: FakeUpstream, tmp_path: Path
) -> None:
    upstream.scripts = [reply(recorded("chat.json"))]
    # A life that has almost ended is renewed before each request.
    issuer.scripts = [reply({"expires_in": "1e-9", "access_token": f"T{i}"}) for i in (1, 2)]
    file = tmp_path / "token"
    backend = azure(upstream, entra=by_secret(issuer, token_file=str(file)))
    for text in ("first", "second"):
        file.write_text(f"{text}\n")
        await ask(backend)
    assert [one.headers["authorization"] for one in upstream.requests] == ["Bearer T1", "Bearer T2"]
    fields = [parse_qs(one.body.decode()) for one in issuer.requests]
    assert [one["client_assertion"] for one in fields] == [["first"], ["second"]]
    assert fields[0]["client_assertion_type"] == ["urn:ietf:params:oauth:client-assertion-type:jwt-bearer"]
    await backend.aclose()


def test_a_machine_asks_its_own_address() -> None:
    own, there = EntraAuth(), EntraAuth(client_id="c-2")
    request = token_request(own, {})()
    assert request.endpoint.method == "GET"
    assert request.endpoint.url == (
        "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01"
        "&resource=https%3A%2F%2Fcognitiveservices.azure.com"
    )
    assert request.headers == {"metadata": "true"}
    request = token_request(there, {"IDENTITY_ENDPOINT": "http://10.0.0.1/msi", "IDENTITY_HEADER": "h"})()
    assert request.endpoint.url == (
        "http://10.0.0.1/msi?api-version=2019-08-01&resource=https%3A%2F%2Fcognitiveservices.azure.com"
        "&client_id=c-2"
    )
    assert request.headers == {"x-identity-header": "h"}


async def test_a_token_that_is_not_taken_is_replaced(
    upstream: FakeUpstream, issuer: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearer_token, "PAUSE", -1.0)
    issuer.scripts = [reply({"expires_in": 3599, "access_token": f"T{i}"}) for i in (1, 2)]
    upstream.scripts = [reply({"error": {"message": "no"}}, status=401), reply(recorded("chat.json"))]
    backend = azure(upstream, entra=by_secret(issuer, client_secret="s"))
    with pytest.raises(errors.UpstreamFailed) as caught:
        await ask(backend)
    assert caught.value.code == "upstream_auth"
    await ask(backend)
    assert [one.headers["authorization"] for one in upstream.requests] == ["Bearer T1", "Bearer T2"]
    await backend.aclose()


async def test_an_old_token_is_used_while_its_issuer_is_away(
    upstream: FakeUpstream, issuer: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearer_token, "PAUSE", -1.0)
    issuer.scripts = [reply({"expires_in": 3599, "access_token": "T1"}), reply({}, status=503)]
    upstream.scripts = [reply({"error": {"message": "no"}}, status=403), reply(recorded("chat.json"))]
    backend = azure(upstream, entra=by_secret(issuer, client_secret="s"))
    with pytest.raises(errors.UpstreamFailed):
        await ask(backend)
    await ask(backend)
    assert [one.headers["authorization"] for one in upstream.requests] == ["Bearer T1", "Bearer T1"]
    assert len(issuer.requests) == 2
    await backend.aclose()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (
            reply(REFUSED, status=401),
            errors.UpstreamFailed,
        ),
        (reply({"expires_in": 60}), errors.UpstreamFailed),
        (reply({"access_token": "T", "expires_in": "soon"}), errors.UpstreamFailed),
        (reply("<html>", status=502), errors.UpstreamUnavailable),
    ],
    ids=["refused", "no-token", "no-life", "away"],
)
async def test_without_a_token_nothing_is_asked(
    upstream: FakeUpstream, issuer: FakeUpstream, answer: Any, kind: type[Exception]
) -> None:
    issuer.scripts = [answer]
    backend = azure(upstream, entra=by_secret(issuer, client_secret="s"))
    for asking in (ask(backend), backend.probe()):
        with pytest.raises(kind) as caught:
            await asking
        assert "AADSTS" not in str(caught.value)  # it is for the operator's log
    assert upstream.requests == upstream.probes == []
    await backend.aclose()


async def test_a_missing_file_is_the_operators_to_mend(upstream: FakeUpstream, issuer: FakeUpstream) -> None:
    backend = azure(upstream, entra=by_secret(issuer, token_file="/nowhere/token"))
    with pytest.raises(errors.UpstreamFailed) as caught:
        await ask(backend)
    assert caught.value.code == "upstream_auth" and "nowhere" not in caught.value.message
    await backend.aclose()


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_url": "https://x.openai.azure.com/openai/v1"},
        {"api_key": "k", "entra": {}},
        {"entra": {"client_secret": "s"}},
        {"entra": {"client_secret": "s", "token_file": "f", "tenant_id": "t", "client_id": "c"}},
    ],
    ids=["path", "both", "half", "two"],
)
def test_what_cannot_be_meant_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="should"):
        AzureBackend.model_validate({"kind": "azure", "base_url": "https://x.openai.azure.com", **wrong})
