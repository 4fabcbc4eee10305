"""The OpenAI backend over real sockets, against a server that misbehaves in every way we know."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, formatdate
from typing import Any

import httpx
import orjson
import pytest

from gateway import errors
from gateway.backends.exchange import LONG
from gateway.backends.http1 import REST
from gateway.backends.openai import OpenAIBackend
from gateway.backends.transport import OutgoingTransport
from gateway.backends.vectors_decoder import VectorsDecoder
from gateway.types import Call, Chunk, Usage
from tests.fakes import (
    DONE,
    TARGET,
    USAGE,
    Action,
    FakeUpstream,
    Script,
    a_call,
    answer_events,
    completion,
    delta,
    head,
    reply,
    sse,
    stream,
    usage_event,
    within,
)

pytestmark = [pytest.mark.anyio, pytest.mark.deadlines]


def backend_at(base_url: str, **more: Any) -> OpenAIBackend:
    return OpenAIBackend(
        "up",
        base_url=base_url,
        probe_url=base_url + "/models",
        transport=more.pop("transport", None),
        **more,
    )


@pytest.fixture(params=[None, OutgoingTransport], ids=["direct", "transport"])
async def backend(upstream: FakeUpstream, request: pytest.FixtureRequest) -> AsyncIterator[OpenAIBackend]:
    """Over the gateway's own client, and over the one that knows proxies."""
    backend = backend_at(upstream.base_url, transport=request.param and request.param())
    yield backend
    await backend.aclose()


async def ask(backend: OpenAIBackend, call: Call | None = None) -> list[Chunk]:
    async with aclosing(backend.stream(call or a_call(), TARGET)) as chunks:
        return [chunk async for chunk in chunks]


def text(chunks: list[Chunk]) -> str:
    return "".join((chunk.delta or {}).get("content") or "" for chunk in chunks)


async def failure(backend: OpenAIBackend, call: Call | None = None) -> errors.GatewayError:
    """The error that a call ends with."""
    with pytest.raises(errors.GatewayError) as caught:
        await ask(backend, call)
    orjson.dumps(caught.value.body())
    return caught.value


# What goes out


async def test_the_request_as_the_upstream_sees_it(upstream: FakeUpstream) -> None:
    backend = backend_at(upstream.base_url + "/", api_key="sk-secret")
    trace = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01", "x-request-id": "req_1"}
    await ask(backend, a_call(stream=False, headers=trace, params={"top_k": 3}))
    [request] = upstream.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers == {
        "host": f"127.0.0.1:{upstream.port}",
        "accept-encoding": "identity",
        "user-agent": "tollgate",
        "authorization": "Bearer sk-secret",
        "content-type": "application/json",
        "content-length": str(len(request.body)),
        **trace,
    }
    assert request.json() == {
        "model": "upstream-model",
        "stream": False,
        "messages": [{"role": "user", "content": "Hello"}],
        "top_k": 3,
    }
    await backend.aclose()


