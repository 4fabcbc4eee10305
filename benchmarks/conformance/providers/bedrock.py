"""Amazon Bedrock's Converse and ConverseStream, scripted; requests are held to Amazon's own description of them
(https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html).

python -m benchmarks.conformance.providers.bedrock PORT
"""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from benchmarks.conformance.providers import said
from benchmarks.conformance.providers.bedrock_frames import event
from benchmarks.conformance.providers.bedrock_shapes import complaints
from benchmarks.conformance.providers.errand import errand
from benchmarks.conformance.providers.said import Wish
from benchmarks.conformance.providers.wanted import Answer, Wanted, answer

KEY = "bedrock-api-key-conformance"
REGION = "eu-west-1"
MODEL = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
SIGNATURE = "RXRWCg=="
"""Of every thought, and the only signature that is taken back."""

Json = dict[str, Any]


class Refused(Exception):
    """An error as this API tells it."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.body = status, kind, {"message": message}


def app() -> Starlette:
    served = Starlette(
        routes=[
            Route("/model/{model}/converse", _converse, methods=["POST"]),
            Route("/model/{model}/converse-stream", _converse, methods=["POST"]),
            Route("/ping", _ping),
        ],
        exception_handlers={Refused: _refuse},
    )
    served.state.heard = set()
    return served


async def _ping(request: Request) -> Response:
    """Not Amazon's: by it a suite sees that the script runs."""
    return Response(status_code=204)


async def _refuse(request: Request, error: Exception) -> Response:
    if not isinstance(error, Refused):
        raise error
    headers = {"x-amzn-errortype": f"{error.kind}:http://internal.amazon.com/coral/"}
    return Response(orjson.dumps(error.body), error.status, headers, "application/json")


async def _converse(request: Request) -> Response:
    if request.headers.get("authorization") != f"Bearer {KEY}":
        raise Refused(
            403, "AccessDeniedException", "Authentication failed: Please make sure your API Key is valid."
        )
    if request.path_params["model"] != MODEL:
        raise _invalid("The provided model identifier is invalid.")
    asked = orjson.loads(await request.body())
    if wrong := complaints(asked, MODEL):
        raise _invalid(wrong)
    wanted = _wanted(asked)
    _grant(wanted.words, request)
    found = answer(wanted)
    usage = _usage(said.count(asked["messages"]), found)
    if request.url.path.endswith("converse-stream"):
        events = (event(kind, payload) for kind, payload in _events(found, usage))
        kind = "application/vnd.amazon.eventstream"
        return StreamingResponse(said.paced(events, wanted.words), media_type=kind)
    await said.pause(wanted.words, request)
    message = {"role": "assistant", "content": list(_blocks(found))}
    told = {"output": {"message": message}, "stopReason": _stop(found), "usage": usage}
    return Response(orjson.dumps({**told, "metrics": {"latencyMs": 551}}), 200, media_type="application/json")


def _wanted(asked: Json) -> Wanted:
    messages = asked.get("messages")
    if not messages or messages[0]["role"] != "user":
        raise _invalid(
            "A conversation must start with a user message. Try again with a conversation that does."
        )
    called: list[str] = []
    for i, message in enumerate(messages):
        if i and message["role"] == messages[i - 1]["role"]:
            raise _invalid("A conversation must alternate between user and assistant roles.")
        for block in message["content"]:
            called += [block["toolUse"]["toolUseId"]] if "toolUse" in block else []
            if "toolResult" in block and block["toolResult"]["toolUseId"] not in called:
                raise _invalid("The number of toolResult blocks exceeds the number of toolUse blocks.")
            thought = block.get("reasoningContent", {}).get("reasoningText", {})
            if thought.get("signature", SIGNATURE) != SIGNATURE:
                raise _invalid("Invalid `signature` in `thinking` block")
    tools = asked.get("toolConfig") or {}
    if called and not tools:
        raise _invalid(
            "The toolConfig field must be defined when using toolUse and toolResult content blocks."
        )
    last = messages[-1]["content"]
    [(choice, chosen)] = (tools.get("toolChoice") or {"auto": {}}).items()
    config = asked.get("inferenceConfig") or {}
    tools = {
        tool["toolSpec"]["name"]: tool["toolSpec"]["inputSchema"]["json"]
        for tool in tools.get("tools") or ()
        if "toolSpec" in tool
    }
    return Wanted(
        words=" ".join(block["text"] for block in last if "text" in block),
        picture=next((len(b64decode(b["image"]["source"]["bytes"])) for b in last if "image" in b), 0),
        tools=tools,
        errand=errand(messages, tools),
        choice=chosen["name"] if choice == "tool" else choice,
        answered=any("toolResult" in block for block in last),
        schema=_schema(asked.get("outputConfig") or {}),
        limit=config.get("maxTokens"),
        stops=config.get("stopSequences") or (),
        thinks=_thinks(asked),
    )


