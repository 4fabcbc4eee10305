"""A stream that goes past the stages' generators cannot be told from one that does not."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.stream_relay import StreamRelay
from tests.fakes import (
    DONE,
    Action,
    FakeUpstream,
    Script,
    Step,
    answer_events,
    delta,
    sse,
    stream,
    usage_event,
)
from tests.otlp_receiver import http_receiver
from tests.serving import Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

ROLE, *WORDS, FINISH, USAGE, END = answer_events("Hel", "lo ", "wörld", " and", " more")
CUT = WORDS[2].index("ö".encode()) + 1
A_CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SCRIPTS: dict[str, list[list[Step]]] = {
    "one by one": [[ROLE, *WORDS, FINISH, USAGE, END]],
    "two at a time": [[ROLE, WORDS[0], WORDS[1] + WORDS[2], WORDS[3] + FINISH, USAGE + END]],
    "with comments, without usage": [[ROLE, *WORDS[:2], b": ping\n\n", *WORDS[2:], FINISH, END]],
    "half an event behind whole ones": [
        [ROLE, WORDS[0], WORDS[1] + WORDS[2][:20], WORDS[2][20:] + WORDS[3][:9], WORDS[3][9:], FINISH, END]
    ],
    "the last before half of the end": [[ROLE, *WORDS, WORDS[0] + FINISH[:30], FINISH[30:] + USAGE, END]],
    "half an event, and no more": [[ROLE, *WORDS, WORDS[0] + WORDS[1][:20]]],
    "a character cut in two": [[ROLE, WORDS[0], WORDS[1] + WORDS[2][:CUT], WORDS[2][CUT:], FINISH, END]],
    "all together": [[ROLE + b"".join(WORDS * 40) + FINISH + USAGE + END]],
    "in bunches": [[ROLE, *[b"".join(WORDS * 100)] * 6, WORDS[0] + FINISH + USAGE + END]],
    "cut in the middle of an event": [
        [ROLE, *WORDS[:2], WORDS[2][:20], WORDS[2][20:], *WORDS[3:], FINISH, END]
    ],
    "with carriage returns": [[ROLE, *WORDS[:3], WORDS[3].replace(b"\n", b"\r\n"), WORDS[4], FINISH, END]],
    "thoughts before": [[ROLE, sse(delta(reasoning_content="Hm")), *WORDS, FINISH, USAGE, END]],
    "a call behind": [[ROLE, *WORDS, sse(delta(tool_calls=[A_CALL])), sse(delta(finish="tool_calls")), END]],
    "two choices": [[ROLE, *(sse(delta(w, index=i)) for w in "abc" for i in (0, 1)), FINISH, END]],
    "nonsense": [[ROLE, *WORDS[:2], b"data: {nonsense\n\n", *WORDS[2:], FINISH, USAGE, END]],
    "an error": [[ROLE, *WORDS[:3], sse({"error": {"message": "no more", "code": "boom"}})]],
    "words behind the end": [[ROLE, *WORDS, FINISH, USAGE, END, WORDS[0], WORDS[1]]],
    "an end without a reason": [[ROLE, *WORDS[:3]]],
    "continued by another": [
        [ROLE, *WORDS[:3], Action.ABORT],
        [ROLE, *WORDS[3:], FINISH, sse(usage_event()), DONE],
    ],
}
"""What the server sends, each step by itself; a second list is the answer of the fallback."""


@pytest.fixture
async def gateway(tmp_path: Path, upstream: FakeUpstream) -> AsyncIterator[Gateway]:
    policy = a_policy(upstream.base_url)
    policy["models"]["up"]["fallbacks"] = ["other"]
    policy["models"]["other"] = {"targets": [{"backend": "up", "model": "other-model"}]}
    policy["prices"] = {name: {"input": 1.0, "output": 2.0} for name in ("upstream-model", "other-model")}
    policy["tenants"] = {"acme": {"quotas": {"tokens_per_day": 10**9}, "budget": {"usd_per_month": 1000}}}
    async with serving(tmp_path / "policies", policy) as running:
        yield running


def paced(steps: list[Step], turns: list[asyncio.Event]) -> Script:
    """``steps``, each once its turn has come."""
    script: list[Step] = []
    for step in steps:
        turns.append(asyncio.Event())
        script += [turns[-1], step]
    whole = steps[-1] is not Action.ABORT
    return stream(*script, whole=whole)


async def asked(gateway: Gateway, upstream: FakeUpstream, name: str) -> dict[str, Any]:
    """Everything that can be known of one answer."""
    turns: list[asyncio.Event] = []
    upstream.scripts = [paced(steps, turns) for steps in SCRIPTS[name]]
    before = await gateway.metrics()
    body = {"model": "up", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    if name == "two choices":
        body["n"] = 2
    received = b""

    async def take_turns() -> None:
        for turn in turns:
            turn.set()
            await asyncio.sleep(0.01)  # in which the step arrives; one that does not comes with the next

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(take_turns())
        async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
            async for part in response.aiter_raw():
                received += part
    name = response.headers["x-request-id"]
    receipt = (await gateway.http.get(f"/v1/requests/{name}")).json()
    after = await gateway.metrics()
    return {
        "status": response.status_code,
        "body": re.sub(rb'"created":\d+', b"", received.replace(name.encode(), b"ID")),
        "receipt": untimed(receipt),
        "counted": {
            metric: round(value - before.get(metric, 0.0), 9)
            for metric, value in after.items()
            if not re.search(UNLIKE, metric)
        },
    }


UNLIKE = "seconds_(sum|bucket)|created|http|loop_lag|process|python|inter_token|saturation|rows_waiting"
"""Metrics that hang on the time: gauges are sampled, and may be those of the moment before."""


def untimed(value: Any) -> Any:
    """Without what no two requests share: times, and ids."""
    if isinstance(value, dict):
        return {
            key: untimed(one)
            for key, one in value.items()
            if key not in ("id", "request_id", "trace_id", "created")
            and (key == "cost_usd" or not isinstance(one, float))
        }
    return [untimed(one) for one in value] if isinstance(value, list) else value


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the relays pass on."""
    found: list[bytes] = []
    take = StreamRelay.take

    def noted(relay: StreamRelay, part: bytes) -> bytes:
        left = take(relay, part)
        if left != part:
            found.append(part)
        return left

    monkeypatch.setattr(StreamRelay, "take", noted)
    return found