async def test_raw_prompts_go_to_the_other_path(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [
        reply({"choices": [{"index": 0, "text": "on", "finish_reason": "stop"}], "usage": USAGE})
    ]
    chunks = await ask(backend, a_call(prompt="Once", stream=False))
    assert upstream.requests[0].path == "/v1/completions"
    assert upstream.requests[0].json() == {"model": "upstream-model", "stream": False, "prompt": "Once"}
    assert "authorization" not in upstream.requests[0].headers
    assert text(chunks) == "on"


async def test_hints_are_for_the_engine_only(upstream: FakeUpstream) -> None:
    for hints in (True, False):
        backend = backend_at(upstream.base_url, hints=hints)
        call = a_call(stream=False)
        call.hints = {"x-tollgate-priority": "2"}
        await ask(backend, call)
        assert ("x-tollgate-priority" in upstream.requests[-1].headers) == hints
        await backend.aclose()


# Sound answers


async def test_a_whole_answer(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    [chunk] = await ask(backend, a_call(stream=False))
    assert (text([chunk]), chunk.finish_reason, chunk.usage) == ("Hello there", "stop", Usage(7, 3))


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("size", [1, 3, 64, 10_000])
async def test_a_stream_cut_up_anyhow(
    upstream: FakeUpstream, backend: OpenAIBackend, size: int, newline: bytes
) -> None:
    body = b": hello\n\n" + b"".join(answer_events("Grüße", ", ", "Welt"))
    body = body.replace(b"\n", newline)
    upstream.scripts = [stream(*(body[i : i + size] for i in range(0, len(body), size)))]
    chunks = await ask(backend)
    assert text(chunks) == "Grüße, Welt"
    assert [chunk.usage for chunk in chunks if chunk.usage] == [Usage(7, 3)]
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]


async def test_chunks_come_as_they_are_sent(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [stream(sse(delta("a")), 0.2, *answer_events("b"))]
    async with aclosing(backend.stream(a_call(), TARGET)) as chunks:
        async with within(0.15):
            assert text([await anext(chunks)]) == "a"
        assert text([chunk async for chunk in chunks]) == "b"


async def test_a_streamed_answer_to_an_unstreamed_question(
    upstream: FakeUpstream, backend: OpenAIBackend
) -> None:
    upstream.scripts = [stream(*answer_events("Hi"))]
    assert text(await ask(backend, a_call(stream=False))) == "Hi"


async def test_a_whole_answer_to_a_streamed_question(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    assert text(await ask(backend)) == "Hello there"


async def test_content_type_in_capitals(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [stream(*answer_events("Hi"), kind="Text/Event-Stream; charset=utf-8")]
    assert text(await ask(backend)) == "Hi"


async def test_without_done_an_answer_is_complete_once_all_choices_ended(
    upstream: FakeUpstream, backend: OpenAIBackend
) -> None:
    events = [sse(delta(c, index=i, finish="stop")) for i, c in enumerate("ab")]
    upstream.scripts = [stream(*events), stream(events[0], events[0]), stream(*events[:1], DONE)]
    call = a_call(n=2)
    assert text(await ask(backend, call)) == "ab"
    # One choice that ends twice is not two that end.
    assert (await failure(backend, call)).code == "upstream_cut"
    assert text(await ask(backend, call)) == "a"


async def test_without_done_each_of_several_prompts_must_end(
    upstream: FakeUpstream, backend: OpenAIBackend
) -> None:
    event = sse({"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]})
    upstream.scripts = [stream(event)]
    assert (await failure(backend, a_call(prompt=["one", "two"]))).code == "upstream_cut"
    assert text(await ask(backend, a_call(prompt=["one"]))) == "a"
    assert text(await ask(backend, a_call(prompt=[1, 2, 3]))) == "a"


async def test_usage_may_be_absent(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [stream(*answer_events("Hi", usage=False))]
    assert [chunk.usage for chunk in await ask(backend) if chunk.usage] == []


async def test_events_after_done_are_nobodys_business(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [stream(*answer_events("Hi"), sse(delta("late")), b"data: {", 0.01, b"x")]
    assert text(await ask(backend)) == "Hi"


async def test_malformed_events_are_skipped_and_noted(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    bad = [
        b"{",
        b"5",
        b"null",
        b'"error"',
        b'["error"]',
        b"{}",
        b'{"choices": [5]}',
        b"\xff",
        b'{"choices": [{"delta": {"content": 5}}]}',
        b"[done]",
    ]
    good = answer_events("Hi")
    upstream.scripts = [stream(good[0], *map(sse, bad), *good[1:])]
    call = a_call()
    assert text(await ask(backend, call)) == "Hi"
    assert call.receipt.notes["backend"] == {"malformed_events": len(bad)}


BAD = sse(b'{"choices": [{"delta')


@pytest.mark.parametrize(
    ("events", "whole"),
    [
        ([{"name": "f", "arguments": '{"a": '}, {"arguments": "1}"}, BAD], True),
        ([{"name": "f", "arguments": '{"a": '}, BAD, {"arguments": "1}"}], True),
        ([{"name": "f", "arguments": ""}, BAD], True),
        ([{"name": "f", "arguments": '{"a": '}, BAD, {"arguments": ', "b": 2}'}], False),
        ([BAD, {"arguments": '{"a": 1}'}], False),
    ],
    ids=["after", "nothing-lost", "no-arguments", "arguments-lost", "name-lost"],
)
async def test_a_tool_call_is_not_passed_on_garbled(
    upstream: FakeUpstream, backend: OpenAIBackend, events: list[Any], whole: bool
) -> None:
    said_ = [
        event if isinstance(event, bytes) else sse(delta(tool_calls=[{"index": 0, "function": event}]))
        for event in events
    ]
    upstream.scripts = [stream(*said_, sse(delta(finish="tool_calls")), DONE)]
    if whole:
        assert (await ask(backend))[-1].finish_reason == "tool_calls"
    else:
        assert (await failure(backend)).code == "upstream_malformed"


async def test_error_null_is_no_error(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [
        stream(*(sse({**delta(c, finish=f), "error": None}) for c, f in (("a", None), ("b", "stop")))),
        reply({**completion("c"), "error": None}),
    ]
    assert text(await ask(backend)) == "ab"
    assert text(await ask(backend, a_call(stream=False))) == "c"


# Cut and empty answers

OPEN = [sse(delta("", role="assistant")), sse(delta("Hel"))]
HEAD = head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
CLOSE_DELIMITED = head(200, {"content-type": "text/event-stream", "connection": "close"})

CUT: dict[str, tuple[Script, str]] = {
    "before-headers-reset": ((Action.ABORT,), "upstream_unavailable"),
    "before-headers-closed": ((Action.CLOSE,), "upstream_unavailable"),
    "mid-headers-reset": ((HEAD[:20], Action.ABORT), "upstream_unavailable"),
    "mid-headers-closed": ((HEAD[:20], Action.CLOSE), "upstream_unavailable"),
    "after-headers-reset": ((HEAD, 0.02, Action.ABORT), "upstream_cut"),
    "after-headers-closed": ((HEAD, Action.CLOSE), "upstream_cut"),
    "mid-event-reset": ((*stream(*OPEN, b'data: {"cho', whole=False), 0.02, Action.ABORT), "upstream_cut"),
    "mid-event-closed": ((*stream(*OPEN, b'data: {"cho', whole=False), Action.CLOSE), "upstream_cut"),
    "mid-event-in-good-order": (stream(*OPEN, b'data: {"cho'), "upstream_cut"),
    "between-events-in-good-order": (stream(*OPEN), "upstream_cut"),
    "between-events-closed": ((*stream(*OPEN, whole=False), Action.CLOSE), "upstream_cut"),
    "close-delimited": ((CLOSE_DELIMITED, *OPEN, Action.CLOSE), "upstream_cut"),
    "finished-but-for-the-chunk-mark": (
        (*stream(*OPEN, sse(delta(finish="stop")), whole=False), Action.CLOSE),
        "upstream_cut",
    ),
    "nonsense-instead-of-http": ((b"SSH-2.0-OpenSSH_9.2\r\n", Action.CLOSE), "upstream_unavailable"),
    "whole-answer-short": (
        (
            head(200, {"content-type": "application/json", "content-length": "900"}) + b'{"choices": [',
            Action.CLOSE,
        ),
        "upstream_cut",
    ),
}


@pytest.mark.parametrize("case", CUT)
async def test_a_cut_answer_is_never_a_success(
    upstream: FakeUpstream, backend: OpenAIBackend, case: str
) -> None:
    script, code = CUT[case]
    upstream.scripts = [script, reply(completion())]
    error = await failure(backend)
    assert error.code == code
    assert (error.status, error.type) == (503 if code == "upstream_unavailable" else 502, "upstream_error")
    assert error.retryable
    assert (error.retry_after is not None) == (code == "upstream_unavailable")
    assert "'up'" in error.message
    assert text(await ask(backend)) == "Hello there", "the next call is not harmed"


@pytest.mark.parametrize("end", [Action.ABORT, Action.CLOSE], ids=["reset", "closed"])
async def test_after_done_the_connection_may_break(
    upstream: FakeUpstream, backend: OpenAIBackend, end: Action
) -> None:
    upstream.scripts = [(*stream(*answer_events("Hi"), whole=False), 0.02, end)]
    assert text(await ask(backend)) == "Hi"


@pytest.mark.parametrize("streamed", [True, False])
async def test_after_done_a_server_that_holds_on_is_not_waited_for(
    upstream: FakeUpstream, backend: OpenAIBackend, streamed: bool
) -> None:
    upstream.scripts = [(*stream(*answer_events("Hi"), whole=False), Action.HANG)]
    async with within(0.6):
        assert text(await ask(backend, a_call(stream=streamed))) == "Hi"


async def test_close_delimited_answers_can_be_whole(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [(CLOSE_DELIMITED, *answer_events("Hi"), Action.CLOSE)]
    assert text(await ask(backend)) == "Hi"


@pytest.mark.parametrize(
    "script",
    [
        stream(DONE),
        stream(sse(usage_event()), DONE),
        stream(sse(b"{"), DONE),
        stream(sse(delta("", role="assistant")), DONE),
        reply({"choices": []}),
        reply({"choices": None, "usage": USAGE}),
    ],
    ids=["only-done", "only-usage", "only-nonsense", "only-a-role", "no-choices", "null-choices"],
)
async def test_an_empty_answer_is_a_failure(
    upstream: FakeUpstream, backend: OpenAIBackend, script: Script
) -> None:
    upstream.scripts = [script]
    error = await failure(backend)
    assert (error.status, error.code) == (502, "upstream_empty")


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"5", b"[]", b"null", b"{}", b'{"choices": 5}', b'{"choices": ["a"]}', b"\xff"]
)
async def test_a_body_that_is_no_completion(
    upstream: FakeUpstream, backend: OpenAIBackend, body: bytes
) -> None:
    upstream.scripts = [reply(body)]
    error = await failure(backend, a_call(stream=False))
    assert (error.status, error.code) == (502, "upstream_error")
    assert "base_url" in error.message


async def test_an_endless_event_is_refused(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [stream(*[b"x" * 2**20] * 9, Action.HANG)]
    error = await failure(backend)
    assert (error.status, error.code) == (502, "upstream_error")


async def test_an_error_within_the_stream(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [
        stream(*OPEN, sse({"error": {"message": "out of memory", "type": "server_error", "code": 507}})),
        stream(*OPEN, sse({"error": "out of luck"}), DONE),
        stream(*OPEN, sse({"error": {}, "choices": []}), DONE),
        reply({"error": {"message": "whole trouble"}}),
    ]
    error = await failure(backend)
    assert (error.status, error.code) == (502, "507")
    assert "out of memory" in error.message
    assert "out of luck" in (await failure(backend)).message
    assert text(await ask(backend)) == "Hel"
    assert "whole trouble" in (await failure(backend, a_call(stream=False))).message


def refusal(
    message: str, code: str | int | None = None, type_: str | None = None, **more: Any
) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": None, "code": code, **more}}


TOO_LONG = {
    "openai": refusal("too many", "context_length_exceeded", "invalid_request_error"),
    "vllm": refusal("This model's maximum context length is 4096 tokens. However, you requested 5000.", 400),
    "vllm-new": refusal("The decoder prompt (length 9) is longer than the maximum model length of 8.", 400),
    "sglang": refusal("The input (9 tokens) is longer than the model's context length (8 tokens)."),
    "llama.cpp": refusal("the request exceeds it", 400, "exceed_context_size_error"),
    "ollama": refusal("the input length exceeds the context length"),
    "gemini": refusal("The input token count (9) exceeds the maximum number of tokens allowed (8)."),
    "litellm": refusal("prompt is too long: 9 tokens > 8 maximum"),
}
POLICY = {
    "azure": refusal("filtered", "content_filter", innererror={"code": "ResponsibleAIPolicyViolation"}),
    "azure-inner": refusal("filtered", "400", innererror={"code": "ResponsibleAIPolicyViolation"}),
    "openai": refusal("rejected by our safety system", "content_policy_violation"),
    "openai-reasoning": refusal("flagged as potentially violating our usage policy", "invalid_prompt"),
    "words": refusal("triggered our content management policy"),
}
REASONS = [
    *((body, errors.ContextTooLong) for body in TOO_LONG.values()),
    *((body, errors.ContentPolicy) for body in POLICY.values()),
    (refusal("messages[3].content: too long a word", 400), errors.Rejected),
    (refusal("policy 'x' is not known", "bad_parameter"), errors.Rejected),
]


@pytest.mark.parametrize(
    ("body", "kind"),
    REASONS,
    ids=[*TOO_LONG, *(f"policy-{name}" for name in POLICY), "other", "other-policy"],
)
async def test_why_a_request_was_refused(
    upstream: FakeUpstream, body: dict[str, Any], kind: type[errors.GatewayError]
) -> None:
    backend = backend_at(upstream.base_url)
    upstream.scripts = [reply(body, status=400)]
    error = await failure(backend)
    assert (type(error), error.status, error.message) == (kind, 400, body["error"]["message"])
    if kind is not errors.Rejected:
        upstream.scripts = [stream(sse(body), DONE), reply(body)]
        for streamed in (True, False):
            error = await failure(backend, a_call(stream=streamed))
            assert (type(error), error.status, error.message) == (kind, 400, body["error"]["message"])
    await backend.aclose()


async def test_a_refusal_within_the_stream(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [stream(sse(refusal("top_k should be positive", 400, "BadRequestError")), DONE)]
    error = await failure(backend)
    assert (type(error), error.status, error.code) == (errors.Rejected, 400, "400")


async def test_chunks_that_came_together_say_so(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    first, *rest = answer_events("a", "b", "c", usage=False)
    upstream.scripts = [stream(first, 0.05, b"".join(rest))]
    assert [chunk.more for chunk in await ask(backend)] == [False, True, True, True, False]


async def test_chunks_before_an_error_come_first(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [stream(b"".join([*answer_events("a", "b")[:3], sse({"error": "gone"})]))]
    seen = []
    with pytest.raises(errors.UpstreamFailed):
        async with aclosing(backend.stream(a_call(), TARGET)) as chunks:
            async for chunk in chunks:
                seen.append((text([chunk]), chunk.more))  # noqa: PERF401 (a comprehension would lose them)
    assert seen == [("", True), ("a", True), ("b", False)]


# Time limits


async def test_silence_before_headers(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [(Action.HANG,)]
    async with within(1.5):
        error = await failure(backend, a_call(timeouts={"first_token": "500ms"}))
    assert (error.status, error.code) == (504, "upstream_timeout")
    assert "nothing within 0.5 s" in error.message
    await asyncio.wait_for(upstream.requests[0].left.wait(), 300)


@pytest.mark.parametrize("streamed", [True, False])
async def test_nothing_is_waited_for_past_the_callers_deadline(
    upstream: FakeUpstream, backend: OpenAIBackend, streamed: bool
) -> None:
    upstream.scripts = [(Action.HANG,), (*stream(*OPEN, whole=False), Action.HANG)]
    for _ in upstream.scripts:
        call = a_call(stream=streamed)
        call.deadline = call.started + 0.1
        async with within(0.4):
            error = await failure(backend, call)
        assert (type(error), error.status) == (errors.DeadlineExceeded, 504)


SIGNS = {
    "comments": b": OPENROUTER PROCESSING\n\n",
    "empty lines": b"\n",
    "pings": b"event: ping\ndata: {}\n\n",
    "half an event": b":",
}
"""Of life."""


@pytest.mark.parametrize("sign", SIGNS.values(), ids=SIGNS)
async def test_signs_of_life_are_waited_for(
    upstream: FakeUpstream, backend: OpenAIBackend, sign: bytes
) -> None:
    """The upstream thinks for longer than the limits, before its first word and between two."""
    thinking = [*[sign, 0.05] * 16, *([b"\n\n"] if sign == b":" else [])]
    role, first, *rest = answer_events("Hel", "lo")
    upstream.scripts = [stream(*thinking, role, first, *thinking, *rest)]
    call = a_call(timeouts={"first_token": "600ms", "idle": "600ms"})
    assert text(await ask(backend, call)) == "Hello"


async def test_the_whole_bounds_signs_of_life(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [stream(*[b": keep-alive\n\n", 0.02] * 500)]
    error = await failure(backend, a_call(timeouts={"first_token": "200ms", "total": "400ms"}))
    assert (error.status, error.message) == (504, "Backend 'up' did not finish within 0.4 s.")


async def test_silence_after_headers_and_comments(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [(*stream(*[b": processing\n\n", 0.02] * 5, whole=False), Action.HANG)]
    error = await failure(backend, a_call(timeouts={"first_token": "150ms", "idle": "50ms"}))
    assert "nothing within 0.15 s" in error.message


async def test_a_whole_answer_after_empty_lines(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    """As DeepSeek keeps the connection of a caller who does not stream."""
    whole = orjson.dumps(completion("thought through"))
    upstream.scripts = [stream(*[b"\n", 0.02] * 20, whole, kind="application/json")]
    for streamed in (False, True):
        call = a_call(stream=streamed, timeouts={"first_token": "300ms", "idle": "300ms"})
        assert text(await ask(backend, call)) == "thought through"


async def test_a_slow_first_token_is_waited_for(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [(0.15, *stream(*answer_events("Hi")))]
    assert text(await ask(backend, a_call(timeouts={"first_token": "2s", "idle": "50ms"}))) == "Hi"


async def test_the_role_is_not_the_first_token(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    role, *rest = answer_events("Hi")
    upstream.scripts = [stream(role, 0.15, *rest), stream(role, Action.HANG)]
    call = a_call(timeouts={"idle": "50ms", "first_token": "350ms"})
    assert text(await ask(backend, call)) == "Hi"
    error = await failure(backend, call)
    assert (error.status, error.message) == (504, "Backend 'up' sent nothing within 0.35 s.")


async def test_a_stall(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [(*stream(*OPEN, whole=False), Action.HANG)]
    chunks: list[Chunk] = []
    async with within(0.5):
        with pytest.raises(errors.UpstreamTimeout, match=r"stalled for 0\.1 s"):
            async for chunk in backend.stream(a_call(timeouts={"idle": "100ms"}), TARGET):
                chunks.append(chunk)  # noqa: PERF401
    assert text(chunks) == "Hel"
    await asyncio.wait_for(upstream.requests[0].left.wait(), 300)


async def test_a_stall_in_the_middle_of_an_event(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [stream(*OPEN, *[b"x", 0.01] * 5, Action.HANG)]
    error = await failure(backend, a_call(timeouts={"idle": "150ms"}))
    assert "stalled" in error.message


async def test_a_stream_that_goes_on_and_on(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [stream(*[sse(delta("a")), 0.02] * 50)]
    async with within(0.5):
        error = await failure(backend, a_call(timeouts={"total": "200ms"}))
    assert "did not finish within 0.2 s" in error.message


async def test_a_slow_reader_is_not_the_upstreams_stall(
    upstream: FakeUpstream, backend: OpenAIBackend
) -> None:
    upstream.scripts = [stream(sse(delta("a")), 0.25, sse(delta("b")), 0.05, *answer_events("c"))]
    got = []
    async for chunk in backend.stream(a_call(timeouts={"idle": "120ms"}), TARGET):
        got.append(chunk)
        if text([chunk]) == "a":
            await asyncio.sleep(0.2)
    assert text(got) == "abc"


async def test_a_whole_answer_that_no_stream_can_give_has_no_first_token_to_wait_for(
    upstream: FakeUpstream, backend: OpenAIBackend
) -> None:
    upstream.scripts = [(0.15, *reply(completion("late")))]
    limits = {"first_token": "50ms", "idle": "50ms"}
    whole = {"stream": False, "params": {"use_beam_search": True}}
    assert text(await ask(backend, a_call(timeouts=limits, **whole))) == "late"
    upstream.scripts = [(0.5, *reply(completion("too late")))]
    error = await failure(backend, a_call(timeouts={**limits, "total": "150ms"}, **whole))
    assert "did not finish within 0.15 s" in error.message


async def test_a_whole_answer_is_collected_where_the_policy_bounds_silences(
    upstream: FakeUpstream, backend: OpenAIBackend
) -> None:
    limits = {"first_token": "20s", "idle": "50ms", "total": "20s"}
    upstream.scripts = [stream(*answer_events("a", "b")), stream(*answer_events("a", "b")[:2], Action.HANG)]
    call = a_call(stream=False, timeouts=limits)
    chunks = await ask(backend, call)
    assert upstream.requests[0].json()["stream"] is True
    assert text(chunks) == "ab"
    assert chunks[-1].usage == Usage(7, 3)
    error = await failure(backend, call)
    assert "stalled for 0.05 s" in error.message
    assert backend.name in error.message


async def test_connecting_has_a_limit_of_its_own() -> None:
    with socket.socket() as full:
        # A listening socket whose backlog is full lets nobody in.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        crowd = [socket.socket() for _ in range(4)]
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        backend = backend_at(f"http://127.0.0.1:{full.getsockname()[1]}/v1")
        async with within(1.0):
            error = await failure(backend, a_call(timeouts={"connect": "200ms"}))
        assert (error.status, error.code) == (503, "upstream_unavailable")
        assert "cannot be reached" in error.message
        await backend.aclose()
        for one in crowd:
            one.close()


# Refusals

OPENAI = {
    "error": {"message": "too hot", "type": "invalid_request_error", "param": "temperature", "code": "hot"}
}


@pytest.mark.parametrize("stream_", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("status", [400, 404, 409, 413, 422])
async def test_the_upstreams_complaint_is_passed_on(
    upstream: FakeUpstream, backend: OpenAIBackend, status: int, stream_: bool
) -> None:
    upstream.scripts = [reply(OPENAI, status=status)]
    error = await failure(backend, a_call(stream=stream_))
    assert isinstance(error, errors.Rejected)
    assert (error.status, error.body()) == (status, OPENAI)
    assert not error.retryable


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "too hot"}, "too hot"),
        ({"detail": "too hot"}, "too hot"),
        ({"detail": [{"loc": ["body", "stop", 0], "msg": "too hot"}]}, "stop.0: too hot"),
        ({"message": "too hot", "object": "error", "code": 400}, "too hot"),
        ({"error": {"message": "too hot", "code": {"a": 1}}}, "too hot"),
    ],
    ids=["string", "fastapi-string", "fastapi-list", "flat", "odd-code"],
)
async def test_complaints_of_other_shapes(
    upstream: FakeUpstream, backend: OpenAIBackend, body: Any, message: str
) -> None:
    upstream.scripts = [reply(body, status=400)]
    error = await failure(backend)
    assert (error.status, error.message, error.type) == (400, message, "invalid_request_error")


@pytest.mark.parametrize(
    "body", [b"<html>nginx</html>", b"", b"[]", b"5", b"{}", b"\xff", b'{"error": null}', b'{"error": {}}']
)
async def test_a_complaint_without_words_is_the_upstreams_failure(
    upstream: FakeUpstream, backend: OpenAIBackend, body: bytes
) -> None:
    upstream.scripts = [reply(body, status=404, kind="text/html")]
    error = await failure(backend)
    assert (error.status, error.code) == (502, "upstream_refused")
    assert "404" in error.message


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_refusal_of_the_request_needs_no_words(
    upstream: FakeUpstream, backend: OpenAIBackend, status: int
) -> None:
    upstream.scripts = [reply(b"<html>nginx</html>", status=status, kind="text/html")]
    error = await failure(backend)
    assert isinstance(error, errors.Rejected)
    assert error.status == status
    assert str(status) in error.message


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (402, {"message": "Insufficient Balance", "type": "unknown_error", "code": "invalid_request_error"}),
        (
            429,
            {
                "message": "You exceeded your quota",
                "type": "insufficient_quota",
                "code": "insufficient_quota",
            },
        ),
    ],
)
async def test_an_unpaid_bill_is_the_operators_matter(
    upstream: FakeUpstream, backend: OpenAIBackend, status: int, error: dict[str, str]
) -> None:
    upstream.scripts = [reply({"error": error}, status=status)]
    failed = await failure(backend)
    assert (failed.status, failed.code) == (502, "upstream_billing")


async def test_moderation_may_say_forbidden(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    # OpenRouter's words.
    words = 'Your chosen model requires moderation and your input was flagged for "violence".'
    upstream.scripts = [reply({"error": {"code": 403, "message": words}}, status=403)]
    error = await failure(backend)
    assert isinstance(error, errors.ContentPolicy)
    assert error.message == words


@pytest.mark.parametrize("code", ["deadline_unreachable", "queue_full"])
async def test_what_the_engine_does_not_admit_is_no_failure_of_its(
    upstream: FakeUpstream, backend: OpenAIBackend, code: str
) -> None:
    told = {
        "error": {"message": "It would take too long.", "type": "service_unavailable_error", "code": code}
    }
    upstream.scripts = [reply(told, status=503, headers={"retry-after": "4"})]
    error = await failure(backend)
    assert isinstance(error, errors.Overloaded)
    assert (error.code, error.retry_after) == (code, 4.0)


@pytest.mark.parametrize("status", [401, 403])
async def test_the_gateways_own_credentials_are_the_operators_matter(
    upstream: FakeUpstream, backend: OpenAIBackend, status: int
) -> None:
    upstream.scripts = [reply({"error": {"message": "Incorrect API key: sk-live-123"}}, status=status)]
    error = await failure(backend)
    assert (error.status, error.code) == (502, "upstream_auth")
    assert "sk-live-123" not in error.message


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_a_key_that_the_upstream_quotes_is_told_to_nobody(upstream: FakeUpstream, status: int) -> None:
    backend = backend_at(upstream.base_url, api_key="sk-live-123")
    words = "Received API key = sk-live-123, which may not do this."
    upstream.scripts = [reply({"error": {"message": words, "code": "sk-live-123"}}, status=status)]
    error = await failure(backend)
    await backend.aclose()
    assert "Received API key = ***, which may not" in error.message
    assert "sk-live-123" not in str(error.body())


@pytest.mark.parametrize("status", [500, 501, 502, 520])
async def test_the_upstreams_own_failures(
    upstream: FakeUpstream, backend: OpenAIBackend, status: int
) -> None:
    upstream.scripts = [reply({"error": {"message": "oops"}}, status=status)]
    error = await failure(backend)
    assert (error.status, error.code) == (502, "upstream_error")
    assert str(status) in error.message
    assert "oops" in error.message
    assert error.retryable


@pytest.mark.parametrize("status", [408, 504])
async def test_the_upstreams_timeouts(upstream: FakeUpstream, backend: OpenAIBackend, status: int) -> None:
    upstream.scripts = [reply("", status=status)]
    error = await failure(backend)
    assert (error.status, error.code) == (504, "upstream_timeout")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirects_are_not_followed(
    upstream: FakeUpstream, backend: OpenAIBackend, status: int
) -> None:
    upstream.scripts = [reply("", status=status, headers={"location": "http://127.0.0.1:1/steal"})]
    assert (await failure(backend)).status == 502
    assert len(upstream.requests) == 1


BUSY = [
    (429, 429, "rate_limit_exceeded"),
    (503, 503, "upstream_unavailable"),
    (529, 503, "upstream_unavailable"),
]


@pytest.mark.parametrize(("status", "ours", "code"), BUSY)
async def test_busy_with_a_time_to_come_back(
    upstream: FakeUpstream, backend: OpenAIBackend, status: int, ours: int, code: str
) -> None:
    upstream.scripts = [
        reply({"error": {"message": "slow down"}}, status=status, headers={"retry-after": "17"})
    ]
    error = await failure(backend)
    assert (error.status, error.code, error.retry_after, error.retryable) == (ours, code, 17.0, True)
    assert "slow down" in error.message


def in_an_hour_and_a_half() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(minutes=90), usegmt=True)


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("0", 0, 0),
        ("1.5", 1.5, 1.5),
        ("-3", 0, 0),
        ("999999999", 3600, 3600),
        ("inf", 3600, 3600),
        ("nan", 1, 1),
        ("soon", 1, 1),
        ("", 1, 1),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Fri, 31 Dec 99999 23:59:59 GMT", 1, 1),
    ],
)
async def test_every_kind_of_retry_after(
    upstream: FakeUpstream, backend: OpenAIBackend, value: str, low: float, high: float
) -> None:
    upstream.scripts = [reply("", status=429, headers={"retry-after": value})]
    error = await failure(backend)
    assert error.retry_after is not None
    assert low <= error.retry_after <= high


async def test_retry_after_as_a_date(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    upstream.scripts = [
        reply("", status=503, headers={"retry-after": formatdate(time.time() + 40, usegmt=True)})
    ]
    error = await failure(backend)
    assert error.retry_after is not None
    assert 35 <= error.retry_after <= 40
    upstream.scripts = [reply("", status=503, headers={"retry-after": in_an_hour_and_a_half()})]
    assert (await failure(backend)).retry_after == 3600


async def test_the_longer_an_outage_the_longer_the_wait(
    upstream: FakeUpstream, backend: OpenAIBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("gateway.backends.openai_errors.time.monotonic", lambda: now)
    upstream.scripts = [reply("", status=503)]
    waits = []
    for later in (0, 5, 5, 60):
        now += later
        waits.append((await failure(backend)).retry_after)
    assert waits == [1, 5, 10, 30]
    upstream.scripts = [reply(completion()), reply("", status=503)]
    await ask(backend)
    assert (await failure(backend)).retry_after == 1


async def test_the_bundled_engine_is_soon_there_again(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("gateway.backends.openai_errors.time.monotonic", lambda: now)
    upstream.scripts = [reply("", status=503)]
    url = upstream.base_url
    engine = OpenAIBackend("engine", base_url=url, probe_url=f"{url}/models", hints=True)
    waits = []
    for later in (0, 5, 60):
        now += later
        waits.append((await failure(engine)).retry_after)
    await engine.aclose()
    assert waits == [1, 2, 2]


@pytest.mark.parametrize("end", [Action.CLOSE, Action.HANG], ids=["cut", "stalled"])
@pytest.mark.parametrize("streamed", [True, False])
async def test_an_error_whose_body_never_comes_is_that_error_still(
    upstream: FakeUpstream, backend: OpenAIBackend, end: Action, streamed: bool
) -> None:
    upstream.scripts = [(head(429, {"content-length": "100", "retry-after": "9"}) + b'{"err', end)]
    async with within(0.6):
        error = await failure(
            backend, a_call(stream=streamed, timeouts={"first_token": "150ms", "idle": "150ms"})
        )
    assert (error.status, error.retry_after) == (429, 9.0)


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_endless_error_is_not_read_to_its_end(
    upstream: FakeUpstream, backend: OpenAIBackend, streamed: bool
) -> None:
    opening = head(500, {"content-type": "text/html", "transfer-encoding": "chunked"})
    upstream.scripts = [(opening, *[b"%x\r\n%b\r\n" % (2**16, b"x" * 2**16)] * 10, Action.HANG)]
    async with within(1.0):
        assert (await failure(backend, a_call(stream=streamed))).status == 502


async def test_nobody_there(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    await upstream.stop()
    async with within(0.5):
        error = await failure(backend)
    assert (error.status, error.code, error.retry_after) == (503, "upstream_unavailable", 1.0)
    assert "cannot be reached" in error.message
    await upstream.start()
    assert text(await ask(backend)) == "Hello there"


async def test_a_host_that_does_not_exist() -> None:
    backend = backend_at("http://tollgate.invalid/v1")
    error = await failure(backend)
    assert (error.status, error.code) == (503, "upstream_unavailable")
    await backend.aclose()


async def test_a_base_url_that_cannot_be_used() -> None:
    backend = backend_at("ftp://127.0.0.1/v1", transport=OutgoingTransport())
    error = await failure(backend)
    assert error.status == 502
    assert "base_url" in error.message
    await backend.aclose()


# Connections


async def test_connections_are_used_again(upstream: FakeUpstream) -> None:
    backend = backend_at(upstream.base_url)
    sound = [
        stream(*answer_events("a")),
        reply(completion()),
        stream(*answer_events("b", usage=False)),
        stream(sse(delta("c", finish="stop"))),
        stream(sse(b"{"), *answer_events("d")),
    ]
    bad = [
        reply(OPENAI, status=400),
        reply("<html>", status=503),
        stream(*OPEN),
        stream(DONE),
        reply("nonsense"),
    ]
    upstream.scripts = [script for pair in zip(sound, bad, strict=True) for script in pair]
    for _ in sound:
        await ask(backend)
        await asyncio.sleep(2 * REST)
        await failure(backend)
        await asyncio.sleep(2 * REST)
    assert len(upstream.requests) == 10
    assert upstream.connections == 1
    await backend.aclose()


async def test_concurrent_calls_have_connections_of_their_own(upstream: FakeUpstream) -> None:
    backend = backend_at(upstream.base_url)
    upstream.scripts = [(0.05, *reply(completion()))]
    await asyncio.gather(*(ask(backend) for _ in range(20)))
    assert upstream.connections == 20
    await asyncio.sleep(2 * REST)
    await asyncio.gather(*(ask(backend) for _ in range(20)))
    assert upstream.connections == 20
    await backend.aclose()


async def test_a_reader_that_stops_early_stops_the_upstream(
    upstream: FakeUpstream, backend: OpenAIBackend
) -> None:
    upstream.scripts = [(*stream(*OPEN, whole=False), Action.HANG), reply(completion())]
    chunks = backend.stream(a_call(), TARGET)
    await anext(chunks)
    await chunks.aclose()
    async with within(0.2):
        await asyncio.wait_for(upstream.requests[0].left.wait(), 300)
    assert text(await ask(backend)) == "Hello there"


@pytest.mark.parametrize(
    "script",
    [
        (Action.HANG,),
        (HEAD, Action.HANG),
        (*stream(*OPEN, whole=False), Action.HANG),
        (head(500, {"content-length": "9"}), Action.HANG),
    ],
    ids=["before-headers", "before-body", "mid-stream", "error-body"],
)
async def test_cancelling_stops_the_upstream(
    upstream: FakeUpstream, backend: OpenAIBackend, script: Script
) -> None:
    upstream.scripts = [script]
    task = asyncio.create_task(ask(backend))
    request = await upstream.arrived()
    await asyncio.sleep(0.02)
    task.cancel()
    async with within(0.2):
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(request.left.wait(), 300)


async def test_closing_lets_go_of_connections(upstream: FakeUpstream, backend: OpenAIBackend) -> None:
    await ask(backend)
    assert len(upstream.open) == 1
    await backend.aclose()
    await asyncio.sleep(0.02)
    assert not upstream.open
    await backend.aclose()


# Probes


async def test_a_probe_asks_for_the_models(upstream: FakeUpstream) -> None:
    backend = backend_at(upstream.base_url, api_key="sk-secret")
    await backend.probe()
    [probe] = upstream.probes
    assert (probe.method, probe.path) == ("GET", "/v1/models")
    assert probe.headers["authorization"] == "Bearer sk-secret"
    await backend.aclose()


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (reply("", status=503), 503),
        (reply("", status=404), 502),
        (reply("", status=401), 502),
        ((Action.ABORT,), 503),
        ((head(200, {"content-length": "5"}), Action.CLOSE), 502),
    ],
    ids=["busy", "no-such-path", "bad-key", "reset", "cut"],
)
async def test_a_probe_finds_fault(
    upstream: FakeUpstream, backend: OpenAIBackend, script: Script, status: int
) -> None:
    upstream.health = script
    with pytest.raises(errors.Upstream) as fault:
        await backend.probe()
    assert fault.value.status == status


async def test_a_probe_does_not_wait_for_ever(
    upstream: FakeUpstream, backend: OpenAIBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = a_call(timeouts={"first_token": "100ms", "total": "100ms"}).policy.models["m"].timeouts
    monkeypatch.setattr("gateway.backends.exchange.PROBE", limits)
    upstream.health = (Action.HANG,)
    async with within(0.5):
        with pytest.raises(errors.UpstreamTimeout):
            await backend.probe()


# Other transports


async def test_any_httpx_transport_will_do() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if len(seen) == 1:
            return httpx.Response(200, json=completion("mock"))
        if len(seen) == 2:
            return httpx.Response(
                200,
                headers={"content-type": "text/event-stream"},
                content=b"".join(answer_events("mo", "ck")),
            )
        if len(seen) == 3:
            return httpx.Response(429, headers={"retry-after": "4"}, json=OPENAI)
        raise httpx.ConnectError("no", request=request)

    backend = backend_at("http://mock/v1", transport=httpx.MockTransport(answer))
    assert text(await ask(backend, a_call(stream=False))) == "mock"
    assert text(await ask(backend)) == "mock"
    assert (await failure(backend)).retry_after == 4
    assert (await failure(backend)).code == "upstream_unavailable"
    assert str(seen[0].url) == "http://mock/v1/chat/completions"
    await backend.aclose()


@pytest.mark.parametrize("continues", [True, False])
async def test_only_a_server_that_can_is_asked_to_go_on(upstream: FakeUpstream, continues: bool) -> None:
    backend = OpenAIBackend(
        "up", base_url=upstream.base_url, probe_url=upstream.base_url + "/models", continues=continues
    )
    begun = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hel"})
    async for _ in backend.stream(a_call(messages=begun, continues=True, stream=False), TARGET):
        pass
    sent = upstream.requests[0].json()
    assert sent["messages"] == list(begun)
    assert sent.get("continue_final_message", False) is continues
    assert ("add_generation_prompt" in sent) is continues
    await backend.aclose()


async def test_long_answers_are_taken_in_turns(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many come at once, one part of one of them is computed in a round of the loop."""
    rounds, fed = 0, [0, 0]

    def counted(self: VectorsDecoder, part: bytes, of: Callable[..., Any] = VectorsDecoder.feed) -> Any:
        nonlocal fed
        sizes[id(self)] = sizes.get(id(self), 0) + len(part)
        if sizes[id(self)] > LONG:
            fed = [rounds, fed[1] + 1 if fed[0] == rounds else 1]
            most.append(fed[1])
        return of(self, part)

    async def count() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    sizes: dict[int, int] = {}
    most: list[int] = []
    monkeypatch.setattr(VectorsDecoder, "feed", counted)
    vectors = [{"object": "embedding", "index": i, "embedding": [0.5] * 1536} for i in range(400)]
    upstream.scripts = [reply({"object": "list", "data": vectors, "usage": {"prompt_tokens": 400}})] * 5
    backend = backend_at(upstream.base_url)
    counting = asyncio.create_task(count())
    calls = [a_call(stream=False, prompt=["a"] * 400, embeds=True) for _ in range(5)]
    answers = await asyncio.gather(*(ask(backend, call) for call in calls))
    counting.cancel()
    await backend.aclose()
    assert [sum(chunk.delta is not None for chunk in chunks) for chunks in answers] == [400] * 5
    assert len(most) > 20 and max(most) == 1


async def test_openai_fetches_no_files_and_is_not_asked_to(upstream: FakeUpstream) -> None:
    part = {"type": "file", "file": {"file_data": "https://example.com/a.pdf"}}
    call = a_call(messages=({"role": "user", "content": [{"type": "text", "text": "Sum up."}, part]},))
    for base_url in ("https://api.openai.com/v1", "https://contoso.openai.azure.com/openai"):
        backend = backend_at(base_url)
        refused = await failure(backend, call)
        assert isinstance(refused, errors.BadRequest)
        assert (refused.param, refused.code) == (
            "messages[0].content[1].file.file_data",
            "unsupported_parameter",
        )
        await backend.aclose()
    upstream.scripts = [stream(*answer_events("Hi"))]
    other = backend_at(upstream.base_url)
    await ask(other, call)
    assert upstream.requests[-1].json()["messages"][0]["content"][1] == part, "others may fetch it"
    await other.aclose()
