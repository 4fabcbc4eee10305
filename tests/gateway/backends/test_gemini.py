"""The Gemini backend over real sockets: both of Google's APIs, against recorded answers and a server that fails."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway import errors
from gateway.backends.credentials.google import token_request
from gateway.policy.schema import GeminiBackend, Target
from gateway.runtime.backends import build_backend
from gateway.types import Backend, Call, Chunk, Usage
from tests.fakes import FakeUpstream, Held, a_call, policy, reply, stream

pytestmark = pytest.mark.anyio

RECORDED = Path(__file__).parents[2] / "recorded" / "gemini"
ERRORS: dict[str, dict[str, Any]] = orjson.loads((RECORDED / "errors.json").read_bytes())
TARGET = Target(backend="gemini", model="gemini-2.5-flash")


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


class State:
    """All that ``build_backend`` asks of a worker for a server."""

    transport = None


def gemini(upstream: FakeUpstream, **config: Any) -> Backend:
    given = {"kind": "gemini", "base_url": upstream.base_url.removesuffix("/v1"), **config}
    return build_backend("gemini", GeminiBackend.model_validate(given), State())  # type: ignore[arg-type]


@pytest.fixture
async def backend(upstream: FakeUpstream) -> AsyncIterator[Backend]:
    backend = gemini(upstream, api_key="AIza-secret")
    yield backend
    await backend.aclose()


async def ask(backend: Backend, call: Call | None = None, target: Target = TARGET) -> list[Chunk]:
    async with aclosing(backend.stream(call or a_call(), target)) as chunks:
        return [chunk async for chunk in chunks]


async def failure(backend: Backend, call: Call | None = None) -> errors.GatewayError:
    with pytest.raises(errors.GatewayError) as caught:
        await ask(backend, call)
    orjson.dumps(caught.value.body())
    return caught.value


def text(chunks: list[Chunk]) -> str:
    return "".join((chunk.delta or {}).get("content") or "" for chunk in chunks)


# What goes out


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
async def test_the_request_as_the_upstream_sees_it(
    upstream: FakeUpstream, backend: Backend, streamed: bool
) -> None:
    upstream.scripts = [stream(recorded("text.sse")) if streamed else reply(recorded("text.json"))]
    call = a_call(stream=streamed, headers={"x-request-id": "req_1"}, params={"top_k": 3, "user": "u"})
    assert text(await ask(backend, call)) == "Hello there"
    [request] = upstream.requests
    method = "streamGenerateContent?alt=sse" if streamed else "generateContent"
    assert (request.method, request.path) == ("POST", f"/v1beta/models/gemini-2.5-flash:{method}")
    assert request.headers["x-goog-api-key"] == "AIza-secret"
    assert request.headers["x-request-id"] == "req_1"
    assert "authorization" not in request.headers
    assert request.json() == {
        "contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
        "generationConfig": {"topK": 3},
    }
    assert call.reply_headers["x-tollgate-ignored"] == "user"


async def test_tuned_models_have_a_path_of_their_own(upstream: FakeUpstream, backend: Backend) -> None:
    upstream.scripts = [reply(recorded("text.json"))]
    await ask(backend, a_call(stream=False), Target(backend="gemini", model="tunedModels/mine"))
    assert upstream.requests[0].path == "/v1beta/tunedModels/mine:generateContent"


async def test_it_is_probed_by_its_list_of_models(upstream: FakeUpstream, backend: Backend) -> None:
    await backend.probe()
    assert upstream.probes[0].path == "/v1beta/models?pageSize=1"
    assert upstream.probes[0].headers["x-goog-api-key"] == "AIza-secret"


async def test_unsupported_fields_can_be_refused(upstream: FakeUpstream) -> None:
    backend = gemini(upstream, unsupported_fields="refuse")
    error = await failure(backend, a_call(params={"user": "u"}))
    assert (error.param, upstream.requests) == ("user", [])
    await backend.aclose()


async def test_embeddings_and_decisive_fields_are_refused_before_it_is_asked(
    upstream: FakeUpstream, backend: Backend
) -> None:
    assert (await failure(backend, a_call(prompt="x", embeds=True, stream=False))).param == "model"
    assert (await failure(backend, a_call(params={"logit_bias": {"1": 2}}))).param == "logit_bias"
    assert upstream.requests == []


async def test_sound_is_refused_under_a_budget(upstream: FakeUpstream, backend: Backend) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    call = a_call(
        messages=({"role": "user", "content": [sound]},),
        policy_=policy(prices={"gemini-2.5-flash": {"input": 1.0, "output": 2.0}}),
    )
    call.allowance = Held(1000)
    assert (await failure(backend, call)).param == "messages"
    call.allowance = None
    upstream.scripts = [stream(recorded("text.sse"))]
    assert text(await ask(backend, call)) == "Hello there"


# What comes back


async def test_a_stream_that_is_cut_is_no_answer(upstream: FakeUpstream, backend: Backend) -> None:
    upstream.scripts = [stream(recorded("text.sse").split(b"\r\n\r\n")[0] + b"\r\n\r\n")]
    assert (await failure(backend)).code == "upstream_cut"


async def test_one_bad_event_is_passed_over(upstream: FakeUpstream, backend: Backend) -> None:
    first, last, _ = recorded("text.sse").split(b"\r\n\r\n")
    upstream.scripts = [stream(first + b"\n\n", b'data: {"candidates": [7]}\n\n', last + b"\n\n")]
    call = a_call()
    chunks = await ask(backend, call)
    assert text(chunks) == "Hello there" and chunks[-1].usage == Usage(8, 2)
    assert call.receipt.notes["backend"]["malformed_events"] == 1


async def test_tool_calls_are_not_trusted_once_an_event_was_bad(
    upstream: FakeUpstream, backend: Backend
) -> None:
    upstream.scripts = [stream(b"data: {}nonsense\n\n", recorded("tools.sse"))]
    assert (await failure(backend)).code == "upstream_malformed"


async def test_a_blocked_prompt_is_refused_whole_or_streamed(
    upstream: FakeUpstream, backend: Backend
) -> None:
    blocked = recorded("blocked.json")
    for script, streamed in ((reply(blocked), False), (stream(b"data: " + blocked + b"\n\n"), True)):
        upstream.scripts = [script]
        error = await failure(backend, a_call(stream=streamed))
        assert isinstance(error, errors.ContentPolicy) and error.status == 400


@pytest.mark.parametrize("whole", ["{}", "[]", "no JSON", '{"candidates": []}', '{"candidates": [[]]}'])
async def test_what_is_no_answer(upstream: FakeUpstream, backend: Backend, whole: str) -> None:
    upstream.scripts = [reply(whole)]
    assert isinstance(await failure(backend, a_call(stream=False)), errors.UpstreamFailed)


@pytest.mark.parametrize(
    ("name", "kind", "status", "code"),
    [
        ("key", errors.UpstreamFailed, 502, "upstream_auth"),
        ("permission", errors.UpstreamFailed, 502, "upstream_auth"),
        ("argument", errors.Rejected, 400, "INVALID_ARGUMENT"),
        ("length", errors.ContextTooLong, 400, "INVALID_ARGUMENT"),
        ("model", errors.Rejected, 404, "NOT_FOUND"),
        ("quota", errors.RateLimited, 429, None),
        ("internal", errors.UpstreamFailed, 502, "upstream_error"),
        ("overloaded", errors.UpstreamUnavailable, 503, None),
        ("deadline", errors.UpstreamTimeout, 504, None),
    ],
)
@pytest.mark.parametrize("place", ["whole", "list", "event"])
async def test_errors(
    upstream: FakeUpstream,
    backend: Backend,
    name: str,
    kind: type[errors.GatewayError],
    status: int,
    code: str | None,
    place: str,
) -> None:
    told = ERRORS[name]
    if place == "event":
        upstream.scripts = [stream(b"data: " + orjson.dumps(told) + b"\n\n")]
    else:
        upstream.scripts = [reply([told] if place == "list" else told, status=told["error"]["code"])]
    error = await failure(backend)
    assert (type(error), error.status) == (kind, status)
    if code is not None:
        assert error.code == code
    if name == "quota":
        assert error.retry_after == 22


# Vertex AI


@pytest.fixture(scope="module")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def key_file(path: Path, key: rsa.RSAPrivateKey, issuer: FakeUpstream) -> str:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    content = {
        "type": "service_account",
        "client_email": "gateway@p.iam.gserviceaccount.com",
        "private_key_id": "k1",
        "private_key": pem.decode(),
        "token_uri": issuer.base_url + "/token",
    }
    path.write_bytes(orjson.dumps(content))
    return str(path)


async def test_vertex_is_asked_with_a_service_accounts_token(
    upstream: FakeUpstream, private_key: rsa.RSAPrivateKey, tmp_path: Path
) -> None:
    upstream.scripts = [reply(recorded("text.json"))]
    async with FakeUpstream(reply({"access_token": "ya29.T", "expires_in": 3599})) as issuer:
        file = key_file(tmp_path / "key.json", private_key, issuer)
        place = {"project": "p", "location": "europe-west4", "credentials": file}
        backend = gemini(upstream, vertex=place)
        await ask(backend, a_call(stream=False))
        await backend.probe()  # needs no more than the token
    [asked], [request] = issuer.requests, upstream.requests
    models = "/v1/projects/p/locations/europe-west4/publishers/google/models"
    assert request.path == f"{models}/gemini-2.5-flash:generateContent"
    assert request.headers["authorization"] == "Bearer ya29.T"
    fields = parse_qs(asked.body.decode())
    assert fields["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    [assertion] = fields["assertion"]
    assert jwt.get_unverified_header(assertion)["kid"] == "k1"
    claims = jwt.decode(
        assertion, private_key.public_key(), algorithms=["RS256"], audience=issuer.base_url + "/token"
    )
    assert claims["iss"] == "gateway@p.iam.gserviceaccount.com"
    assert claims["scope"] == "https://www.googleapis.com/auth/cloud-platform"
    assert 3500 < claims["exp"] - time.time() <= 3600
    await backend.aclose()


def test_where_vertex_is() -> None:
    def url(**vertex: str) -> str:
        return GeminiBackend.model_validate({"kind": "gemini", "vertex": {"project": "p", **vertex}}).url

    assert url() == "https://aiplatform.googleapis.com"
    assert url(location="us-central1") == "https://us-central1-aiplatform.googleapis.com"
    assert GeminiBackend(kind="gemini").url == "https://generativelanguage.googleapis.com"


def test_a_machine_asks_its_metadata_server() -> None:
    request = token_request(None, {})()
    assert request.endpoint.url == (
        "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
    )
    assert request.headers == {"metadata-flavor": "Google"}
    there = token_request(None, {"GCE_METADATA_HOST": "10.0.0.1:80"})()
    assert there.endpoint.url.startswith("http://10.0.0.1:80/")


def test_a_users_key(tmp_path: Path) -> None:
    file = tmp_path / "adc.json"
    user = {"client_id": "c", "client_secret": "s", "refresh_token": "r"}
    file.write_bytes(orjson.dumps({"type": "authorized_user", **user}))
    request = token_request(None, {"GOOGLE_APPLICATION_CREDENTIALS": str(file)})()
    assert request.endpoint.url == "https://oauth2.googleapis.com/token"
    told = {name: value for name, [value] in parse_qs(request.body.decode()).items()}
    assert told == {"grant_type": "refresh_token", **user}


@pytest.mark.parametrize(
    "content", [b"no JSON", b"{}", b'{"type":"service_account"}', b'{"type":"external_account"}', b"[]"]
)
async def test_a_key_file_that_is_none_is_the_operators_to_mend(
    upstream: FakeUpstream, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "key.json"
    file.write_bytes(content)
    backend = gemini(upstream, vertex={"project": "p", "credentials": str(file)})
    error = await failure(backend)
    assert (error.code, upstream.requests) == ("upstream_auth", [])
    assert str(tmp_path) not in error.message
    await backend.aclose()