@pytest.mark.parametrize("name", SCRIPTS)
async def test_nobody_can_tell_it(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, passed: list[bytes], name: str
) -> None:
    relayed = await asked(gateway, upstream, name)
    for _ in range(
        20
    ):  # on a machine that stands still all may come at once, and there is nothing to wait for
        relayed = await asked(gateway, upstream, name)
        if any(passed) or name == "two choices":  # which take turns: no event is like the one before
            break
    else:
        pytest.fail("no piece went past the generators")
    monkeypatch.setattr(StreamRelay, "take", lambda relay, part: part)
    passed.clear()
    plain = await asked(gateway, upstream, name)
    assert not passed
    assert relayed["status"] == 200
    assert relayed["body"] == plain["body"]
    assert relayed == plain


WRITTEN = [
    "To whom it ",
    "may concern: write to ",
    "alice",
    "@private",
    ".example",
    ".com",
    ", if you have to. ",
]
PII: dict[str, Any] = {"kind": "pii", "on": ["output"], "entities": ["EMAIL_ADDRESS"], "interval": 4}
GUARDS: dict[str, dict[str, Any]] = {
    "redacted": {**PII, "action": "redact"},
    "cut": {**PII, "action": "block", "window": 16},
    "cut at once": {**PII, "action": "block", "stream": "optimistic"},
    "told": {**PII, "action": "flag"},
}


@pytest.mark.parametrize("name", GUARDS)
async def test_nobody_can_tell_it_of_a_guarded_stream(
    tmp_path: Path, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, passed: list[bytes], name: str
) -> None:
    policy = a_policy(upstream.base_url) | {"guards": {"addresses": GUARDS[name]}}
    told = WRITTEN * 12
    monkeypatch.setitem(SCRIPTS, name, [[ROLE, *(sse(delta(one)) for one in told), FINISH, USAGE, END]])
    async with serving(tmp_path / "policies", policy) as gateway:
        for _ in range(20):
            relayed = (await asked(gateway, upstream, name))["body"]
            if passed:
                break
        else:
            pytest.fail("no piece went past the generators")
        monkeypatch.setattr(StreamRelay, "take", lambda relay, part: part)
        plain = (await asked(gateway, upstream, name))["body"]
    said = "".join(re.findall(r'"content":"([^"]+)"', relayed.decode()))
    if name == "cut at once":  # what has left by then hangs on the time
        assert "".join(told).startswith(said) and '"revoked":true' in relayed.decode()
        return
    assert said == "".join(re.findall(r'"content":"([^"]+)"', plain.decode()))
    assert relayed.count(b'"revoked":true') == plain.count(b'"revoked":true') == (name == "cut")
    assert ("alice" in said) == (name == "told")
    assert ("[EMAIL_ADDRESS]" in said) == (name == "redacted")


