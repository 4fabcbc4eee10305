"""Cascades over HTTP, in both dialects, streamed and not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import faults
from tests.fakes import Action, FakeUpstream, reply
from tests.faults import ModelServer
from tests.serving import Gateway, a_policy, chat, serving

pytestmark = pytest.mark.anyio

PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
CLAUDE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "model": "claude",
    "content": [{"type": "text", "text": "A sound answer."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 2},
}


async def ask(gateway: Gateway, dialect: str, **more: Any) -> httpx.Response:
    return await gateway.http.post(PATHS[dialect], json=chat("auto", max_tokens=20, **more))


async def steps(gateway: Gateway, answer: httpx.Response) -> list[tuple[str, str, float | None]]:
    told = (await gateway.http.get(f"/v1/requests/{answer.headers['x-request-id']}")).json()["stages"][
        "cascade"
    ]
    return [(step["model"], step["verdict"], step["mean_logprob"]) for step in told["steps"]]


def policy(near: FakeUpstream, far: FakeUpstream, *, first: list[dict[str, str]]) -> dict[str, Any]:
    given = a_policy(far.base_url)
    given["backends"]["claude"] = {"kind": "anthropic", "base_url": near.base_url.removesuffix("/v1")}
    given["models"] |= {
        "small": {"targets": first, "retry": {"attempts": 1}},
        "large": {"targets": [{"backend": "up", "model": "large"}], "retry": {"attempts": 1}},
        "auto": {
            "cascade": [{"model": "small", "escalate": {"mean_logprob_below": -0.5}}, {"model": "large"}]
        },
    }
    return given


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_a_provider_that_knows_no_logprobs_is_asked_without(tmp_path: Path, dialect: str) -> None:
    async with FakeUpstream(reply(CLAUDE)) as claude, ModelServer(large=faults.sound) as up:
        given = policy(claude, up, first=[{"backend": "claude", "model": "claude"}])
        async with serving(tmp_path / "p", given) as gateway:
            answer = await ask(gateway, dialect)
            assert answer.headers["x-tollgate-model"] == "small"
            assert "A sound answer." in answer.text
            assert "x-tollgate-ignored" not in answer.headers
            assert await steps(gateway, answer) == [("small", "good", None)]
    assert (len(claude.requests), up.asked) == (1, [])


async def test_a_server_that_rejects_them_answers_before_its_fallback(tmp_path: Path) -> None:
    """In OpenAI's words, which say as well that another model may suit."""

    def picky(asked: faults.Asked) -> Any:
        if "logprobs" not in up.requests[-1].json():
            return faults.sound(asked)
        error = {"message": "Unsupported parameter: 'logprobs'", "param": "logprobs"}
        return reply({"error": {**error, "code": "unsupported_parameter"}}, status=400)

    async with FakeUpstream() as claude, ModelServer(small=picky, large=faults.sound) as up:
        given = policy(claude, up, first=[{"backend": "up", "model": "small"}])
        given["models"]["small"]["fallbacks"] = ["large"]
        async with serving(tmp_path / "p", given) as gateway:
            answer = await ask(gateway, "openai")
            assert answer.headers["x-tollgate-model"] == "small"
            assert answer.json()["choices"][0]["logprobs"] is None
    assert up.asked == ["small", "small"]


def declining(asked: faults.Asked) -> Any:
    return faults.sound(faults.Asked(asked.stream, "I'm sorry, but I can't help with that.", 7))


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_a_refusal_is_no_answer_where_the_last_step_fails(
    tmp_path: Path, dialect: str, streamed: bool
) -> None:
    async with FakeUpstream() as claude, ModelServer(small=declining, large=faults.broken) as up:
        given = policy(claude, up, first=[{"backend": "up", "model": "small"}])
        async with serving(tmp_path / "p", given) as gateway:
            answer = await ask(gateway, dialect, stream=streamed)
            assert answer.status_code == 502
            assert "sorry" not in answer.text
    assert up.asked == ["small", "large"]


@pytest.mark.parametrize(("dialect", "sign"), [("openai", ": waiting"), ("anthropic", "event: ping")])
async def test_a_client_is_shown_signs_of_life_while_a_step_is_held(
    tmp_path: Path, dialect: str, sign: str
) -> None:
    def stalling(asked: faults.Asked) -> Any:
        return (*faults.sound(asked)[:3], Action.HANG)

    lines: list[str] = []
    async with FakeUpstream() as claude, ModelServer(small=stalling, large=faults.sound) as up:
        given = policy(claude, up, first=[{"backend": "up", "model": "small"}])
        async with serving(tmp_path / "p", given, heartbeat=0.02) as gateway:
            body = chat("auto", max_tokens=20, stream=True)
            async with gateway.http.stream("POST", PATHS[dialect], json=body) as answer:
                async for line in answer.aiter_lines():
                    lines.append(line)
                    if lines.count(sign) == 2:
                        break
    assert not any("Here" in line for line in lines)
