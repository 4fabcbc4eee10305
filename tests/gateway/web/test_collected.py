"""Answers that callers want whole, collected from streams: the same, byte for byte, as those that came whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests import faults
from tests.fakes import DONE, FakeUpstream, Script, reply, sse, stream
from tests.faults import FaultServer
from tests.serving import a_policy, chat, serving

pytestmark = pytest.mark.anyio

HEAD = {"id": "chatcmpl-7", "created": 1_700_000_000, "model": "upstream-model", "system_fingerprint": "fp_1"}
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 7,
    "total_tokens": 16,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}
LIMITS = {"first_token": "60s", "idle": "60s"}


def token(word: str) -> dict[str, Any]:
    return {"token": word, "logprob": -0.5, "bytes": [*word.encode()], "top_logprobs": []}


def a_call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}


Choice = dict[str, Any]

CHOICES: dict[str, list[Choice]] = {
    "text": [{"message": {"content": "Hello there, wörld."}}],
    "logprobs": [
        {
            "message": {"content": "Hi you"},
            "logprobs": {"content": [token("Hi"), token(" you")], "refusal": None},
        }
    ],
    "two-choices": [
        {"message": {"content": "One."}},
        {"message": {"content": "Two!"}, "finish_reason": "length"},
    ],
    "refusal": [{"message": {"content": None, "refusal": "I cannot do that."}}],
    "tools": [
        {
            "message": {
                "content": None,
                "tool_calls": [a_call("look", '{"at": "sky"}'), a_call("run", "{}")],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "thoughts": [{"message": {"reasoning_content": "Let me see.", "content": "Yes."}}],
    "stop": [{"message": {"content": "A"}, "stop_reason": "END"}],
    "annotations": [
        {"message": {"content": "Blue.", "annotations": [{"type": "url_citation"}, {"type": "other"}]}}
    ],
    "unknown": [{"message": {"content": "A", "of_tomorrow": {"n": [1]}}}],
}


def whole(choices: list[Choice]) -> Script:
    told = [
        {
            "index": i,
            "finish_reason": "stop",
            "logprobs": None,
            **one,
            "message": {"role": "assistant", **one["message"]},
        }
        for i, one in enumerate(choices)
    ]
    return reply({**HEAD, "object": "chat.completion", "choices": told, "usage": USAGE, "provider": "P"})


def events(choices: list[Choice]) -> Iterator[bytes]:
    """As a server streams it: a few characters an event, lists item by item."""

    def event(i: int, delta: dict[str, Any], **more: Any) -> bytes:
        choice = {"index": i, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return sse({**HEAD, "object": "chat.completion.chunk", "choices": [choice], "provider": "P"})

    for i, one in enumerate(choices):
        yield event(i, {"role": "assistant", "content": ""})
        for name, value in one["message"].items():
            match value:
                case str() if (told := one.get("logprobs")) is not None:
                    for entry in told["content"]:
                        yield event(i, {name: entry["token"]}, logprobs={"content": [entry], "refusal": None})
                case str():
                    for start in range(0, len(value), 3):
                        yield event(i, {name: value[start : start + 3]})
                case list() if name == "tool_calls":
                    for index, call in enumerate(value):
                        function = call["function"]
                        opening = {**call, "function": {**function, "arguments": ""}}
                        yield event(i, {"tool_calls": [{"index": index, **opening}]})
                        for character in function["arguments"]:
                            piece = {"index": index, "function": {"arguments": character}}
                            yield event(i, {"tool_calls": [piece]})
                case list():
                    for entry in value:
                        yield event(i, {name: [entry]})
                case dict():
                    yield event(i, {name: value})
        ended = {name: one[name] for name in ("stop_reason",) if name in one}
        yield event(i, {}, finish_reason=one.get("finish_reason", "stop"), **ended)
    yield sse({**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
    yield DONE


class Both(FakeUpstream):
    """Streams where it is asked for a stream."""

    def __init__(self, choices: list[Choice]) -> None:
        super().__init__()
        self.choices = choices

    def next_script(self) -> Script:
        return stream(*events(self.choices)) if self.requests[-1].json()["stream"] else whole(self.choices)


def policy(upstream: FakeUpstream, **timeouts: str) -> dict[str, Any]:
    given = a_policy(upstream.base_url)
    given["backends"]["plain"] = {**given["backends"]["up"], "streams": False}
    for name in ("up", "plain"):
        targets = [{"backend": name, "model": "upstream-model"}]
        given["models"][name] = {"targets": targets, "timeouts": timeouts, "retry": {"attempts": 1}}
    return given


@pytest.mark.parametrize(
    ("case", "path"),
    [
        *((case, "/v1/chat/completions") for case in CHOICES),
        *((case, "/v1/messages") for case in CHOICES if len(CHOICES[case]) == 1),
    ],
)
async def test_the_answer_is_the_same(tmp_path: Path, case: str, path: str) -> None:
    answers = []
    async with (
        Both(CHOICES[case]) as upstream,
        serving(tmp_path / "p", policy(upstream, **LIMITS)) as gateway,
    ):
        for model in ("up", "plain"):
            several = {"n": 2} if len(CHOICES[case]) == 2 else {}
            body = chat(model, max_tokens=50, **several)
            answer = await gateway.http.post(path, json=body)
            assert answer.status_code == 200, answer.text
            answers.append({**orjson.loads(answer.content), "model": ""})
        assert [request.json()["stream"] for request in upstream.requests] == [True, False]
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("fault", "limit", "said"),
    [
        (faults.silence, {"first_token": "50ms"}, "sent nothing within 0.05 s"),
        (faults.stall, {"idle": "50ms"}, "stalled for 0.05 s in the middle"),
    ],
)
async def test_a_silent_server_is_left_when_the_policy_says(
    tmp_path: Path, fault: faults.Fault, limit: dict[str, str], said: str
) -> None:
    async with (
        FaultServer(fault) as upstream,
        serving(tmp_path / "p", policy(upstream, total="10s", **limit)) as gateway,
    ):
        answer = await gateway.http.post("/v1/chat/completions", json=chat("up"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")
        assert said in answer.json()["error"]["message"]


async def test_one_that_breaks_off_is_asked_elsewhere_as_if_nothing_had_come(tmp_path: Path) -> None:
    """Nobody has heard the beginning, so that even a server that says it otherwise can take over."""
    async with FaultServer(faults.cut) as upstream, FaultServer(answer="Another answer.") as other:
        given = policy(upstream, **LIMITS)
        given["backends"]["other"] = {"kind": "openai", "base_url": other.base_url}
        given["models"]["other"] = {"targets": [{"backend": "other", "model": "x"}]}
        given["models"]["up"]["fallbacks"] = ["other"]
        async with serving(tmp_path / "p", given) as gateway:
            answer = await gateway.http.post("/v1/chat/completions", json=chat("up"))
            assert answer.json()["choices"][0]["message"]["content"] == "Another answer."
            assert answer.headers["x-tollgate-model"] == "other"


async def test_without_such_limits_it_is_asked_for_whole(tmp_path: Path) -> None:
    async with (
        Both(CHOICES["text"]) as upstream,
        serving(tmp_path / "p", policy(upstream, total="60s")) as gateway,
    ):
        assert (await gateway.http.post("/v1/chat/completions", json=chat("up"))).status_code == 200
        assert [request.json()["stream"] for request in upstream.requests] == [False]