async def test_a_traced_stream_takes_it_too(
    tmp_path: Path, upstream: FakeUpstream, passed: list[bytes]
) -> None:
    with http_receiver() as receiver:
        policy = a_policy(upstream.base_url) | {"telemetry": {"endpoint": receiver.url}}
        async with serving(tmp_path / "policies", policy) as gateway:
            answers = []
            while len(answers) < 20:
                answers.append((await asked(gateway, upstream, "one by one"))["body"])
                if any(passed):
                    break
            else:
                pytest.fail("no piece went past the generators")
    attempts = [span for span in receiver.spans if span.kind == "client"]
    assert len(attempts) == len(answers)
    assert all(b'"finish_reason":"stop"' in answer for answer in answers)
    for span in attempts:
        assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"]
        assert span.attributes["gen_ai.usage.output_tokens"] == 3  # as the server says


QUESTION = {"messages": [{"role": "user", "content": "Hi"}]}
DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "with usage": ("/v1/chat/completions", QUESTION | {"stream_options": {"include_usage": True}}),
    "messages": ("/v1/messages", QUESTION | {"max_tokens": 9}),
    "responses": ("/v1/responses", {"input": "Hi"}),
    "gemini": (
        "/v1beta/models/up:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
    ),
    "gemini's array": (
        "/v1beta/models/up:streamGenerateContent",
        {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
    ),
}


async def written(
    gateway: Gateway,
    upstream: FakeUpstream,
    path: str,
    body: dict[str, Any],
    steps: Sequence[Step] = SCRIPTS["two at a time"][0],
) -> bytes:
    """All that a client gets, without what no two answers share."""
    turns: list[asyncio.Event] = []
    upstream.scripts = [paced([*steps], turns)]

    async def take_turns() -> None:
        for turn in turns:
            turn.set()
            await asyncio.sleep(0.01)

    named = body if "contents" in body else body | {"model": "up", "stream": True}
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(take_turns())
        response = await gateway.http.post(path, json=named)
    assert response.status_code == 200, response.text
    text = re.sub(r'"created(?:_at)?":[\d.]+|"(?:completed_at)":[\d.]+', "", response.text)
    unique = re.sub(r"[0-9a-f]{16,}", "ID", text.replace(response.headers["x-request-id"], "ID"))
    return unique.encode()


@pytest.mark.parametrize("name", DIALECTS)
async def test_nobody_can_tell_it_in_any_dialect(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, passed: list[bytes], name: str
) -> None:
    path, body = DIALECTS[name]
    await written(gateway, upstream, path, body)  # which teaches how long a prompt is
    for _ in range(20):
        relayed = await written(gateway, upstream, path, body)
        if passed or name == "gemini's array":
            break
    else:
        pytest.fail("no piece went past the generators")
    assert bool(passed) is (name != "gemini's array")  # which are no events
    monkeypatch.setattr(StreamRelay, "take", lambda relay, part: part)
    assert relayed == await written(gateway, upstream, path, body)
    assert "wörld" in relayed.decode()


async def test_padded_events_are_padded_there_too(
    gateway: Gateway, upstream: FakeUpstream, passed: list[bytes]
) -> None:
    body = QUESTION | {"stream_options": {"include_obfuscation": True}}
    for _ in range(20):
        answer = await written(gateway, upstream, "/v1/chat/completions", body)
        events = [event for event in answer.split(b"\n\n") if b'"content":"' in event]
        assert all(b'"obfuscation":"' in event for event in events)
        if passed:
            return
    pytest.fail("no piece went past the generators")


def claudes(kind: str, **more: Any) -> bytes:
    return b"event: %b\n" % kind.encode() + sse({"type": kind, **more})


