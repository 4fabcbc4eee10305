"""Traces and metrics as a receiver of OTLP has them: decoded from protobuf, over real sockets."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import openai
import pytest

from gateway.backends.launcher import tracing
from gateway.policy.reload import PolicyWatcher
from gateway.policy.schema import Telemetry
from tests.engine.live import EngineServer
from tests.fakes import DONE, FakeUpstream, completion, delta, reply, sse, stream, usage_event
from tests.otlp_receiver import ReceivedSpan, Receiver, grpc_receiver, http_receiver
from tests.serving import KEY, OTHER_KEY, Gateway, chat, key, serving

pytestmark = pytest.mark.anyio

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=opaque"}
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
HELLO = stream(
    sse(delta("", role="assistant")),
    sse(delta("Hello")),
    sse(delta(finish="stop")),
    sse({**usage_event(), "usage": USAGE}),
    DONE,
)
FAILS = reply({"error": {"message": "no"}}, status=503)


@pytest.fixture
def receiver() -> Any:
    with http_receiver() as running:
        yield running


def a_policy(receiver: Receiver, up: FakeUpstream, **telemetry: Any) -> dict[str, Any]:
    once = {"retry": {"attempts": 1}}
    return {
        "version": 1,
        "backends": {
            "up": {"kind": "openai", "base_url": up.base_url},
            "script": {"kind": "fake", "script": [{"reply": "from the script"}]},
        },
        "models": {
            "up": {"targets": [{"backend": "up", "model": "u-1"}], **once},
            "safe": {"targets": [{"backend": "up", "model": "u-1"}], "fallbacks": ["script"], **once},
            "script": {"targets": [{"backend": "script", "model": "s-1"}]},
        },
        "keys": [key(KEY, "one", tenant="acme"), key(OTHER_KEY, "two", tenant="rival")],
        "telemetry": {"endpoint": receiver.url, **telemetry},
    }


async def traced(
    folder: Path,
    policy: dict[str, Any],
    *asked: dict[str, Any],
    path: str = "/v1/chat/completions",
    headers: dict[str, str] = CALLER,
) -> list[Any]:
    """The answers. All is exported by the time this returns."""
    async with serving(folder / "policies", policy) as gateway:
        return [await gateway.http.post(path, json=body, headers=headers) for body in asked]


def one(spans: list[ReceivedSpan], name: str) -> ReceivedSpan:
    [found] = [span for span in spans if span.name == name]
    return found


RECEIVERS = pytest.mark.parametrize(
    ("listening", "protocol"), [(http_receiver, "http"), (grpc_receiver, "grpc")], ids=["http", "grpc"]
)


@RECEIVERS
async def test_a_request_is_a_server_span_with_a_client_span_for_each_attempt(
    listening: Callable[[], AbstractContextManager[Receiver]], protocol: str, tmp_path: Path
) -> None:
    with listening() as receiver:
        async with FakeUpstream(FAILS) as up:
            policy = a_policy(receiver, up, protocol=protocol, headers={"x-key": "secret"})
            [answer] = await traced(tmp_path, policy, chat("safe", temperature=0.5, max_tokens=9, stop="END"))
            sent = up.requests[0].headers
        spans = receiver.of(TRACE)

    [request] = [span for span in spans if span.kind == "server"]
    assert request.name == "POST /v1/chat/completions"
    assert request.parent_id == PARENT
    assert request.trace_state == "vendor=opaque"
    assert not request.failed
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["tollgate.tenant"] == "acme"
    assert request.attributes["tollgate.key_id"] == "one"
    assert request.attributes["tollgate.request_id"] == answer.headers["x-request-id"]
    assert request.attributes["tollgate.attempts"] == 2
    assert request.resource["service.name"] == "tollgate"

    failed, answered = [span for span in spans if span.kind == "client"]
    assert failed.parent_id == answered.parent_id == request.span_id
    assert (failed.name, answered.name) == ("chat u-1", "chat s-1")
    assert failed.failed
    assert not answered.failed
    assert failed.attributes["error.type"] == "upstream_unavailable"
    assert failed.attributes["gen_ai.provider.name"] == "openai"
    assert failed.attributes["server.address"] == "127.0.0.1"
    assert failed.attributes["gen_ai.request.temperature"] == 0.5
    assert failed.attributes["gen_ai.request.max_tokens"] == 9
    assert failed.attributes["gen_ai.request.stop_sequences"] == ["END"]
    assert answered.attributes["tollgate.why"] == "fallback"
    assert answered.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert sent["traceparent"] == f"00-{TRACE}-{failed.span_id}-01"
    assert sent["tracestate"] == "vendor=opaque"
    for span in spans:
        assert request.start <= span.start <= span.end <= request.end
    assert all(headers["x-key"] == "secret" for headers in receiver.headers)


async def test_usage_and_the_first_chunk_have_the_conventions_names(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with FakeUpstream(HELLO) as up:
        await traced(tmp_path, a_policy(receiver, up), chat("up", stream=True, n=1))
    [span] = receiver.of(TRACE, "client")
    told = span.attributes
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.stream"] is True
    assert told["gen_ai.usage.input_tokens"] == 11
    assert told["gen_ai.usage.output_tokens"] == 7
    assert told["gen_ai.usage.cache_read.input_tokens"] == 4
    assert told["gen_ai.usage.reasoning.output_tokens"] == 2
    assert told["gen_ai.response.model"] == "upstream-model"
    assert told["gen_ai.response.id"] == "chatcmpl-upstream"
    assert 0 < told["gen_ai.response.time_to_first_chunk"] <= (span.end - span.start) / 1e9
    assert not any("content" in name or "messages" in name for name in told)


async def test_metrics_count_all_attempts_also_those_that_are_not_sampled(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with FakeUpstream(FAILS, HELLO) as up:
        policy = a_policy(receiver, up, sample=0.0)
        await traced(tmp_path, policy, chat("safe"), chat("up", stream=True), headers={})
    assert receiver.spans == []
    durations = {
        (told["gen_ai.request.model"], told.get("error.type")): point
        for told, point in receiver.points["gen_ai.client.operation.duration"]
    }
    assert set(durations) == {("u-1", "upstream_unavailable"), ("s-1", None), ("u-1", None)}
    for point in durations.values():
        assert point.count == sum(point.bucket_counts) == 1
        assert point.min == point.max == point.sum > 0
        assert len(point.explicit_bounds) == len(point.bucket_counts) - 1 == 14
    [(told, first)] = receiver.points["gen_ai.client.operation.time_to_first_chunk"]
    assert told["gen_ai.request.model"] == "u-1"
    assert 0 < first.sum <= durations["u-1", None].sum
    tokens = {
        (told["gen_ai.request.model"], told["gen_ai.token.type"]): point.sum
        for told, point in receiver.points["gen_ai.client.token.usage"]
    }
    assert tokens["u-1", "input"] == 11
    assert tokens["u-1", "output"] == 7


async def test_stages_that_decided_have_spans(receiver: Receiver, tmp_path: Path) -> None:
    async with FakeUpstream() as up:
        policy = a_policy(receiver, up) | {
            "guards": {"pii": {"on": ["input", "output"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}},
            "caches": {"exact": {"ttl": "1h"}},
            "tenants": {"acme": {"quotas": {"requests_per_minute": 3}}},
        }
        policy["models"]["script"]["fallbacks"] = ["up"]
        asked = chat("script", "Write to ann@example.com", temperature=0)
        await traced(tmp_path, policy, asked, asked, asked, asked)
    requests = receiver.of(TRACE, "server")
    first, second, third, refused = (
        [span for span in receiver.of(TRACE) if span.parent_id == request.span_id] for request in requests
    )
    names = {span.name for span in first}
    assert names == {
        *("tollgate.quota", "tollgate.guard_input", "tollgate.cache", "tollgate.guard_output"),
        *("tollgate.route", "chat s-1"),
    }
    assert one(first, "tollgate.cache").attributes["tollgate.cache.result"] == "miss"
    assert one(first, "tollgate.route").attributes["tollgate.route.candidates"] == ["script/s-1", "up/u-1"]
    assert any(
        name.startswith("tollgate.guard_input.guards.pii.")
        for name in one(first, "tollgate.guard_input").attributes
    )
    for spans in (second, third):
        assert not [span for span in spans if span.kind == "client"]
        assert one(spans, "tollgate.cache").attributes["tollgate.cache.result"] == "exact"
    assert requests[1].attributes["tollgate.cached"] == "exact"
    assert {span.name for span in refused} == {"tollgate.quota"}
    assert one(refused, "tollgate.quota").failed
    assert requests[3].attributes["http.response.status_code"] == 429
    assert requests[3].attributes["error.type"] == "rate_limit_exceeded"
    told = " ".join(str(span.attributes) for span in receiver.spans)
    assert "ann@example.com" not in told


async def test_a_repeated_answer_that_passes_no_stage_is_traced_too(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with FakeUpstream() as up:
        policy = a_policy(receiver, up) | {"caches": {"exact": {"ttl": "1h"}}}
        await traced(tmp_path, policy, *[chat("script", temperature=0)] * 3)
    requests = receiver.of(TRACE, "server")
    assert [span.attributes.get("tollgate.cached") for span in requests] == [None, "exact", "exact"]
    assert [span.name for span in requests] == ["POST /v1/chat/completions"] * 3


async def test_what_was_left_out_of_a_conversation_is_told(receiver: Receiver, tmp_path: Path) -> None:
    message = "This model's maximum context length is 10 tokens."
    refused = {"error": {"message": message, "code": "context_length_exceeded"}}
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"{i} {'x' * 50}"} for i in range(9)]
    body = {"model": "up", "input": turns, "truncation": "auto"}
    async with FakeUpstream(reply(refused, status=400), reply(completion())) as up:
        [answer] = await traced(tmp_path, a_policy(receiver, up), body, path="/v1/responses")
    assert answer.status_code == 200
    told = one(receiver.of(TRACE), "tollgate.truncate").attributes
    assert told["tollgate.truncate.messages"] == 9
    assert told["tollgate.truncate.left_out"] == int(answer.headers["x-tollgate-truncated"])
    failed, answered = receiver.of(TRACE, "client")
    assert failed.attributes["error.type"]
    assert "error.type" not in answered.attributes


async def test_a_request_that_waited_has_a_span_of_its_wait(receiver: Receiver, tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with FakeUpstream((hold, *reply(completion())), reply(completion())) as up:
        policy = a_policy(receiver, up)
        policy["backends"]["up"]["max_concurrency"] = 1
        async with serving(tmp_path / "policies", policy) as gateway:
            ask = {"url": "/v1/chat/completions", "json": chat("up")}
            first = asyncio.create_task(gateway.http.post(**ask))
            await up.arrived()
            second = asyncio.create_task(gateway.http.post(**ask, headers=CALLER))
            async with asyncio.timeout(300):
                while not (await gateway.metrics()).get('tollgate_backend_requests_waiting{backend="up"}'):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            hold.set()
            await asyncio.gather(first, second)
    queued, asked = one(receiver.of(TRACE), "tollgate.queue"), one(receiver.of(TRACE), "chat u-1")
    assert queued.attributes["tollgate.queue.position"] == 1
    assert queued.attributes["tollgate.queue.pool"] == "up"
    assert queued.attributes["tollgate.queue.waited"] == pytest.approx(
        (queued.end - queued.start) / 1e9,
        abs=1.0,  # of two clocks, on a machine that may be busy
    )
    assert queued.end <= asked.start


MASKED = {
    "guards": {"pii": {"on": ["input"], "action": "mask", "entities": ["EMAIL_ADDRESS"]}},
}


async def test_content_is_told_only_on_request_and_as_it_was_masked(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with FakeUpstream(reply(completion("I wrote to <EMAIL_ADDRESS_1>"))) as up:
        policy = a_policy(receiver, up, content=True) | MASKED
        body = {
            "model": "up",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Write to ann@example.com"},
            ],
        }
        [answer] = await traced(tmp_path, policy, body)
    assert "ann@example.com" in answer.text
    [span] = receiver.of(TRACE, "client")
    told = span.attributes
    assert json.loads(told["gen_ai.system_instructions"]) == [{"type": "text", "content": "Be brief."}]
    [asked] = json.loads(told["gen_ai.input.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": "Write to <EMAIL_ADDRESS_1>"}]}
    [said] = json.loads(told["gen_ai.output.messages"])
    assert said["role"] == "assistant"
    assert said["parts"] == [{"type": "text", "content": "I wrote to <EMAIL_ADDRESS_1>"}]
    assert said["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "more",
    [
        {"tenants": {"acme": {"local_only": True}}},
        {"guards": {"pii": {"on": ["input"], "action": "local", "entities": ["EMAIL_ADDRESS"]}}},
        {"guards": {"pii": {"on": ["input"], "action": "block", "entities": ["EMAIL_ADDRESS"]}}},
    ],
    ids=["tenant", "guard", "blocked"],
)
async def test_what_must_stay_or_was_blocked_is_told_to_nobody(
    more: dict[str, Any], receiver: Receiver, tmp_path: Path
) -> None:
    async with FakeUpstream() as up:
        policy = a_policy(receiver, up, content=True) | more
        await traced(tmp_path, policy, chat("script", "Write to ann@example.com"))
    assert receiver.of(TRACE, "server")
    for span in receiver.spans:
        assert "ann@example.com" not in str(span.attributes)
        assert "from the script" not in str(span.attributes)


async def test_an_answer_that_a_guard_took_back_is_not_told(receiver: Receiver, tmp_path: Path) -> None:
    async with FakeUpstream() as up:
        guard = {"kind": "topics", "on": ["output"], "stream": "optimistic", "words": ["script"]}
        policy = a_policy(receiver, up, content=True) | {"guards": {"rivals": guard}}
        [answer] = await traced(tmp_path, policy, chat("script", stream=True))
    assert "content_filter" in answer.text or answer.status_code == 400
    assert receiver.of(TRACE, "server")
    assert "from the" not in str([span.attributes for span in receiver.spans])


async def test_the_callers_decision_is_followed_and_need_not_be(receiver: Receiver, tmp_path: Path) -> None:
    unsampled = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    async with FakeUpstream() as up:
        await traced(tmp_path / "1", a_policy(receiver, up), chat("up"), headers=unsampled)
        assert receiver.spans == []
        assert up.requests[0].headers["traceparent"].startswith(f"00-{TRACE}-")
        assert up.requests[0].headers["traceparent"].endswith("-00")
        await traced(
            tmp_path / "2", a_policy(receiver, up, follow_caller=False), chat("up"), headers=unsampled
        )
        assert len(receiver.of(TRACE, "server")) == 1
        await traced(tmp_path / "3", a_policy(receiver, up, follow_caller=False, sample=0.0), chat("up"))
        assert len(receiver.of(TRACE, "server")) == 1


async def test_a_request_that_is_refused_before_the_stages_is_traced(
    receiver: Receiver, tmp_path: Path
) -> None:
    async with FakeUpstream() as up:
        answers = await traced(tmp_path, a_policy(receiver, up), chat("unknown"), {"model": "up"})
    assert [answer.status_code for answer in answers] == [404, 400]
    unknown, invalid = receiver.of(TRACE)
    assert (unknown.kind, unknown.attributes["error.type"]) == ("server", "model_not_found")
    assert unknown.attributes["http.route"] == "/v1/chat/completions"
    assert invalid.attributes["http.response.status_code"] == 400
    assert not unknown.failed  # the caller's fault, not the server's


async def test_older_conventions_have_their_own_names(receiver: Receiver, tmp_path: Path) -> None:
    async with FakeUpstream(reply(completion(usage=USAGE))) as up:
        await traced(tmp_path, a_policy(receiver, up, conventions="v1.36"), chat("up"))
    [span] = receiver.of(TRACE, "client")
    assert span.attributes["gen_ai.system"] == "openai"
    assert span.attributes["gen_ai.usage.input_tokens"] == 11
    assert "gen_ai.provider.name" not in span.attributes
    assert "gen_ai.usage.cache_read.input_tokens" not in span.attributes
    assert set(receiver.points) == {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"}
    [(told, _)] = receiver.points["gen_ai.client.operation.duration"]
    assert told["gen_ai.system"] == "openai"


async def test_the_conventions_own_repository_has_other_names(receiver: Receiver, tmp_path: Path) -> None:
    embedding = {"data": [{"index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 3}}
    async with FakeUpstream(HELLO, reply(embedding)) as up:
        policy = a_policy(receiver, up, conventions="genai-v0.1")
        async with serving(tmp_path / "policies", policy) as gateway:
            asked = chat("up", stream=True, top_k=3)
            await gateway.http.post("/v1/chat/completions", json=asked, headers=CALLER)
            texts = {"model": "up", "input": "x", "dimensions": 1, "encoding_format": "float"}
            await gateway.http.post("/v1/embeddings", json=texts, headers=CALLER)
    told = one(receiver.of(TRACE), "chat u-1").attributes
    assert told["gen_ai.provider.name"] == "openai"
    assert told["gen_ai.request.top_k"] == 3
    assert isinstance(told["gen_ai.request.top_k"], int)
    embedded = one(receiver.of(TRACE), "embeddings u-1").attributes
    assert embedded["gen_ai.embeddings.dimension.count"] == 1
    assert embedded["gen_ai.request.encoding_formats"] == ["float"]
    values = {
        name.removeprefix("gen_ai.client."): [
            getattr(point, "as_int", None) or point.sum for _, point in points
        ]
        for name, points in receiver.points.items()
    }
    assert {
        name: value for name, value in values.items() if "time" not in name and "duration" not in name
    } == {
        "inference.operation.input_tokens": [11],
        "inference.operation.output_tokens": [7],
        "embeddings.operation.input_tokens": [3],
        "inference.usage.input_tokens": [11],
        "inference.usage.output_tokens": [7],
        "inference.usage.cache_read.input_tokens": [4],
        "inference.usage.reasoning.output_tokens": [2],
    }
    assert {"inference.duration", "inference.time_to_first_chunk", "embeddings.duration"} <= set(values)
    [(labels, _)] = receiver.points["gen_ai.client.inference.usage.input_tokens"]
    assert labels["gen_ai.token.modality"] == "unknown"
    assert "gen_ai.token.type" not in labels


async def test_a_receiver_that_fails_costs_no_request(receiver: Receiver, tmp_path: Path) -> None:
    receiver.status = 400
    async with FakeUpstream() as up:
        answers = await traced(tmp_path, a_policy(receiver, up), chat("up"), chat("script"))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert receiver.headers
    assert receiver.spans == []


@pytest.fixture
async def edited(receiver: Receiver, tmp_path: Path) -> AsyncIterator[tuple[Gateway, dict[str, Any]]]:
    async with FakeUpstream() as up:
        policy = a_policy(receiver, up)
        del policy["telemetry"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gateway.app.PolicyWatcher", partial(PolicyWatcher, interval=0.02))
            async with serving(tmp_path / "policies", policy) as gateway:
                yield gateway, policy


async def test_it_is_switched_on_and_off_by_an_edit(
    edited: tuple[Gateway, dict[str, Any]], receiver: Receiver
) -> None:
    gateway, policy = edited
    ask = {"url": "/v1/chat/completions", "json": chat("script"), "headers": CALLER}
    await gateway.http.post(**ask)
    gateway.write(policy | {"telemetry": {"endpoint": receiver.url}})
    await gateway.generation(2)
    await gateway.http.post(**ask)
    gateway.write(policy)
    await gateway.generation(3)
    await gateway.http.post(**ask)
    async with asyncio.timeout(300):
        while not receiver.spans:  # the old policy's are exported when its last request has ended
            await gateway.http.post(**ask)
    assert len(receiver.of(TRACE, "server")) == 1


async def test_the_official_client_reads_traced_answers(receiver: Receiver, tmp_path: Path) -> None:
    async with FakeUpstream(HELLO) as up, serving(tmp_path / "policies", a_policy(receiver, up)) as gateway:
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY)
        async with client:
            answer = await client.chat.completions.create(
                model="up", messages=[{"role": "user", "content": "Hi"}], stream=True
            )
            said = [event.choices[0].delta.content async for event in answer if event.choices]
    assert "".join(filter(None, said)) == "Hello"
    [span] = [span for span in receiver.spans if span.kind == "client"]
    assert span.attributes["gen_ai.usage.output_tokens"] == 7
    [request] = [span for span in receiver.spans if span.kind == "server"]
    assert request.parent_id == ""


async def test_the_engine_continues_the_trace(receiver: Receiver, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in tracing(Telemetry(endpoint=receiver.url)).items():
            patch.setenv(name, value)
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        engine = await asyncio.to_thread(EngineServer, "demo", log=tmp_path / "engine.log")
    async with FakeUpstream() as up:
        policy = a_policy(receiver, up)
        policy["backends"]["bundled"] = {"kind": "engine", "base_url": engine.url}
        policy["models"]["demo"] = {"targets": [{"backend": "bundled", "model": "demo"}]}
        with engine:
            [answer] = await traced(tmp_path, policy, chat("demo", stream=True, max_tokens=8))
            async with asyncio.timeout(300):
                while not receiver.of(TRACE, "client") or len(receiver.of(TRACE, "server")) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    assert answer.status_code == 200
    request, inside = receiver.of(TRACE, "server")
    [attempt] = receiver.of(TRACE, "client")
    assert request.parent_id == PARENT
    assert attempt.parent_id == request.span_id
    assert inside.parent_id == attempt.span_id
    assert inside.resource["service.name"] == "tollgate-engine"
    assert attempt.start <= inside.start <= attempt.end
    assert inside.trace_state == "vendor=opaque"
    for name in ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "gen_ai.response.id"):
        assert inside.attributes[name] == attempt.attributes[name]
    phases = [span.name for span in receiver.of(TRACE) if span.parent_id == inside.span_id]
    assert phases == ["queue", "prefill", "decode"]


async def test_without_it_no_request_passes_a_line_of_it(receiver: Receiver, tmp_path: Path) -> None:
    """Counted, not timed: calls into telemetry's own modules and the SDK while a request is answered."""
    own = ("gateway/observe/telemetry/", "gateway/stages/spans.py", "gateway/spans.py", "opentelemetry/")
    found: set[str] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.update(part for part in own if part in frame.f_code.co_filename)

    async def passed(folder: Path, policy: dict[str, Any]) -> set[str]:
        async with serving(folder / "policies", policy) as gateway:
            ask = {"url": "/v1/chat/completions", "json": chat("script", stream=True), "headers": CALLER}
            await gateway.http.post(**ask)
            found.clear()
            sys.setprofile(look)
            try:
                answer = await gateway.http.post(**ask)
            finally:
                sys.setprofile(None)
            assert answer.status_code == 200
        return set(found)

    async with FakeUpstream() as up:
        policy = a_policy(receiver, up)
        assert {own[0], own[1], own[2]} <= await passed(tmp_path / "on", policy)
        del policy["telemetry"]
        assert await passed(tmp_path / "off", policy) == set()
