"""Anthropic's API, scripted (https://platform.claude.com/docs/en/api/messages): messages, token counts, models.

python -m benchmarks.conformance.providers.anthropic PORT
"""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import orjson
import uvicorn
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_create_params
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks.conformance.providers import said
from benchmarks.conformance.providers.errand import errand
from benchmarks.conformance.providers.said import Wish

KEY = "sk-ant-conformance"
MODEL = "claude-sonnet-4-5"
REQUEST_ID = "req_011CSHoEeqs5C35K2UUqR7Fy"
SIGNATURE = "EqoBCkgIARABGAIiQL8tWmVx0b5r6Gz0Q2h1c2U="
"""What every thinking block is signed with, and the only signature that is taken back."""

Json = dict[str, Any]


class Refused(Exception):
    """An error as this API tells it."""

    def __init__(
        self, status: int, kind: str, message: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        self.body = {
            "type": "error",
            "error": {"type": kind, "message": message},
            "request_id": REQUEST_ID,
        }


def app() -> Starlette:
    served = Starlette(
        routes=[
            Route("/v1/messages", _refusing(_messages), methods=["POST"]),
            Route("/v1/messages/count_tokens", _refusing(_count_tokens), methods=["POST"]),
            Route("/v1/models", _refusing(_models)),
            Route("/v1/models/{model}", _refusing(_model)),
        ]
    )
    served.state.heard = set()
    return served


def _refusing(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """What a script stumbles over is the request's fault."""

    async def told(request: Request) -> Response:
        try:
            return await answer(request)
        except Refused as error:
            return _json(error.body, error.status, error.headers)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
            refused = _invalid(f"Input should be a valid dictionary ({type(error).__name__}: {error})")
            return _json(refused.body, refused.status)

    return told


async def _messages(request: Request) -> Response:
    asked = await _read(request, message_create_params.MessageCreateParamsBase, "max_tokens")
    limit = asked["max_tokens"]
    if type(limit) is not int or limit < 1:
        raise _invalid("max_tokens: Input should be greater than or equal to 1")
    if not 0 <= asked.get("temperature", 1) <= 1:
        raise _invalid("temperature: range: 0..1")
    messages = asked["messages"]
    words = said.last_words(messages)
    _grant(words, request)
    blocks, stop = _blocks(asked, refuses=words == Wish.REFUSE)
    usage = _usage(asked, sum(len(_tokens(block)) for block in blocks))
    head = {
        "id": f"msg_{said.new_id(24)}",
        "type": "message",
        "role": "assistant",
        "model": f"{asked['model']}-20250929",
    }
    if asked.get("stream"):
        return _stream(_events(head, blocks, stop, usage), words)
    await said.pause(words, request)
    return _json({**head, "content": blocks, **stop, "usage": usage})


def _blocks(asked: Json, *, refuses: bool) -> tuple[list[Json], Json]:
    """The blocks of an answer, and why it ended."""
    stop: Json = {"stop_reason": "end_turn", "stop_sequence": None, "stop_details": None, "container": None}
    if refuses:
        details = {"type": "refusal", "category": None, "explanation": said.REFUSAL}
        return [], {**stop, "stop_reason": "refusal", "stop_details": details}
    blocks: list[Json] = []
    if asked.get("thinking", {}).get("type") in ("enabled", "adaptive"):
        blocks.append({"type": "thinking", "thinking": said.THOUGHT, "signature": SIGNATURE})
    if calls := _calls(asked):
        return [*blocks, *calls], {**stop, "stop_reason": "tool_use"}
    words = said.text(_words(asked), limit=asked["max_tokens"], stops=asked.get("stop_sequences") or ())
    blocks.append({"type": "text", "text": "".join(words.tokens), "citations": None})
    if words.cut:
        stop["stop_reason"] = "max_tokens"
    elif words.stop is not None:
        stop |= {"stop_reason": "stop_sequence", "stop_sequence": words.stop}
    return blocks, stop


def _words(asked: Json) -> str:
    match asked.get("output_config"):
        case {"format": {"type": "json_schema", "schema": dict(schema)}}:
            return orjson.dumps(said.instance(schema)).decode()
    return said.picture(size) if (size := _picture(asked["messages"][-1]["content"])) else said.TEXT


def _picture(content: str | list[Json]) -> int:
    """The bytes of a message's picture."""
    for block in content if isinstance(content, list) else ():
        match block:
            case {"type": "image", "source": {"type": "base64", "data": str(data)}}:
                return len(b64decode(data, validate=True))
            case {"type": "image", "source": {"type": "url", "url": str(url)}}:
                return said.size_of(url)
    return 0


def _calls(asked: Json) -> list[Json]:
    """The tools that are called: the named one, all of them where several may be, or none after a tool's result."""
    tools = [tool for tool in asked.get("tools") or () if "input_schema" in tool]
    chosen = asked.get("tool_choice") or {"type": "auto"}
    content = asked["messages"][-1]["content"]
    answered = isinstance(content, list) and any(block["type"] == "tool_result" for block in content)
    match chosen["type"]:
        case "none":
            return []
        case "auto" if answered:
            return []
        case "tool":
            tools = [tool for tool in tools if tool["name"] == chosen["name"]]
    if chosen.get("disable_parallel_tool_use"):
        tools = tools[:1]
    calls = errand(asked["messages"], {tool["name"] for tool in tools})
    if calls is None:
        calls = tuple((tool["name"], said.instance(tool["input_schema"])) for tool in tools)
    return [
        {
            "type": "tool_use",
            "id": f"toolu_01D7FLrfh4GYq7yT1ULFeyM{i}",
            "name": name,
            "input": arguments,
            "caller": {"type": "direct"},
        }
        for i, (name, arguments) in enumerate(calls)
    ]


def _events(head: Json, blocks: list[Json], stop: Json, usage: Json) -> Iterator[Json]:
    opening = {
        **head,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": {**usage, "output_tokens": 1},
    }
    yield {"type": "message_start", "message": opening}
    for i, block in enumerate(blocks):
        empty = {
            "text": {"text": ""},
            "thinking": {"thinking": "", "signature": ""},
            "tool_use": {"input": {}},
        }
        yield {"type": "content_block_start", "index": i, "content_block": {**block, **empty[block["type"]]}}
        if i == 0:
            yield {"type": "ping"}
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": i, "delta": delta}
        yield {"type": "content_block_stop", "index": i}
    totals = {
        name: usage[name]
        for name in (
            "input_tokens",
            "cache_creation_input_tokens",
            "cache_read_input_tokens",
            "output_tokens",
            "output_tokens_details",
            "server_tool_use",
        )
    }
    yield {"type": "message_delta", "delta": stop, "usage": totals}
    yield {"type": "message_stop"}


def _deltas(block: Json) -> Iterator[Json]:
    match block["type"]:
        case "text":
            for token in _tokens(block):
                yield {"type": "text_delta", "text": token}
        case "thinking":
            for token in _tokens(block):
                yield {"type": "thinking_delta", "thinking": token}
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use":
            arguments = orjson.dumps(block["input"]).decode()
            for piece in ("", arguments[:3], arguments[3:]):
                yield {"type": "input_json_delta", "partial_json": piece}


def _tokens(block: Json) -> list[str]:
    said_here = block.get("text") or block.get("thinking") or orjson.dumps(block.get("input")).decode()
    return said.split(said_here)


async def _count_tokens(request: Request) -> Response:
    asked = await _read(request, message_count_tokens_params.MessageCountTokensParams)
    return _json({"input_tokens": _prompt(asked)})


def _prompt(asked: Json) -> int:
    return sum(said.count(asked[name]) for name in ("system", "messages", "tools") if asked.get(name))


async def _models(request: Request) -> Response:
    _check_headers(request)
    return _json({"data": [_model_info()], "has_more": False, "first_id": MODEL, "last_id": MODEL})


async def _model(request: Request) -> Response:
    _check_headers(request)
    _known(request.path_params["model"])
    return _json(_model_info())


def _model_info() -> Json:
    return {
        "type": "model",
        "id": MODEL,
        "display_name": "Claude Sonnet 4.5",
        "created_at": "2025-09-29T00:00:00Z",
        "max_input_tokens": 200_000,
        "max_tokens": 64_000,
        "capabilities": None,
    }


async def _read(request: Request, known: Any, *required: str) -> Json:
    """The body, checked as the API checks it first of all; ``known`` is the SDK's type of its fields."""
    _check_headers(request)
    try:
        asked = orjson.loads(await request.body())
    except orjson.JSONDecodeError:
        raise _invalid("The request body is not valid JSON.") from None
    if not isinstance(asked, dict):
        raise _invalid("Input should be an object")
    for name in ("model", "messages", *required):
        if asked.get(name) is None:
            raise _invalid(f"{name}: Field required")
    fields = {*known.__annotations__, "stream", "temperature", "top_p", "top_k"}
    if "anthropic-beta" in request.headers:
        fields |= beta_create_params.MessageCreateParamsBase.__annotations__.keys()
    for name in asked:
        if name not in fields:
            raise _invalid(f"{name}: Extra inputs are not permitted")
    _known(asked["model"])
    if not asked["messages"]:
        raise _invalid("messages: at least one message is required")
    if asked["messages"][0]["role"] == "assistant":
        raise _invalid('messages: first message must use the "user" role')
    for i, message in enumerate(asked["messages"]):
        _check_turn(message, i)
    return asked


def _check_turn(message: Json, i: int) -> None:
    if message["role"] not in ("user", "assistant", "system"):
        raise _invalid(f"messages.{i}.role: Input should be 'user' or 'assistant'")
    content = message["content"]
    if not content:
        raise _invalid(f"messages.{i}: all messages must have non-empty content")
    for j, block in enumerate(content if isinstance(content, list) else ()):
        if block["type"] == "thinking" and block["signature"] != SIGNATURE:
            raise _invalid(f"messages.{i}.content.{j}: Invalid `signature` in `thinking` block")
        if block["type"] == "text" and not block["text"]:
            raise _invalid(f"messages.{i}.content.{j}.text: text content blocks must be non-empty")


def _check_headers(request: Request) -> None:
    if request.headers.get("x-api-key") != KEY:
        raise Refused(401, "authentication_error", "invalid x-api-key")
    if "anthropic-version" not in request.headers:
        raise _invalid("anthropic-version: header is required")


def _known(model: str) -> None:
    if model != MODEL:
        raise Refused(404, "not_found_error", f"model: {model}")


def _grant(words: str, request: Request) -> None:
    """Fail as the last message wishes."""
    if said.is_busy(words, request.app.state.heard):
        message = "This request would exceed your organization's rate limit of 50 requests per minute."
        raise Refused(429, "rate_limit_error", message, headers={"retry-after": "1"})
    match words:
        case Wish.OVERLOADED:
            raise Refused(529, "overloaded_error", "Overloaded")
        case Wish.RATE_LIMITED:
            raise Refused(
                429,
                "rate_limit_error",
                "This request would exceed your organization's rate limit of 50 requests per minute.",
                headers={"retry-after": "20"},
            )
        case Wish.BROKEN:
            raise Refused(500, "api_error", "Internal server error")
        case Wish.TOO_LONG:
            raise _invalid("prompt is too long: 200001 tokens > 200000 maximum")


def _invalid(message: str) -> Refused:
    return Refused(400, "invalid_request_error", message)


def _usage(asked: Json, completion: int) -> Json:
    thinks = asked.get("thinking", {}).get("type") in ("enabled", "adaptive")
    return {
        "input_tokens": _prompt(asked),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"thinking_tokens": len(said.split(said.THOUGHT)) if thinks else 0},
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": "not_available",
    }


def _json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        orjson.dumps(body), status, {"request-id": REQUEST_ID, **(headers or {})}, "application/json"
    )


def _stream(events: Iterator[Json], words: str) -> Response:
    lines = (b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event)) for event in events)
    return StreamingResponse(said.paced(lines, words), 200, {"request-id": REQUEST_ID}, "text/event-stream")


if __name__ == "__main__":
    uvicorn.run(app(), port=int(sys.argv[1]), log_level="warning")