def claudes_text(text: str) -> bytes:
    return claudes("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "claude"}
CLAUDES = [
    claudes("message_start", message=MESSAGE | {"usage": {"input_tokens": 2, "output_tokens": 1}}),
    claudes("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    *map(claudes_text, ["Hel", "lo ", "wörld"]),
    claudes("ping") + claudes_text(" and") + claudes_text(" more")[:40],
    claudes_text(" more")[40:] + claudes_text(".") + claudes_text(".")[:20],
    claudes_text(".")[20:],
    claudes("content_block_stop", index=0),
    claudes("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 9}),
    claudes("message_stop"),
]


@pytest.mark.parametrize("name", ["with usage", "messages", "responses", "gemini"])
async def test_nobody_can_tell_it_of_anthropics_either(
    tmp_path: Path, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, passed: list[bytes], name: str
) -> None:
    policy = a_policy(upstream.base_url)
    policy["backends"]["up"] = {"kind": "anthropic", "base_url": upstream.base_url.removesuffix("/v1")}
    path, body = DIALECTS[name]
    async with serving(tmp_path / "policies", policy) as gateway:
        await written(gateway, upstream, path, body, CLAUDES)
        for _ in range(20):
            relayed = await written(gateway, upstream, path, body, CLAUDES)
            if passed:
                break
        else:
            pytest.fail("no piece went past the generators")
        monkeypatch.setattr(StreamRelay, "take", lambda relay, part: part)
        assert relayed == await written(gateway, upstream, path, body, CLAUDES)
    assert "wörld" in relayed.decode()


async def test_what_a_backend_changes_itself_goes_through_it(
    tmp_path: Path, upstream: FakeUpstream, passed: list[bytes]
) -> None:
    policy = a_policy(upstream.base_url)
    policy["backends"]["up"] = {"kind": "anthropic", "base_url": upstream.base_url.removesuffix("/v1")}
    body = QUESTION | {"response_format": {"type": "json_object"}}
    words = [*CLAUDES[:2], *map(claudes_text, ["Here: ", '{"a":', "1", "}", " and more"]), *CLAUDES[-3:]]
    async with serving(tmp_path / "policies", policy) as gateway:
        answer = await written(gateway, upstream, "/v1/chat/completions", body, words)
    assert not passed
    assert b"Here" not in answer
    assert b"and more" not in answer


async def test_what_a_stage_keeps_goes_through_it(
    tmp_path: Path, upstream: FakeUpstream, passed: list[bytes]
) -> None:
    policy = a_policy(upstream.base_url) | {"caches": {"exact": {"ttl": "1h"}}}
    async with serving(tmp_path / "policies", policy) as gateway:
        answers = [await written(gateway, upstream, "/v1/chat/completions", QUESTION) for _ in range(3)]
    assert not passed
    assert all("wörld" in answer.decode() for answer in answers)


@pytest.mark.deadlines
async def test_a_silence_ends_it_as_it_ends_any_other(tmp_path: Path, upstream: FakeUpstream) -> None:
    policy = a_policy(upstream.base_url)
    policy["models"]["up"]["timeouts"] = {"idle": "300ms"}
    words = [step for word in WORDS * 2 for step in (0.1, word)]
    upstream.scripts = [stream(ROLE, *words, Action.HANG)]
    async with serving(tmp_path / "policies", policy) as gateway:
        body = {"model": "up", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        text = (await gateway.http.post("/v1/chat/completions", json=body)).text
    assert text.count("wörld") == 2  # each word is a sign of life
    assert "stalled for 0.3 s" in text
    await asyncio.wait_for(upstream.requests[0].left.wait(), 300)


async def test_a_client_that_leaves_stops_the_upstream(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.scripts = [stream(ROLE, *WORDS, Action.HANG)]
    body = {"model": "up", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
        async for part in response.aiter_text():
            if "more" in part:
                break
    await asyncio.wait_for(upstream.requests[0].left.wait(), 300)


async def test_a_client_that_does_not_read_makes_the_server_wait(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    """All of an answer that is larger than what lies between, in pieces and in order, once it is read."""
    words = [f"{number} " for number in range(20_000)]
    events = [sse(delta(word)) for word in words]
    pieces = [b"".join(events[i : i + 10]) for i in range(0, len(events), 10)]
    upstream.scripts = [stream(ROLE, *pieces, FINISH, USAGE, END)]
    body = {"model": "up", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
        await asyncio.sleep(0.3)
        text = (await response.aread()).decode()
    assert re.findall(r'"content":"(\d+ )"', text) == words
    assert text.endswith("data: [DONE]\n\n")


async def test_no_more_is_read_from_a_server_than_its_client_takes(
    tmp_path: Path, passed: list[bytes]
) -> None:
    bunch = b"".join(sse(delta(f"word {number} ")) for number in range(50))
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + ROLE)
        with contextlib.suppress(ConnectionError):
            while sent < 256 * 2**20:
                writer.write(bunch)
                await writer.drain()
                sent += len(bunch)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        policy = a_policy(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
        async with serving(tmp_path / "policies", policy) as gateway:
            body = {"model": "up", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
            async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as response:
                assert response.status_code == 200
                before = -1
                while sent != before:
                    before = sent
                    await asyncio.sleep(0.5)
    assert passed
    assert sent < 64 * 2**20  # what the system's buffers hold, and the gateway's
