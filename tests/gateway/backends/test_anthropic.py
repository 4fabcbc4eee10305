"""The Anthropic backend over real sockets, against recorded answers and a server that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway import errors
from gateway.backends.anthropic import AnthropicBackend
from gateway.backends.transport import OutgoingTransport
from gateway.types import Call, Candidate, Chunk, TokenEstimate, Usage
from tests.fakes import TARGET, Action, FakeUpstream, Script, a_call, head, policy, reply, sse, stream, within

pytestmark = pytest.mark.anyio

RECORDED = Path(__file__).parents[2] / "recorded" / "anthropic"
ERRORS: dict[str, dict[str, Any]] = orjson.loads((RECORDED / "errors.json").read_bytes())


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def events(name: str) -> list[bytes]:
    return [event + b"\n\n" for event in recorded(name).removesuffix(b"\n\n").split(b"\n\n")]


def backend_at(base_url: str, **more: Any) -> AnthropicBackend:
    given = {"transport": OutgoingTransport(), "api_key": None, "max_tokens": 4096, **more}
    return AnthropicBackend("claude", base_url=base_url.removesuffix("/v1"), **given)


@pytest.fixture
async def backend(upstream: FakeUpstream) -> AsyncIterator[AnthropicBackend]:
    backend = backend_at(upstream.base_url)
    yield backend
    await backend.aclose()


async def ask(backend: AnthropicBackend, call: Call | None = None) -> list[Chunk]:
    async with aclosing(backend.stream(call or a_call(), TARGET)) as chunks:
        return [chunk async for chunk in chunks]


def text(chunks: list[Chunk]) -> str:
    return "".join((chunk.delta or {}).get("content") or "" for chunk in chunks)


async def failure(backend: AnthropicBackend, call: Call | None = None) -> errors.GatewayError:
    with pytest.raises(errors.GatewayError) as caught:
        await ask(backend, call)
    orjson.dumps(caught.value.body())
    return caught.value


def an_error(name: str, **headers: str) -> Script:
    told = ERRORS[name]
    body = {"type": "error", "error": {"type": told["type"], "message": told["message"]}, "request_id": "r"}
    return reply(body, status=told["status"], headers=headers)


# What goes out


async def test_the_request_as_the_upstream_sees_it(upstream: FakeUpstream) -> None:
    upstream.scripts = [reply(recorded("text.json"))]
    backend = backend_at(upstream.base_url.removesuffix("/v1") + "/", api_key="sk-ant-secret")
    await ask(backend, a_call(stream=False, headers={"x-request-id": "req_1"}, params={"top_k": 3}))
    [request] = upstream.requests
    assert (request.method, request.path) == ("POST", "/v1/messages")
    assert request.headers == {
        "host": f"127.0.0.1:{upstream.port}",
        "accept-encoding": "identity",
        "user-agent": "tollgate",
        "anthropic-version": "2023-06-01",
        "x-api-key": "sk-ant-secret",
        "content-type": "application/json",
        "content-length": str(len(request.body)),
        "x-request-id": "req_1",
        "connection": "close",
    }
    assert request.json() == {
        "model": "upstream-model",
        "max_tokens": 4096,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "top_k": 3,
    }
    await backend.aclose()


@pytest.mark.parametrize(
    ("model", "params", "sent"),
    [
        ({}, {}, 4096),
        ({"max_output": 1024}, {}, 1024),
        ({"max_output": 1024}, {"max_tokens": 200}, 200),
        ({"max_output": 8192}, {}, 4096),
        ({"context": 2000}, {}, 1900),
        ({"max_output": 6000}, {"thinking": {"type": "enabled", "budget_tokens": 5000}}, 6000),
    ],
)
async def test_the_default_cap_is_none_above_what_the_model_gives(
    upstream: FakeUpstream,
    backend: AnthropicBackend,
    model: dict[str, Any],
    params: dict[str, Any],
    sent: int,
) -> None:
    """This API demands a cap, and what budgets hold for an answer is what its model gives at most."""
    upstream.scripts = [reply(recorded("text.json"))]
    rules = policy(models={"m": {"targets": [{"backend": "up", "model": "upstream-model"}], **model}})
    call = a_call(stream=False, params=params, policy_=rules)
    call.estimate = TokenEstimate(100, 10, 10)
    call.candidate = Candidate("m", TARGET, rules.models["m"].timeouts)
    call.candidates = (call.candidate,)
    await ask(backend, call)
    body = upstream.requests[0].json()
    assert body["max_tokens"] == sent
    assert body.get("thinking", {}).get("budget_tokens", 0) < sent
    lowered = str(sent) if "max_tokens" not in params and sent != 4096 else None
    assert call.reply_headers.get("x-tollgate-max-tokens") == lowered


async def test_a_partial_answer_is_sent_to_be_continued(
    upstream: FakeUpstream, backend: AnthropicBackend
) -> None:
    upstream.scripts = [stream(recorded("text.sse"))]
    begun = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well, "})
    await ask(backend, a_call(messages=begun, continues=True))
    sent = upstream.requests[0].json()
    assert sent["stream"] is True
    assert sent["messages"][-1] == {"role": "assistant", "content": [{"type": "text", "text": "Well,"}]}


async def test_what_the_provider_cannot_do_is_refused_before_it_is_asked(
    upstream: FakeUpstream, backend: AnthropicBackend
) -> None:
    assert (await failure(backend, a_call(n=2))).param == "n"
    assert (await failure(backend, a_call(prompt="Once"))).param == "prompt"
    assert upstream.requests == []


NEUTRAL = {"logprobs": False, "presence_penalty": 0, "modalities": ["text"], "logit_bias": {}, "n": None}


@pytest.mark.parametrize("stream_", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("params", "headers", "noted"),
    [
        (
            {"seed": 3, "temperature": 1.7, "of_tomorrow": 1, **NEUTRAL},
            {"x-tollgate-ignored": "of_tomorrow, seed", "x-tollgate-temperature": "1"},
            {"ignored": ["of_tomorrow", "seed"], "temperature": 1, "temperature_asked": 1.7},
        ),
        ({"temperature": 1.0, "top_k": 3, "user": "u", "stop": "x", **NEUTRAL}, {}, {}),
    ],
    ids=["changed", "as-it-is"],
)
async def test_what_is_changed_and_left_out_is_told(
    upstream: FakeUpstream,
    backend: AnthropicBackend,
    params: dict[str, Any],
    headers: dict[str, str],
    noted: dict[str, Any],
    stream_: bool,
) -> None:
    upstream.scripts = [reply(recorded("text.json"))]
    call = a_call(params=params, stream=stream_)
    await ask(backend, call)
    assert (call.reply_headers, call.receipt.notes.get("backend", {})) == (headers, noted)
    # Another attempt, elsewhere or of another request, is not told of it.
    call.request = a_call().request
    await ask(backend, call)
    assert call.reply_headers == {}
    assert not call.receipt.notes.get("backend")


# Sound answers


async def test_a_whole_answer(upstream: FakeUpstream, backend: AnthropicBackend) -> None:
    upstream.scripts = [reply(recorded("text.json"))]
    for call in (a_call(stream=False), a_call()):
        chunks = await ask(backend, call)
        assert text(chunks) == "The capital of France is Paris."
        assert (chunks[-1].finish_reason, chunks[-1].usage) == ("stop", Usage(14, 10))


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
async def test_a_stream_cut_up_anyhow(
    upstream: FakeUpstream, backend: AnthropicBackend, size: int, newline: bytes
) -> None:
    body = recorded("text.sse").replace(b"\n", newline)
    upstream.scripts = [stream(*(body[i : i + size] for i in range(0, len(body), size)))]
    chunks = await ask(backend)
    assert text(chunks) == "Hello, Zoë! 👋"
    assert (chunks[-1].finish_reason, chunks[-1].usage) == ("stop", Usage(35, 15, cached=6, cache_write=4))


async def test_chunks_come_as_they_are_sent(upstream: FakeUpstream, backend: AnthropicBackend) -> None:
    first, last = events("text.sse")[:4], events("text.sse")[4:]
    upstream.scripts = [stream(*first, 0.2, *last)]
    async with aclosing(backend.stream(a_call(), TARGET)) as chunks:
        async with within(0.15):
            assert text([await anext(chunks)]) == "Hello"
        assert text([chunk async for chunk in chunks]) == ", Zoë! 👋"


async def test_chunks_of_one_read_may_leave_in_one_write(
    upstream: FakeUpstream, backend: AnthropicBackend
) -> None:
    first, last = events("text.sse")[:5], events("text.sse")[5:]
    upstream.scripts = [stream(b"".join(first), 0.05, b"".join(last))]
    assert [(text([chunk]), chunk.more) for chunk in await ask(backend)] == [
        ("Hello", True),
        (", Zoë! 👋", False),
        ("", False),
    ]


async def test_malformed_events_are_skipped_and_noted(
    upstream: FakeUpstream, backend: AnthropicBackend
) -> None:
    bad = [
        b"{",
        b"5",
        b"null",
        b"{}",
        b"\xff",
        b'{"type": "content_block_delta", "index": 0}',
        b'{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}}',
        b'{"type": "content_block_start", "index": [], "content_block": {"type": "tool_use", "id": "a"}}',
        b'{"type": "message_start", "message": "none"}',
        b'{"type": "message_delta", "delta": {"stop_reason": 5}}',
    ]
    good = events("text.sse")
    upstream.scripts = [stream(*good[:4], *map(sse, bad), *good[4:])]
    call = a_call()
    chunks = await ask(backend, call)
    assert text(chunks) == "Hello, Zoë! 👋"
    assert chunks[-1].finish_reason == "stop"
    assert call.receipt.notes["backend"] == {"malformed_events": len(bad)}


@pytest.mark.parametrize(
    ("lost", "is_failure"),
    [(b'"name":"get_weather"', True), (b"San Francisco", True), (b"Let me look", False)],
    ids=["start", "arguments", "text"],
)
async def test_a_garbled_tool_call_is_never_a_success(
    upstream: FakeUpstream, backend: AnthropicBackend, lost: bytes, is_failure: bool
) -> None:
    upstream.scripts = [
        stream(*(event[:-10] + b"\n\n" if lost in event else event for event in events("tool_use.sse")))
    ]
    if is_failure:
        assert (await failure(backend)).code == "upstream_malformed"
    else:
        assert text(await ask(backend)) == " that up."


@pytest.mark.parametrize("end", [Action.ABORT, Action.HANG], ids=["reset", "open"])
async def test_after_the_end_the_connection_is_of_no_interest(
    upstream: FakeUpstream, backend: AnthropicBackend, end: Action
) -> None:
    upstream.scripts = [(*stream(recorded("text.sse"), sse({"type": "error"}), whole=False), 0.02, end)]
    async with within(0.6):
        assert text(await ask(backend)) == "Hello, Zoë! 👋"


async def test_an_answer_may_have_no_words(upstream: FakeUpstream, backend: AnthropicBackend) -> None:
    kept = events("text.sse")
    upstream.scripts = [stream(kept[0], *kept[-2:])]
    [chunk] = await ask(backend)
    assert (chunk.delta, chunk.finish_reason) == ({"role": "assistant"}, "stop")


# Cut and empty answers

SOUND = events("text.sse")
HEAD = head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ((Action.ABORT,), "upstream_unavailable"),
        ((HEAD, Action.CLOSE), "upstream_cut"),
        ((*stream(*SOUND[:4], whole=False), 0.02, Action.ABORT), "upstream_cut"),
        ((*stream(*SOUND[:4], SOUND[4][:30], whole=False), Action.CLOSE), "upstream_cut"),
        (stream(*SOUND[:4]), "upstream_cut"),
        (stream(*SOUND[:-1]), "upstream_cut"),
        (stream(), "upstream_cut"),
        (stream(SOUND[-1]), "upstream_empty"),
        (
            (head(200, {"content-type": "application/json", "content-length": "900"}) + b"{", Action.CLOSE),
            "upstream_cut",
        ),
    ],
    ids=[
        "reset-before-headers",
        "closed-after-headers",
        "reset-mid-stream",
        "closed-mid-event",
        "ended-mid-block",
        "no-message-stop",
        "no-events",
        "only-message-stop",
        "whole-answer-short",
    ],
)
async def test_a_cut_answer_is_never_a_success(
    upstream: FakeUpstream, backend: AnthropicBackend, script: Script, code: str
) -> None:
    upstream.scripts = [script, stream(recorded("text.sse"))]
    error = await failure(backend)
    assert error.code == code
    assert error.retryable
    assert "'claude'" in error.message
    assert text(await ask(backend)) == "Hello, Zoë! 👋", "the next call is not harmed"


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"5", b"[]", b"{}", b'{"choices": []}', b'{"type": "message", "content": [5]}', b"\xff"],
)
async def test_a_body_that_is_no_message(
    upstream: FakeUpstream, backend: AnthropicBackend, body: bytes
) -> None:
    upstream.scripts = [reply(body)]
    error = await failure(backend, a_call(stream=False))
    assert (error.status, error.code) == (502, "upstream_error")
    assert "base_url" in error.message


# Time


async def test_silence_is_bounded(upstream: FakeUpstream, backend: AnthropicBackend) -> None:
    # A ping is a sign of life, and no first token.
    ping = SOUND[2]
    upstream.scripts = [stream(SOUND[0], *[ping, 0.02] * 15, Action.HANG), stream(*SOUND[:4], Action.HANG)]
    error = await failure(backend, a_call(timeouts={"first_token": "200ms", "idle": "60s"}))
    assert (error.status, error.message) == (504, "Backend 'claude' sent nothing within 0.2 s.")
    error = await failure(backend, a_call(timeouts={"idle": "100ms"}))
    assert "stalled for 0.1 s" in error.message


async def test_pings_are_waited_for(upstream: FakeUpstream, backend: AnthropicBackend) -> None:
    ping = SOUND[2]
    upstream.scripts = [stream(SOUND[0], *[ping, 0.025] * 16, *SOUND[1:])]
    call = a_call(timeouts={"first_token": "250ms", "idle": "250ms"})
    assert text(await ask(backend, call))


async def test_who_stops_reading_stops_the_server(upstream: FakeUpstream, backend: AnthropicBackend) -> None:
    upstream.scripts = [stream(*SOUND[:4], Action.HANG)]
    async with aclosing(backend.stream(a_call(), TARGET)) as chunks:
        await anext(chunks)
    async with asyncio.timeout(300):
        await upstream.requests[0].left.wait()


# Errors


@pytest.mark.parametrize(
    ("name", "kind", "status", "code"),
    [
        ("invalid_request", errors.Rejected, 400, None),
        ("prompt_too_long", errors.ContextTooLong, 400, "context_length_exceeded"),
        ("no_room_for_answer", errors.ContextTooLong, 400, "context_length_exceeded"),
        ("content_policy", errors.ContentPolicy, 400, "content_policy_violation"),
        ("no_credit", errors.UpstreamFailed, 502, "upstream_billing"),
        ("authentication", errors.UpstreamFailed, 502, "upstream_auth"),
        ("billing", errors.UpstreamFailed, 502, "upstream_billing"),
        ("permission", errors.UpstreamFailed, 502, "upstream_auth"),
        ("not_found", errors.Rejected, 404, "not_found"),
        ("too_large", errors.ContextTooLong, 413, "request_too_large"),
        ("rate_limit", errors.RateLimited, 429, "rate_limit_exceeded"),
        ("internal", errors.UpstreamFailed, 502, "upstream_error"),
        ("timeout", errors.UpstreamTimeout, 504, "upstream_timeout"),
        ("overloaded", errors.UpstreamUnavailable, 503, "upstream_unavailable"),
    ],
)
async def test_errors(
    upstream: FakeUpstream,
    backend: AnthropicBackend,
    name: str,
    kind: type[errors.GatewayError],
    status: int,
    code: str | None,
) -> None:
    told = ERRORS[name]
    in_stream = sse({"type": "error", "error": {"type": told["type"], "message": told["message"]}})
    upstream.scripts = [an_error(name), stream(*SOUND[:1], in_stream)]
    for _ in ("as a status", "as an event"):
        error = await failure(backend)
        assert (type(error), error.status, error.code) == (kind, status, code)
        if isinstance(error, errors.Rejected):
            assert (error.message, error.type) == (told["message"], told["type"])
        if code in ("upstream_auth", "upstream_billing"):
            assert told["message"] not in error.message
        if status in (429, 503):
            assert error.retry_after is not None
            assert error.retry_after >= 1


async def test_retry_after_is_honoured(upstream: FakeUpstream, backend: AnthropicBackend) -> None:
    upstream.scripts = [an_error("rate_limit", **{"retry-after": "17"}), an_error("overloaded")]
    assert (await failure(backend)).retry_after == 17.0
    assert (await failure(backend)).retry_after == 1.0


@pytest.mark.parametrize(
    ("status", "code"),
    [(413, "request_too_large"), (400, "upstream_refused"), (520, "upstream_error"), (301, "upstream_error")],
)
async def test_errors_of_what_stands_in_front_of_the_api(
    upstream: FakeUpstream, backend: AnthropicBackend, status: int, code: str
) -> None:
    upstream.scripts = [reply("<html>cloudflare</html>", status=status, kind="text/html")]
    assert (await failure(backend)).code == code


async def test_an_error_in_the_middle_comes_after_what_was_said(
    upstream: FakeUpstream, backend: AnthropicBackend
) -> None:
    upstream.scripts = [stream(recorded("overloaded.sse"))]
    said = []
    with pytest.raises(errors.UpstreamUnavailable, match="Overloaded"):
        async for chunk in backend.stream(a_call(), TARGET):
            said.append(chunk)  # noqa: PERF401
    assert text(said) == "Once upon"


async def test_a_server_that_is_not_there() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    backend = backend_at("http://127.0.0.1:9", transport=httpx.MockTransport(refuse))
    assert isinstance(await failure(backend), errors.UpstreamUnavailable)
    with pytest.raises(errors.UpstreamUnavailable):
        await backend.probe()


# Probes


async def test_a_probe_asks_for_the_models(upstream: FakeUpstream) -> None:
    backend = backend_at(upstream.base_url, api_key="sk-ant-secret")
    await backend.probe()
    [probe] = upstream.probes
    assert (probe.path, probe.headers["x-api-key"]) == ("/v1/models", "sk-ant-secret")
    assert probe.headers["anthropic-version"] == "2023-06-01"
    upstream.health = an_error("authentication")
    with pytest.raises(errors.UpstreamFailed) as caught:
        await backend.probe()
    assert caught.value.code == "upstream_auth"
    await backend.aclose()
