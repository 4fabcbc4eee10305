"""The whole gateway before servers that fail: the right answer where there is a fallback, a bounded error where not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests import faults
from tests.fakes import within
from tests.faults import ANSWER, PROMPT_TOKENS, Fault, FaultServer, words
from tests.serving import Gateway, a_policy, chat, serving

pytestmark = [pytest.mark.anyio, pytest.mark.deadlines]

TIMEOUTS = {"connect": "200ms", "first_token": "150ms", "idle": "150ms", "total": "300ms"}
RETRY = {"attempts": 2, "backoff": "10ms"}
ENGINE_LIKE, PLAIN = "continues", "afresh"


@dataclass(frozen=True)
class Case:
    faults: tuple[Fault, ...]
    attempts: int
    """Of the primary."""
    status: int
    """Where there is no fallback; 200 where none is needed."""
    code: str | None = None
    late: bool = False
    """Not found out before the answer has begun, where it is streamed."""
    spare: bool = True
    """A fallback helps."""


CASES = {
    "429": Case((faults.rate_limited,), 2, 429, "rate_limit_exceeded"),
    "429-once": Case((faults.rate_limited, faults.sound), 2, 200),
    "429-retry-after-now": Case((faults.rate_limited_for("0"), faults.sound), 2, 200),
    "429-retry-after-long": Case((faults.rate_limited_for("30"),), 1, 429, "rate_limit_exceeded"),
    "500-once": Case((faults.broken, faults.sound), 2, 200),
    "500": Case((faults.broken,), 2, 502, "upstream_error"),
    "503-for-good": Case((faults.unavailable,), 2, 503, "upstream_unavailable"),
    "reset-before-headers": Case((faults.reset,), 2, 503, "upstream_unavailable"),
    "silence": Case((faults.silence,), 1, 504, "upstream_timeout"),
    "slow-first-token": Case((faults.slow(1.0),), 1, 504, "upstream_timeout"),
    "first-token-in-time": Case((faults.slow(0.05),), 1, 200),
    "cut-at-two-thirds": Case((faults.cut,), 1, 502, "upstream_cut", late=True),
    "stall": Case((faults.stall,), 1, 504, "upstream_timeout", late=True),
    "malformed": Case((faults.malformed,), 1, 502, None, late=True),
    "surplus": Case((faults.surplus,), 2, 502, "upstream_malformed"),
    "surplus-once": Case((faults.surplus, faults.sound), 2, 200),
    "one-bad-event": Case((faults.one_bad_event,), 1, 200),
    "missing-done": Case((faults.unfinished,), 1, 502, "upstream_cut", late=True),
    "error-event": Case((faults.error_event,), 1, 502, "upstream_error", late=True),
    "no-such-model": Case((faults.no_such_model,), 1, 404, "model_not_found"),
    "bad-key": Case((faults.bad_key,), 1, 502, "upstream_auth"),
    "context-length": Case((faults.context_length,), 1, 400, "context_length_exceeded"),
    "content-policy": Case((faults.content_policy,), 1, 400, "content_filter", spare=False),
    "bad-request": Case((faults.bad_request,), 1, 400, "bad", spare=False),
}


@asynccontextmanager
async def gateway(
    folder: Path, primary: FaultServer, spare: FaultServer | None, **breaker: Any
) -> AsyncIterator[Gateway]:
    """Model ``main`` at ``primary``, and, where there is one, ``spare`` as the fallback."""
    servers = {"main": primary} | ({"spare": spare} if spare is not None else {})
    policy = a_policy(
        primary.base_url,
        backends={
            name: {
                "kind": "openai",
                "base_url": server.base_url,
                "continues": server.continues,
                **({"breaker": breaker} if breaker else {}),
            }
            for name, server in servers.items()
        },
        models={
            name: {
                "targets": [{"backend": name, "model": f"{name}-model"}],
                "timeouts": TIMEOUTS,
                "retry": RETRY,
                **({"fallbacks": ["spare"]} if name == "main" and spare is not None else {}),
            }
            for name in servers
        },
        prices={f"{name}-model": {"input": 1.0, "output": 1.0} for name in servers},
    )
    async with serving(folder / "policies", policy) as running:
        yield running


@dataclass
class Heard:
    """What the client made of it."""

    status: int
    headers: Any
    text: str
    finish: str | None
    usage: Any
    error: Any
    whole: bool
    """It ended as a good answer does."""


async def ask(gateway: Gateway, *, streamed: bool) -> Heard:
    body = chat("main", stream=streamed, **({"stream_options": {"include_usage": True}} if streamed else {}))
    response = await gateway.http.post("/v1/chat/completions", json=body)
    if not streamed or response.status_code != 200:
        told = response.json()
        error = told.get("error")
        choice = {} if error else told["choices"][0]
        text = choice["message"]["content"] if choice else ""
        finish = choice.get("finish_reason")
        return Heard(
            response.status_code, response.headers, text, finish, told.get("usage"), error, not error
        )
    events = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
    text, finish, usage, error = "", None, None, None
    for event in events:
        told = {} if event == "[DONE]" else orjson.loads(event)
        usage = told.get("usage") or usage
        error = told.get("error") or error
        for choice in told.get("choices", ()):
            text += choice["delta"].get("content") or ""
            assert finish is None, "nothing follows the finish"
            finish = choice["finish_reason"]
    return Heard(200, response.headers, text, finish, usage, error, events[-1] == "[DONE]")


def check_right(heard: Heard) -> None:
    assert heard.error is None
    assert (heard.status, heard.text, heard.finish, heard.whole) == (200, ANSWER, "stop", True)
    said = len(words(ANSWER))
    assert (heard.usage["prompt_tokens"], heard.usage["completion_tokens"]) == (PROMPT_TOKENS, said), (
        "billed once"
    )


async def receipt(gateway: Gateway, heard: Heard) -> Any:
    path = "/v1/requests/" + heard.headers["x-request-id"]
    async with asyncio.timeout(300):
        while (found := await gateway.http.get(path)).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found.json()["stages"]


STREAMED = pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])


@STREAMED
@pytest.mark.parametrize("spare", [ENGINE_LIKE, PLAIN])
@pytest.mark.parametrize("name", CASES)
async def test_with_a_fallback(tmp_path: Path, name: str, spare: str, streamed: bool) -> None:
    case = CASES[name]
    async with (
        FaultServer(*case.faults) as primary,
        FaultServer(continues=spare == ENGINE_LIKE) as other,
        gateway(tmp_path, primary, other) as running,
        within(3.0),
    ):
        heard = await ask(running, streamed=streamed)
        attempts = tries(case, streamed)
        assert len(primary.requests) == attempts
        if not case.spare:
            assert (heard.status, heard.error["code"]) == (case.status, case.code)
            assert other.requests == []
            return
        check_right(heard)
        needed = case.status != 200
        assert len(other.requests) == needed
        assert heard.headers["x-tollgate-model"] == (
            "spare" if needed and not (case.late and streamed) else "main"
        )
        early = attempts + (needed and not (case.late and streamed))
        assert heard.headers.get("x-tollgate-attempts") == (str(early) if early > 1 else None)
        made = (await receipt(running, heard))["fallback"]["attempts"]
        assert [attempt["backend"] for attempt in made] == ["main"] * attempts + ["spare"] * needed
        assert made[-1]["outcome"] == "ok"
        metrics = await running.metrics()
        counted = sum(value for key, value in metrics.items() if key.startswith("tollgate_attempts_total{"))
        assert counted == attempts + needed


def tries(case: Case, streamed: bool) -> int:
    """A whole answer that fails has not begun, so that it is tried again where that makes sense."""
    return 2 if case.late and not streamed and case.status == 502 else case.attempts


@STREAMED
@pytest.mark.parametrize("name", CASES)
async def test_without_a_fallback(tmp_path: Path, name: str, streamed: bool) -> None:
    case = CASES[name]
    async with FaultServer(*case.faults) as primary, gateway(tmp_path, primary, None) as running, within(3.0):
        heard = await ask(running, streamed=streamed)
        attempts = tries(case, streamed)
        assert len(primary.requests) == attempts
        if case.status == 200:
            check_right(heard)
            return
        assert not heard.whole
        assert heard.error["message"]
        if streamed and case.late:
            assert heard.finish is None
            assert heard.text
            assert ANSWER.startswith(heard.text)
        else:
            assert (heard.status, heard.text) == (case.status, "")
            assert heard.headers.get("x-tollgate-attempts") == (str(attempts) if attempts > 1 else None)
        if case.code is not None:
            assert heard.error["code"] == case.code or not streamed
        if heard.status in (429, 503):
            assert int(heard.headers["retry-after"]) >= 1
        made = (await receipt(running, heard))["fallback"]["attempts"]
        assert len(made) == attempts


@STREAMED
async def test_a_flapping_primary_harms_nobody(tmp_path: Path, streamed: bool) -> None:
    flapping = [
        faults.cut,
        faults.sound,
        faults.broken,
        faults.broken,
        faults.reset,
        faults.sound,
        faults.silence,
        faults.unavailable,
    ] * 3
    async with (
        FaultServer(*flapping, faults.sound) as primary,
        FaultServer(continues=True) as other,
        gateway(tmp_path, primary, other, failures=3, cooldown="100ms") as running,
        within(8.0),
    ):
        for _ in range(16):
            check_right(await ask(running, streamed=streamed))
        answers = await asyncio.gather(*(ask(running, streamed=streamed) for _ in range(8)))
        for heard in answers:
            check_right(heard)
        assert 0 < len(primary.requests) <= len(flapping) + 8


async def test_a_dead_primary_costs_its_failures_and_then_one_probe_a_cooldown(tmp_path: Path) -> None:
    async with (
        FaultServer(faults.unavailable) as primary,
        FaultServer() as other,
        gateway(tmp_path, primary, other, failures=2, cooldown="10m") as running,
    ):
        for _ in range(10):
            check_right(await ask(running, streamed=True))
        assert len(primary.requests) == 2
