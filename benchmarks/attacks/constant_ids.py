"""A server that gives many answers one id: is any of them taken for the answer to another request?"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx

from benchmarks.attacks.frame import ALICE, MALLORY, Gateway, Rig, must
from tests.fakes import DONE, FakeUpstream, Received, Script, completion, delta, reply, sse, stream

POINT = "D.22"
TRIED = (
    "2,400 questions in four dialects, whole and streamed, half of them judged, by 6 callers at once; servers of "
    "three APIs that have one id, one a model, or two in turns of three"
)
HOLDS = "all are answered, and no server is distrusted"
ROUNDS, CALLERS = 400, 6
OPENAI, ANTHROPIC, GOOGLE = "openai", "anthropic", "gemini"
USAGE = {"input_tokens": 3, "output_tokens": 3}


class Constant(FakeUpstream):
    """Its ids are as long as real ones: by the model's name one for all, two in turns of three, or one a model."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = itertools.count()

    def next_script(self) -> Script:
        request = self.requests[-1]
        model = _model(request)
        said = "chatcmpl-0123456789abcdef0123456789abcdef"
        if model.startswith("two"):
            said += str(next(self._turn) // 3 % 2)
        elif not model.startswith("one"):
            said += model
        text = "safe" if "judge" in model else "Hello"
        if "generateContent" in request.path or "streamGenerateContent" in request.path:
            return _google(said, text, "stream" in request.path)
        asked = request.json()
        streams = bool(asked.get("stream"))
        if request.path.endswith("/messages"):
            return _anthropic(said, text, streams)
        if not streams:
            return reply(completion(text, id=said))
        events = (delta("", role="assistant"), delta(text), delta(finish="stop"))
        return stream(*(sse({**one, "id": said}) for one in events), DONE)


async def attack(rig: Rig) -> str:
    async with Constant() as upstream:
        url = upstream.base_url.removesuffix("/v1")
        names = [f"{ids}-{kind}" for ids in ("one", "own", "two") for kind in (OPENAI, ANTHROPIC, GOOGLE)]
        judges = [f"{name}-judge" for name in names]
        judged = {
            f"guard-{name}": {
                "kind": "toxicity",
                "on": ["input"],
                "action": "block",
                "checks": ["fast"],
                "models": [name],
                "tenants": ["mallory"],
                "judge": {"model": f"{name}-judge", "unsure": [0, 1], "remember": "0s", "per_minute": 10**6},
            }
            for name in names
        }
        gateway = await rig.gateway(
            rig.policy(
                upstream,
                backends={
                    OPENAI: {"kind": "openai", "base_url": upstream.base_url},
                    ANTHROPIC: {"kind": "anthropic", "base_url": url, "api_key": "k"},
                    GOOGLE: {"kind": "gemini", "base_url": url, "api_key": "k"},
                },
                models={
                    name: {"targets": [{"backend": name.split("-")[1], "model": name}]}
                    for name in names + judges
                },
                guards=judged,
            )
        )
        questions = itertools.count()
        failures: list[str] = []

        async def caller(which: int) -> None:
            for number in range(ROUNDS):
                key = (ALICE, MALLORY)[(number + which) % 2]
                name = names[(number // 2 + which) % len(names)]
                answer = await _ask(gateway, key, name, f"question {next(questions)}", number + which)
                if answer.status_code != 200 or "another request" in answer.text:
                    failures.append(
                        f"{name} {answer.request.url.path}: {answer.status_code} {answer.text[:200]}"
                    )
                await asyncio.sleep(0.012)

        await asyncio.gather(*(caller(which) for which in range(CALLERS)))
        asked = ROUNDS * CALLERS
        must(not failures, f"{len(failures)} of {asked} were refused: {failures[:1]}")
        doubts = [line for line in gateway.lines if "nobody asked" in line]
        must(not doubts, f"{len(doubts)} servers are no longer trusted with two requests a connection")
        return f"{asked} of {asked} answered"


async def _ask(gateway: Gateway, key: str, model: str, text: str, turn: int) -> httpx.Response:
    """In one of four dialects, whole or as a stream."""
    streams = turn // 4 % 2 == 1
    messages = [{"role": "user", "content": text}]
    match turn % 4:
        case 0:
            return await gateway.chat(key, text, model, stream=streams)
        case 1:
            asked = {"model": model, "messages": messages, "max_tokens": 50, "stream": streams}
            return await gateway.post(key, asked, "/v1/messages")
        case 2:
            return await gateway.post(
                key, {"model": model, "input": text, "stream": streams}, "/v1/responses"
            )
    verb = "streamGenerateContent?alt=sse" if streams else "generateContent"
    contents = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
    return await gateway.post(key, contents, f"/v1beta/models/{model}:{verb}")


def _model(request: Received) -> str:
    if "/models/" in request.path:
        return request.path.partition("/models/")[2].partition(":")[0]
    return str(request.json().get("model"))


def _google(id: str, text: str, streams: bool) -> Script:
    candidate = {"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP", "index": 0}
    used = {"promptTokenCount": 3, "candidatesTokenCount": 3, "totalTokenCount": 6}
    answer = {"candidates": [candidate], "usageMetadata": used, "responseId": id, "modelVersion": "g"}
    return stream(sse(answer)) if streams else reply(answer)


def _anthropic(id: str, text: str, streams: bool) -> Script:
    message: dict[str, Any] = {"id": id, "type": "message", "role": "assistant", "model": "a", "usage": USAGE}
    message |= {"stop_reason": "end_turn", "stop_sequence": None}
    if not streams:
        return reply({**message, "content": [{"type": "text", "text": text}]})
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": USAGE,
        },
        {"type": "message_stop"},
    ]
    return stream(*(b"event: %b\n" % str(one["type"]).encode() + sse(one) for one in events))
