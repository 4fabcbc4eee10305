"""What of a server's words reaches a caller: whatever helps it, and nothing that is not its business."""

from __future__ import annotations

import time

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.anthropic import AnthropicBackend
from gateway.backends.error_scrubber import HIDDEN, MOST_CHARACTERS, ErrorScrubber
from gateway.backends.openai import OpenAIBackend
from gateway.errors import GatewayError, Rejected, UpstreamFailed
from gateway.types import Backend
from tests.fakes import TARGET, FakeUpstream, Script, a_call, delta, reply, sse, stream

KEY = "sk-proj-Qw3rTyUiOpAsDfGhJkLz"
HOST = "llm-prod.example.com"
SCRUBBER = ErrorScrubber("up", KEY, HOST)


@pytest.mark.parametrize(
    ("said", "secret"),
    [
        (f"Incorrect API key provided: {KEY}.", KEY),
        (f"Received API key = '{KEY}', which may not", KEY),
        ("Incorrect API key provided: sk-proj-********************JkLz.", "JkLz"),
        ("Incorrect API key provided: sk-proj-…JkLz.", "JkLz"),
        ("Incorrect API key provided: ...JkLz", "JkLz"),
        ("the key that begins with sk-proj-Qw3rTy is revoked", "Qw3rTy"),
        ("key ending in AsDfGhJkLz", "AsDfGhJkLz"),
        ("the account of sk-ant-api03-abcdefgh1234 has no credit", "abcdefgh1234"),
        ("header 'Authorization: Bearer abcDEF1234567890' is wrong", "abcDEF1234567890"),
        ('{"api_key": "0123abcd9999"}', "0123abcd9999"),
        ("api-key=0123abcd9999&x=1", "0123abcd9999"),
        ("x-api-key: 0a9b8c7d6e5f", "0a9b8c7d6e5f"),
        ("password: hunter2-and-more", "hunter2"),
        ("Azure says 0123456789abcdef0123456789abcdef", "0123456789abcdef"),
        ("Mistral says aB3dE5gH7jK9mN1pQ3sT5vW7xY9zA2cD", "aB3dE5gH7"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc has expired", "eyJhbGci"),
        ("limit reached in organization org-AbCdEfGh123", "org-Ab"),
        ("HTTPConnectionPool(host='decode3', port=8000): Max retries exceeded", "decode3"),
        ("connect to node-7.prod.internal failed", "node-7"),
        ("connect to node-7:8000 failed", "node-7"),
        (f"no such deployment at {HOST}", HOST),
        ("upstream http://10.2.3.4:8000/v1/chat failed", "10.2.3.4"),
        ("dial tcp 10.2.3.4:8000: refused", "10.2.3.4"),
        ("dial tcp [fd00::7]:8000: refused", "fd00"),
        ("redis://:hunter22@cache/0 is away", "hunter22"),
        ("https://platform.openai.com@evil.internal/x", "evil"),
        ("https://openai.com.evil.example/x", "evil"),
        ('File "/opt/llm/secret/main.py", line 3', "/opt/llm"),
        ("C:\\\\models\\\\llm failed", "models"),
    ],
)
def test_what_is_told_to_nobody(said: str, secret: str) -> None:
    told = SCRUBBER.text(said)
    assert secret not in told and HIDDEN in told


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 8192 tokens. You requested 9000 (8000 in the messages).",
        "Unsupported value: 'temperature' does not support 0.2. Only the default (1) value is supported.",
        "max_tokens: 100000 > 8192, the maximum number of output tokens for claude-3-5-sonnet-20241022",
        "messages.0.content.1.image.source.base64: invalid base64 data",
        "Invalid schema for response_format 'x': In context=('properties', 'a'), 'type' is not permitted.",
        "The model `meta-llama/Llama-3.3-70B-Instruct-Turbo-Free` does not exist",
        "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
        "Please include the request ID req_0a1b2c3d4e5f60718293a4b5c6d7e8f9 in your message.",
        "tool_call_id call_AbCdEf0123456789AbCdEf01 was not found",
        "See https://platform.openai.com/docs/guides/error-codes.",
        "Invalid URL (POST /v1/chat/completions)",
        "token limit: 4096 exceeded; ratio 16:9; at 12:30:45; on 2026-11-22T19:00:00Z; key: unknown parameter",
        "wait... still loading…",
        "Backend 'up' answered with HTTP status 500.",
    ],
)
def test_what_helps_a_caller_stays(said: str) -> None:
    assert SCRUBBER.text(said) == said


def test_a_caller_is_told_of_the_places_that_it_named_and_no_others() -> None:
    asked = orjson.dumps({"url": "http://10.9.9.9/cat.png", "text": KEY})
    said = f"no image at http://10.9.9.9/cat.png, asked by 10.1.1.1 with {KEY}"
    assert (
        SCRUBBER.text(said, asked) == f"no image at http://10.9.9.9/cat.png, asked by {HIDDEN} with {HIDDEN}"
    )


