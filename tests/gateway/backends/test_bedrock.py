"""The Bedrock backend over real sockets: what arrives is what was signed, by Amazon's own signer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from benchmarks.conformance.providers.bedrock_frames import event, exception
from gateway import errors
from gateway.policy.schema import BedrockBackend, Target
from gateway.runtime.backends import build_backend
from gateway.types import Backend, Call, Chunk, Usage
from tests.fakes import FakeUpstream, Received, Script, a_call, cut_at, reply, stream
from tests.gateway.wire.bedrock.frames import RECORDED, stream_of

pytestmark = pytest.mark.anyio

CLAUDE = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.amazon.nova-pro-v1:0"
KEYS = {"access_key_id": "AKIAIOSFODNN7EXAMPLE", "secret_access_key": "wJalrXUtnFEMI/K7MDENG"}
EVENTS = "application/vnd.amazon.eventstream"


class State:
    """All that ``build_backend`` asks of a worker for a server."""

    transport = None


def bedrock(upstream: FakeUpstream, *, aws: dict[str, str] | None = None, **config: Any) -> Backend:
    given = {
        "kind": "bedrock",
        "base_url": upstream.base_url.removesuffix("/v1"),
        "aws": {"region": "eu-west-1", **(KEYS if aws is None else aws)},
        **config,
    }
    return build_backend("bedrock", BedrockBackend.model_validate(given), State())  # type: ignore[arg-type]


def streamed(*pieces: bytes, **more: Any) -> Script:
    return stream(*pieces, kind=EVENTS, **more)


@pytest.fixture
async def backend(upstream: FakeUpstream) -> AsyncIterator[Backend]:
    backend = bedrock(upstream)
    yield backend
    await backend.aclose()


async def ask(backend: Backend, call: Call | None = None, model: str = CLAUDE) -> list[Chunk]:
    target = Target(backend="bedrock", model=model)
    async with aclosing(backend.stream(call or a_call(), target)) as chunks:
        return [chunk async for chunk in chunks]


async def failure(backend: Backend, call: Call | None = None) -> errors.GatewayError:
    with pytest.raises(errors.GatewayError) as caught:
        await ask(backend, call)
    orjson.dumps(caught.value.body())
    return caught.value


def text(chunks: list[Chunk]) -> str:
    return "".join((chunk.delta or {}).get("content") or "" for chunk in chunks)


def signature_of(received: Received, monkeypatch: pytest.MonkeyPatch, token: str | None = None) -> str:
    """The one that Amazon would find: of the method, path, host, headers and body that arrived."""
    when = datetime.strptime(received.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    monkeypatch.setattr(
        "botocore.auth.get_current_datetime", lambda remove_tzinfo=True: when.replace(tzinfo=None)
    )
    request = AWSRequest(
        method=received.method,
        url=f"http://{received.headers['host']}{received.path}",
        data=received.body,
        headers={"content-type": received.headers["content-type"]},
    )
    SigV4Auth(Credentials(*KEYS.values(), token), "bedrock", "eu-west-1").add_auth(request)
    return str(request.headers["Authorization"])


# What goes out


@pytest.mark.parametrize("model", [CLAUDE, ARN], ids=["id", "arn"])
@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
async def test_the_request_is_signed_as_it_arrives(
    upstream: FakeUpstream, backend: Backend, model: str, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reply((RECORDED / "whole.json").read_bytes())
    upstream.scripts = [streamed(stream_of("text")) if streaming else whole]
    call = a_call(stream=streaming, headers={"x-request-id": "r"}, params={"max_tokens": 9, "user": "u"})
    assert text(await ask(backend, call, model)) == "Hello there"
    [request] = upstream.requests
    quoted = model.replace(":", "%3A").replace("/", "%2F")
    assert request.path == f"/model/{quoted}/{'converse-stream' if streaming else 'converse'}"
    assert request.headers["authorization"] == signature_of(request, monkeypatch)
    assert "/eu-west-1/bedrock/aws4_request" in request.headers["authorization"]
    assert request.json() == {
        "messages": [{"role": "user", "content": [{"text": "Hello"}]}],
        "inferenceConfig": {"maxTokens": 9},
    }
    assert call.reply_headers["x-tollgate-ignored"] == "user"


async def test_temporary_credentials_send_their_token(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.scripts = [streamed(stream_of("text"))]
    backend = bedrock(upstream, aws={**KEYS, "session_token": "T0ken"})
    await ask(backend)
    [request] = upstream.requests
    assert request.headers["x-amz-security-token"] == "T0ken"
    assert request.headers["authorization"] == signature_of(request, monkeypatch, "T0ken")
    await backend.aclose()


async def test_credentials_are_found_where_amazons_tools_find_them(
    upstream: FakeUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials"
    lines = ("aws_access_key_id", "aws_secret_access_key")
    said = "\n".join(f"{name} = {value}" for name, value in zip(lines, KEYS.values(), strict=True))
    file.write_text(f"[gateway]\n{said}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    upstream.scripts = [streamed(stream_of("text"))]
    backend, lost, nobody = (
        bedrock(upstream, aws=aws) for aws in ({"profile": "gateway"}, {"profile": "gone"}, {})
    )
    await ask(backend)
    assert KEYS["access_key_id"] in upstream.requests[0].headers["authorization"]
    for other in (lost, nobody):
        assert (await failure(other)).code == "upstream_auth"
        with pytest.raises(errors.UpstreamFailed):
            await other.probe()
    assert len(upstream.requests) == 1
    for one in (backend, lost, nobody):
        await one.aclose()


async def test_a_key_of_bedrocks_is_sent_as_it_is(upstream: FakeUpstream) -> None:
    upstream.scripts = [streamed(stream_of("text"))]
    backend = bedrock(upstream, aws={}, api_key="bedrock-api-key-1")
    await ask(backend)
    await backend.probe()
    assert upstream.requests[0].headers["authorization"] == "Bearer bedrock-api-key-1"
    assert "x-amz-date" not in upstream.requests[0].headers
    await backend.aclose()


def test_where_it_is() -> None:
    def url(region: str) -> str:
        return BedrockBackend.model_validate({"kind": "bedrock", "aws": {"region": region}}).url

    assert url("us-east-1") == "https://bedrock-runtime.us-east-1.amazonaws.com"
    assert url("cn-north-1") == "https://bedrock-runtime.cn-north-1.amazonaws.com.cn"


async def test_a_temperature_beyond_its_range_is_lowered_and_said_so(
    upstream: FakeUpstream, backend: Backend
) -> None:
    upstream.scripts = [streamed(stream_of("text"))]
    call = a_call(params={"temperature": 1.5})
    await ask(backend, call)
    assert upstream.requests[0].json()["inferenceConfig"]["temperature"] == 1
    assert call.reply_headers["x-tollgate-temperature"] == "1"


async def test_an_object_is_prompted_for_and_found_in_the_answer(
    upstream: FakeUpstream, backend: Backend
) -> None:
    said = [{"text": piece} for piece in ('Here: {"a"', ": 1} and done")]
    frames = [event("contentBlockDelta", {"contentBlockIndex": 0, "delta": delta}) for delta in said]
    upstream.scripts = [streamed(*frames, event("messageStop", {"stopReason": "end_turn"}))]
    call = a_call(params={"response_format": {"type": "json_object"}})
    assert text(await ask(backend, call)) == '{"a": 1}'


async def test_refusals_come_before_it_is_asked(upstream: FakeUpstream, backend: Backend) -> None:
    assert (await failure(backend, a_call(prompt="x", embeds=True, stream=False))).param == "model"
    assert (await failure(backend, a_call(n=2))).param == "n"
    strict = bedrock(upstream, unsupported_fields="refuse")
    assert (await failure(strict, a_call(params={"seed": 1}))).param == "seed"
    assert upstream.requests == []
    await strict.aclose()


# What comes back


@pytest.mark.parametrize("size", [1, 7, 64, 10**6])
async def test_a_stream_cut_anywhere_is_the_same_answer(
    upstream: FakeUpstream, backend: Backend, size: int
) -> None:
    data = stream_of("tools")
    upstream.scripts = [streamed(*cut_at(data, [size] * (len(data) // size)))]
    chunks = await ask(backend)
    assert text(chunks) == "Both then."
    assert chunks[-1].usage == Usage(400, 60)
    calls = [call for chunk in chunks for call in (chunk.delta or {}).get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city":"Bonn"}{}'


async def test_a_stream_that_is_cut_is_no_answer(upstream: FakeUpstream, backend: Backend) -> None:
    upstream.scripts = [streamed(stream_of("text")[:400])]
    assert (await failure(backend)).code == "upstream_cut"


async def test_a_stream_that_was_changed_is_no_answer(upstream: FakeUpstream, backend: Backend) -> None:
    data = bytearray(stream_of("text"))
    data[-10] ^= 1
    upstream.scripts = [streamed(bytes(data))]
    assert (await failure(backend)).code == "upstream_malformed"


async def test_one_bad_event_is_passed_over_unless_a_call_suffers(
    upstream: FakeUpstream, backend: Backend
) -> None:
    bad = event("contentBlockDelta", b"no JSON")
    upstream.scripts = [streamed(bad, stream_of("text"))]
    call = a_call()
    assert text(await ask(backend, call)) == "Hello there"
    assert call.receipt.notes["backend"]["malformed_events"] == 1
    start = event(
        "contentBlockStart", {"contentBlockIndex": 0, "start": {"toolUse": {"name": "f", "toolUseId": "t"}}}
    )
    half = event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"toolUse": {"input": '{"a":'}}})
    upstream.scripts = [streamed(start, half, bad, event("messageStop", {"stopReason": "tool_use"}))]
    assert (await failure(backend)).code == "upstream_malformed"


async def test_what_the_model_garbled_is_its_failure(upstream: FakeUpstream, backend: Backend) -> None:
    upstream.scripts = [streamed(event("messageStop", {"stopReason": "malformed_tool_use"}))]
    assert (await failure(backend)).code == "upstream_malformed"


@pytest.mark.parametrize("whole", ["{}", "[]", "no JSON", '{"output": {"message": {"content": [7]}}}'])
async def test_what_is_no_answer(upstream: FakeUpstream, backend: Backend, whole: str) -> None:
    upstream.scripts = [reply(whole)]
    assert isinstance(await failure(backend, a_call(stream=False)), errors.UpstreamFailed)


@pytest.mark.parametrize(
    ("kind", "status", "said", "expected", "code"),
    [
        ("ValidationException", 400, "Malformed input request", errors.Rejected, "ValidationException"),
        ("ValidationException", 400, "Input is too long: prompt is too long", errors.ContextTooLong, None),
        (
            "AccessDeniedException",
            403,
            "You don't have access to the model",
            errors.UpstreamFailed,
            "upstream_auth",
        ),
        (
            "UnrecognizedClientException",
            403,
            "The security token is invalid",
            errors.UpstreamFailed,
            "upstream_auth",
        ),
        ("ResourceNotFoundException", 404, "Could not resolve the model", errors.Rejected, None),
        ("ThrottlingException", 429, "Too many requests", errors.RateLimited, None),
        ("ModelNotReadyException", 429, "The model is not ready", errors.UpstreamUnavailable, None),
        ("ModelTimeoutException", 408, "Too slow", errors.UpstreamTimeout, None),
        ("ModelErrorException", 424, "The model failed", errors.UpstreamFailed, "upstream_error"),
        ("InternalServerException", 500, "Oh", errors.UpstreamFailed, "upstream_error"),
        ("ServiceUnavailableException", 503, "Later", errors.UpstreamUnavailable, None),
    ],
)
@pytest.mark.parametrize("in_stream", [False, True], ids=["status", "exception"])
async def test_errors(
    upstream: FakeUpstream,
    backend: Backend,
    kind: str,
    status: int,
    said: str,
    expected: type[errors.GatewayError],
    code: str | None,
    in_stream: bool,
) -> None:
    if in_stream:
        upstream.scripts = [streamed(exception(kind[0].lower() + kind[1:], said))]
    else:
        headers = {"x-amzn-ErrorType": f"{kind}:http://internal.amazon.com/coral/"}
        upstream.scripts = [reply({"message": said}, status=status, headers=headers)]
    error = await failure(backend)
    assert type(error) is expected
    if code is not None:
        assert error.code == code
