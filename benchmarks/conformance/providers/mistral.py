"""Mistral's API, scripted (https://docs.mistral.ai/api): chat, embeddings, models. It refuses what it does not know.

python -m benchmarks.conformance.providers.mistral PORT
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks.conformance.providers import said
from benchmarks.conformance.providers.errand import errand
from benchmarks.conformance.providers.said import Wish
from benchmarks.conformance.providers.wanted import Answer, Wanted, answer

KEY = "mistral-conformance"
MODEL = "mistral-medium-latest"
EMBEDDER = "mistral-embed"
CREATED = 1_760_000_000

Json = dict[str, Any]

CHAT = frozenset(
    {
        *("frequency_penalty", "guardrails", "max_tokens", "messages", "metadata", "model", "n"),
        *("parallel_tool_calls", "prediction", "presence_penalty", "prompt_cache_key", "prompt_mode"),
        *("random_seed", "reasoning_effort", "response_format", "safe_prompt", "stop", "stream"),
        *("temperature", "tool_choice", "tools", "top_p"),
    }
)
EMBEDDINGS = frozenset({"encoding_format", "input", "metadata", "model", "output_dimension", "output_dtype"})
MESSAGES = {
    "system": frozenset({"role", "content"}),
    "user": frozenset({"role", "content"}),
    "assistant": frozenset({"role", "content", "prefix", "tool_calls"}),
    "tool": frozenset({"role", "content", "name", "tool_call_id"}),
}
_CALL_ID = re.compile(r"[A-Za-z0-9]{9}")


class Refused(Exception):
    """An error as this API tells it."""

    def __init__(self, status: int, body: Json, **headers: str) -> None:
        super().__init__(str(body))
        self.status, self.body, self.headers = status, body, headers


def app() -> Starlette:
    served = Starlette(
        routes=[
            Route("/v1/chat/completions", _chat, methods=["POST"]),
            Route("/v1/embeddings", _embeddings, methods=["POST"]),
            Route("/v1/audio/transcriptions", _transcription, methods=["POST"]),
            Route("/v1/models", _models),
        ],
        exception_handlers={Refused: _refuse},
    )
    served.state.heard = set()
    return served


async def _refuse(request: Request, error: Exception) -> Response:
    if not isinstance(error, Refused):
        raise error
    headers = {name.replace("_", "-"): value for name, value in error.headers.items()}
    return Response(orjson.dumps(error.body), error.status, headers, "application/json")


async def _models(request: Request) -> Response:
    _check_key(request)
    models = [{"id": name, "object": "model", "owned_by": "mistralai"} for name in (MODEL, EMBEDDER)]
    return _json({"object": "list", "data": models})


async def _embeddings(request: Request) -> Response:
    asked = await _read(request, EMBEDDINGS, EMBEDDER)
    texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
    vector = [0.5] * asked.get("output_dimension", 4)
    data = [{"object": "embedding", "index": i, "embedding": vector} for i in range(len(texts))]
    usage = {"prompt_tokens": said.count(texts), "completion_tokens": 0, "total_tokens": said.count(texts)}
    return _json(
        {"id": f"emb_{said.new_id()}", "object": "list", "data": data, "model": EMBEDDER, "usage": usage}
    )


async def _transcription(request: Request) -> Response:
    _check_key(request)
    form = await request.form()
    if form.get("model") != MODEL or not form.get("file"):
        raise _invalid(["body", "file"], "Field required")
    usage = {"prompt_audio_seconds": 1, "prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}
    return _json({"model": MODEL, "text": said.TEXT, "language": None, "segments": [], "usage": usage})


async def _chat(request: Request) -> Response:
    asked = await _read(request, CHAT, MODEL)
    wanted = _wanted(asked)
    _grant(wanted.words, request)
    found = answer(wanted)
    usage = _usage(said.count(asked["messages"]), found)
    common = {"id": f"cmpl-{said.new_id()}", "created": CREATED, "model": MODEL}
    if asked.get("stream"):
        return StreamingResponse(
            said.paced(_lines(common, found, usage), wanted.words, held_back=1),
            media_type="text/event-stream",
        )
    await said.pause(wanted.words, request)
    message = {"role": "assistant", "content": _content(found), "tool_calls": _calls(found) or None}
    choices = [
        {"index": i, "message": message, "finish_reason": _finish(found)} for i in range(asked.get("n") or 1)
    ]
    return _json({**common, "object": "chat.completion", "choices": choices, "usage": usage})


def _wanted(asked: Json) -> Wanted:
    calls: list[str] = []
    for i, message in enumerate(asked["messages"]):
        fields = MESSAGES.get(message.get("role"))
        if fields is None:
            raise _invalid(
                ["body", "messages", i, "role"], "Input tag does not match any of the expected tags"
            )
        for name in message:
            if name not in fields:
                raise _invalid(["body", "messages", i, name], "Extra inputs are not permitted")
        for call in message.get("tool_calls") or ():
            if not _CALL_ID.fullmatch(call["id"]):
                raise _invalid(["body", "messages", i], "Tool call id has to be a-z, A-Z, 0-9, of length 9")
            calls.append(call["id"])
        if message["role"] == "tool" and message.get("tool_call_id") not in calls:
            raise _invalid(["body", "messages", i], "Unexpected tool call id in tool results")
    last = asked["messages"][-1]
    choice = asked.get("tool_choice") or "auto"
    if isinstance(choice, dict):
        choice = choice["function"]["name"]
    form = asked.get("response_format") or {}
    tools = {
        tool["function"]["name"]: tool["function"].get("parameters") or {}
        for tool in asked.get("tools") or ()
    }
    return Wanted(
        words=said.last_words([last]),
        picture=_picture(last["content"]),
        tools=tools,
        errand=errand(asked["messages"], tools),
        choice="any" if choice == "required" else choice,
        answered=last["role"] == "tool",
        schema=form["json_schema"]["schema"] if form.get("type") == "json_schema" else None,
        limit=asked.get("max_tokens"),
        stops=[asked["stop"]] if isinstance(asked.get("stop"), str) else asked.get("stop") or (),
        thinks=asked.get("reasoning_effort") not in (None, "none"),
    )


def _picture(content: str | list[Json]) -> int:
    for part in content if isinstance(content, list) else ():
        if part["type"] == "image_url":
            url = part["image_url"]
            return said.size_of(url if isinstance(url, str) else url["url"])
    return 0


def _content(found: Answer) -> str | list[Json]:
    text = "".join(found.text.tokens)
    if not found.thought:
        return text
    parts: list[Json] = [{"type": "thinking", "thinking": [{"type": "text", "text": found.thought}]}]
    return [*parts, {"type": "text", "text": text}] if text else parts


def _calls(found: Answer) -> list[Json]:
    return [
        {
            "id": f"D681PevK{i}",
            "type": "function",
            "index": i,
            "function": {"name": name, "arguments": orjson.dumps(args).decode()},
        }
        for i, (name, args) in enumerate(found.calls)
    ]


def _lines(common: Json, found: Answer, usage: Json) -> Iterator[bytes]:
    """This API tells the usage of every stream, in the last event; it has no ``stream_options``."""

    def line(delta: Json, finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        event = {**common, "object": "chat.completion.chunk", "choices": [choice], **more}
        return b"data: " + orjson.dumps(event) + b"\n\n"

    yield line({"role": "assistant", "content": ""})
    if found.thought:
        for token in said.split(found.thought):
            yield line({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": token}]}]})
    for token in found.text.tokens:
        yield line({"content": token})
    calls = {"tool_calls": _calls(found)} if found.calls else {}
    yield line({"content": "", **calls}, _finish(found), usage=usage)
    yield b"data: [DONE]\n\n"


def _finish(found: Answer) -> str:
    return "tool_calls" if found.calls else "length" if found.text.cut else "stop"


def _usage(prompt: int, found: Answer) -> Json:
    completion = found.tokens + found.thought_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def _read(request: Request, fields: frozenset[str], model: str) -> Json:
    _check_key(request)
    asked: Json = orjson.loads(await request.body())
    for name in asked:
        if name not in fields:
            raise _invalid(["body", name], "Extra inputs are not permitted")
    if asked.get("model") != model:
        wrong = {
            "object": "error",
            "message": f"Invalid model: {asked.get('model')}",
            "type": "invalid_model",
        }
        raise Refused(400, {**wrong, "param": None, "code": "1500"})
    return asked


def _grant(words: str, request: Request) -> None:
    """Fail as the last message wishes."""
    limited = {"object": "error", "message": "Rate limit exceeded", "type": "rate_limited", "param": None}
    if said.is_busy(words, request.app.state.heard):
        raise Refused(429, {**limited, "code": "1300"}, retry_after="1")
    match words:
        case Wish.OVERLOADED:
            raise Refused(
                503, {**limited, "message": "Service unavailable.", "type": "internal_server_error"}
            )
        case Wish.RATE_LIMITED:
            raise Refused(429, {**limited, "code": "1300"}, retry_after="20")
        case Wish.BROKEN:
            raise Refused(500, {**limited, "message": "Internal error", "type": "internal_server_error"})
        case Wish.TOO_LONG:
            message = "Prompt contains 140000 tokens, too large for model with 131072 maximum context length"
            raise Refused(400, {**limited, "message": message, "type": "invalid_request_prompt"})


def _invalid(where: list[Any], message: str) -> Refused:
    return Refused(422, {"detail": [{"type": "extra_forbidden", "loc": where, "msg": message}]})


def _check_key(request: Request) -> None:
    if request.headers.get("authorization") != f"Bearer {KEY}":
        raise Refused(401, {"detail": "Unauthorized"})


def _json(body: Any) -> Response:
    return Response(orjson.dumps(body), 200, media_type="application/json")


if __name__ == "__main__":
    uvicorn.run(app(), port=int(sys.argv[1]), log_level="warning")