def test_messages_end() -> None:
    assert len(SCRUBBER.text("word " * 100_000)) <= MOST_CHARACTERS + 2
    cut = SCRUBBER.text("a b " * 999 + f"{KEY} and more of it" * 50)
    assert "sk-proj" not in cut and len(cut) <= MOST_CHARACTERS + 2


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_part_of_our_own_key_gets_through(before: str, after: str) -> None:
    for at in range(len(KEY) - 8):
        assert KEY[at : at + 8] not in SCRUBBER.text(f"{before} {KEY[at : at + 8]} {after}")


@given(st.text(max_size=300))
def test_scrubbed_twice_is_scrubbed_once(said: str) -> None:
    once = SCRUBBER.text(said)
    assert SCRUBBER.text(once) == once


@pytest.mark.parametrize(
    "unit", [*'a1A*.…x:/=" {', "a1A", "sk-", "://", "/etc/", "key: ", "0.", "::", "a-", "a."]
)
def test_hostile_words_take_no_longer_than_others(unit: str) -> None:
    text = unit * (400_000 // len(unit))
    began = time.thread_time()
    SCRUBBER.text(text)
    assert time.thread_time() - began < 1


ERROR = {
    "message": f"key {KEY} or sk-pr***JkLz is not known at 10.2.3.4:80",
    "type": f"type {KEY}",
    "param": KEY,
    "code": "sk-proj-Qw3rTyUiOp",
}
BODY = {"error": ERROR}
DOORS: dict[str, tuple[bool, Script]] = {
    "status-400": (False, reply(BODY, status=400)),
    "status-404": (True, reply(BODY, status=404)),
    "status-429": (False, reply(BODY, status=429)),
    "status-500": (False, reply(BODY, status=500)),
    "status-503": (True, reply(BODY, status=503)),
    "body-of-200": (False, reply(BODY)),
    "first-event": (True, stream(sse(BODY))),
    "later-event": (True, stream(sse(delta("Hi")), sse(BODY))),
    "client-error-event": (True, stream(sse({"error": {**ERROR, "code": 400}}))),
    "words-alone": (True, stream(sse({"error": ERROR["message"]}))),
    "detail": (False, reply({"detail": [ERROR]}, status=422)),
}
ANTHROPIC = {"type": "error", "error": {"type": f"odd {KEY}", "message": ERROR["message"]}}
ANTHROPIC_DOORS: dict[str, tuple[bool, Script]] = {
    "status-400": (False, reply(ANTHROPIC, status=400)),
    "status-413": (True, reply(ANTHROPIC, status=413)),
    "status-500": (False, reply(ANTHROPIC, status=500)),
    "body-of-200": (False, reply(ANTHROPIC)),
    "first-event": (True, stream(sse(ANTHROPIC))),
    "later-event": (True, stream(sse({"type": "ping"}), sse(ANTHROPIC))),
}


async def failed(backend: Backend, *, streamed: bool) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        async for _ in backend.stream(a_call(stream=streamed), TARGET):
            pass
    await backend.aclose()
    return caught.value


def check(error: GatewayError) -> None:
    told = f"{error} {error.message} {orjson.dumps(error.body()).decode()} {error.code} {error.headers}"
    for secret in (KEY, "sk-pr", "JkLz", "Qw3rTy", "10.2.3.4"):
        assert secret not in told
    assert error.type and " " not in error.type


@pytest.mark.anyio
@pytest.mark.parametrize("door", DOORS)
async def test_whichever_way_an_error_comes(door: str) -> None:
    streamed, script = DOORS[door]
    async with FakeUpstream(script) as upstream:
        backend = OpenAIBackend("up", base_url=upstream.base_url, probe_url=upstream.base_url, api_key=KEY)
        check(await failed(backend, streamed=streamed))


@pytest.mark.anyio
@pytest.mark.parametrize("door", ANTHROPIC_DOORS)
async def test_whichever_way_an_error_of_anthropics_comes(door: str) -> None:
    streamed, script = ANTHROPIC_DOORS[door]
    async with FakeUpstream(script) as upstream:
        backend = AnthropicBackend("up", base_url=upstream.base_url, api_key=KEY, max_tokens=9)
        check(await failed(backend, streamed=streamed))


def test_kind_and_code_stay() -> None:
    rejected = Rejected(
        "no", status=404, type="invalid_request_error", param="messages[0]", code="model_not_found"
    )
    kept = SCRUBBER.error(rejected)
    assert (kept.type, kept.param, kept.code, kept.status) == (
        "invalid_request_error",
        "messages[0]",
        "model_not_found",
        404,
    )
    assert SCRUBBER.error(UpstreamFailed("no", code="502")).code == "502"
    assert SCRUBBER.error(UpstreamFailed("no", code="<b>what</b>")).code == "upstream_error"