def _thinks(asked: Json) -> bool:
    thinking = (asked.get("additionalModelRequestFields") or {}).get("thinking") or {}
    return thinking.get("type") in ("enabled", "adaptive")


def _schema(output: Json) -> Json | None:
    form = output.get("textFormat")
    if form is None:
        return None
    schema: Json = orjson.loads(form["structure"]["jsonSchema"]["schema"])
    return schema


def _blocks(found: Answer) -> Iterator[Json]:
    if found.thought:
        yield {"reasoningContent": {"reasoningText": {"text": found.thought, "signature": SIGNATURE}}}
    for i, (name, args) in enumerate(found.calls):
        yield {"toolUse": {"toolUseId": f"tooluse_kZJMlvQmRJ6eAyJE5GIl7{i}", "name": name, "input": args}}
    if not found.calls:
        yield {"text": "".join(found.text.tokens)}


def _events(found: Answer, usage: Json) -> Iterator[tuple[str, Json]]:
    yield "messageStart", {"role": "assistant", "p": "abcd"}
    for i, block in enumerate(_blocks(found)):
        if call := block.get("toolUse"):
            started = {"name": call["name"], "toolUseId": call["toolUseId"]}
            yield "contentBlockStart", {"contentBlockIndex": i, "start": {"toolUse": started}}
        for delta in _deltas(block, found):
            yield "contentBlockDelta", {"contentBlockIndex": i, "delta": delta, "p": "abcdefgh"}
        yield "contentBlockStop", {"contentBlockIndex": i, "p": "abc"}
    yield "messageStop", {"stopReason": _stop(found)}
    yield "metadata", {"usage": usage, "metrics": {"latencyMs": 551}, "p": "ab"}


def _deltas(block: Json, found: Answer) -> Iterator[Json]:
    if "reasoningContent" in block:
        for token in said.split(found.thought):
            yield {"reasoningContent": {"text": token}}
        yield {"reasoningContent": {"signature": SIGNATURE}}
    elif call := block.get("toolUse"):
        arguments = orjson.dumps(call["input"]).decode()
        yield from ({"toolUse": {"input": piece}} for piece in (arguments[:3], arguments[3:]))
    else:
        yield from ({"text": token} for token in found.text.tokens)


def _stop(found: Answer) -> str:
    if found.calls:
        return "tool_use"
    if found.text.stop is not None:
        return "stop_sequence"
    return "max_tokens" if found.text.cut else "end_turn"


def _usage(prompt: int, found: Answer) -> Json:
    completion = found.tokens + found.thought_tokens
    return {"inputTokens": prompt, "outputTokens": completion, "totalTokens": prompt + completion}


def _grant(words: str, request: Request) -> None:
    """Fail as the last message wishes. This API does not say how long to wait."""
    if said.is_busy(words, request.app.state.heard) or words == Wish.RATE_LIMITED:
        raise Refused(429, "ThrottlingException", "Too many requests, please wait before trying again.")
    match words:
        case Wish.OVERLOADED:
            raise Refused(503, "ServiceUnavailableException", "Bedrock is unable to process your request.")
        case Wish.BROKEN:
            raise Refused(500, "InternalServerException", "The system encountered an unexpected error.")
        case Wish.TOO_LONG:
            raise _invalid("The model returned the following errors: Input is too long for requested model.")


def _invalid(message: str) -> Refused:
    return Refused(400, "ValidationException", message)


if __name__ == "__main__":
    uvicorn.run(app(), port=int(sys.argv[1]), log_level="warning")
