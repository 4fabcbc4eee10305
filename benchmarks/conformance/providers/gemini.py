"""Google's Gemini API, scripted (https://ai.google.dev/api/generate-content): content, streams, models.

python -m benchmarks.conformance.providers.gemini PORT
"""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping
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

KEY = "AIza-conformance"
MODEL = "gemini-2.5-flash"
SIGNATURE = "EpwCCpkCAb4+9vs="
"""Of every thought, and the only signature that is taken back."""

Json = dict[str, Any]

BODY = frozenset(
    {
        *("cachedContent", "contents", "generationConfig", "labels", "model", "safetySettings"),
        *("serviceTier", "store", "systemInstruction", "toolConfig", "tools"),
    }
)
CONFIG = frozenset(
    {
        *("candidateCount", "enableEnhancedCivicAnswers", "frequencyPenalty", "imageConfig", "logprobs"),
        *("maxOutputTokens", "mediaResolution", "presencePenalty", "responseJsonSchema", "responseLogprobs"),
        *("responseMimeType", "responseModalities", "responseSchema", "seed", "speechConfig"),
        *("stopSequences", "temperature", "thinkingConfig", "topK", "topP"),
    }
)
PARTS = frozenset(
    {
        *("codeExecutionResult", "executableCode", "fileData", "functionCall", "functionResponse"),
        *("inlineData", "mediaResolution", "text", "thought", "thoughtSignature", "videoMetadata"),
    }
)


class Refused(Exception):
    """An error as this API tells it."""

    def __init__(self, code: int, status: str, message: str, *details: Json) -> None:
        super().__init__(message)
        told = {"code": code, "message": message, "status": status}
        self.code, self.body = code, {"error": {**told, **({"details": list(details)} if details else {})}}


def app() -> Starlette:
    served = Starlette(
        routes=[
            Route("/v1beta/models", _models),
            Route("/v1beta/models/{model_and_method}", _generate, methods=["POST"]),
        ],
        exception_handlers={Refused: _refuse},
    )
    served.state.heard = set()
    return served


async def _refuse(request: Request, error: Exception) -> Response:
    if not isinstance(error, Refused):
        raise error
    return _json(error.body, error.code)


async def _models(request: Request) -> Response:
    _check_key(request)
    return _json({"models": [{"name": f"models/{MODEL}", "displayName": "Gemini 2.5 Flash"}]})


async def _generate(request: Request) -> Response:
    _check_key(request)
    model, _, method = request.path_params["model_and_method"].partition(":")
    if model != MODEL or method not in ("countTokens", "generateContent", "streamGenerateContent"):
        what = f"models/{model} is not found for API version v1beta, or is not supported for {method}."
        raise Refused(404, "NOT_FOUND", what)
    asked = orjson.loads(await request.body())
    if method == "countTokens":
        return _json(_count(asked))
    _known(asked, BODY, "")
    _known(asked.get("generationConfig") or {}, CONFIG, "generation_config")
    wanted = _wanted(asked)
    _grant(wanted.words, request)
    found = answer(wanted)
    count = asked.get("generationConfig", {}).get("candidateCount", 1)
    usage = _usage(asked, found, count)
    event_id = said.new_id(16)
    if method == "generateContent":
        await said.pause(wanted.words, request)
        candidates = [_candidate(i, list(_parts(found)), _finish(found)) for i in range(count)]
        return _json(_event(event_id, candidates, usage))
    if request.query_params.get("alt") != "sse":
        raise _invalid("this script streams with alt=sse only")
    events = (b"data: %b\r\n\r\n" % orjson.dumps(event) for event in _events(event_id, found, usage, count))
    return StreamingResponse(said.paced(events, wanted.words, held_back=1), media_type="text/event-stream")


def _count(asked: Json) -> Json:
    """Of contents, or of a whole request, which names its model."""
    _known(asked, frozenset({"contents", "generateContentRequest"}), "")
    if whole := asked.get("generateContentRequest"):
        _known(whole, BODY, "generate_content_request")
        if whole.get("model") != f"models/{MODEL}":
            raise _invalid(
                "* CountTokensRequest.generate_content_request.model: unexpected model name format"
            )
    tokens = said.count((whole or asked)["contents"])
    return {"totalTokens": tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]}


def _wanted(asked: Json) -> Wanted:
    contents = asked.get("contents")
    if not contents:
        raise _invalid("* GenerateContentRequest.contents: contents is not specified")
    calls: list[str] = []
    for i, content in enumerate(contents):
        if content.get("role") not in ("user", "model"):
            raise _invalid("Please use a valid role: user, model.")
        for j, part in enumerate(content["parts"]):
            _known(part, PARTS, f"contents[{i}].parts[{j}]")
            if _base64(part.get("thoughtSignature", SIGNATURE)) != SIGNATURE:
                raise _invalid("Thought signature is not valid.")
            if "functionCall" in part:
                calls.append(part["functionCall"]["name"])
            if "functionResponse" in part and part["functionResponse"]["name"] not in calls:
                raise _invalid("Please ensure that function response turn comes after a function call turn.")
    last = contents[-1]["parts"]
    config = asked.get("generationConfig") or {}
    chosen = (asked.get("toolConfig") or {}).get("functionCallingConfig") or {}
    named = chosen.get("allowedFunctionNames") or ()
    choice = {"NONE": "none", "ANY": named[0] if named else "any"}.get(chosen.get("mode", "AUTO"), "auto")
    tools = {
        tool["name"]: tool.get("parametersJsonSchema") or tool.get("parameters") or {}
        for tools in asked.get("tools") or ()
        for tool in tools["functionDeclarations"]
    }
    return Wanted(
        words=" ".join(part["text"] for part in last if part.get("text")),
        picture=next(
            (len(b64decode(_base64(p["inlineData"]["data"]))) for p in last if "inlineData" in p), 0
        ),
        tools=tools,
        errand=errand(contents, tools),
        choice=choice,
        answered=any("functionResponse" in part for part in last),
        schema=_schema(config),
        limit=config.get("maxOutputTokens"),
        stops=config.get("stopSequences") or (),
        thinks=bool((config.get("thinkingConfig") or {}).get("includeThoughts")),
    )


def _base64(text: str) -> str:
    """In the usual alphabet; Google's SDK for Python has the other one."""
    return text.translate(str.maketrans("-_", "+/"))


def _lower(schema: Any) -> Any:
    """A schema of OpenAPI's as said.instance knows it."""
    if not isinstance(schema, dict):
        return schema
    return {
        name: value.lower()
        if name == "type"
        else {key: _lower(one) for key, one in value.items()}
        if name == "properties"
        else _lower(value)
        for name, value in schema.items()
    }


def _schema(config: Json) -> Mapping[str, Any] | None:
    schema = config.get("responseJsonSchema")
    if config.get("responseSchema") is not None:
        schema = _lower(config["responseSchema"])
    if schema is not None and config.get("responseMimeType") != "application/json":
        raise _invalid("Response schema is only supported with response mime type: application/json")
    return schema if schema is not None else ({} if config.get("responseMimeType") else None)


def _parts(found: Answer) -> Iterator[Json]:
    if found.thought:
        yield {"text": found.thought, "thought": True}
    signed = {"thoughtSignature": SIGNATURE} if found.thought else {}
    for i, (name, args) in enumerate(found.calls):
        yield {"functionCall": {"id": f"j8k2m{i}", "name": name, "args": args}, **(signed if i == 0 else {})}
    if not found.calls:
        yield {"text": "".join(found.text.tokens), **signed}


def _events(id: str, found: Answer, usage: Json, count: int) -> Iterator[Json]:
    begun = {name: usage[name] for name in ("promptTokenCount", "totalTokenCount", "promptTokensDetails")}
    for i in range(count):
        if found.thought:
            yield _event(id, [_candidate(i, [{"text": found.thought, "thought": True}])], begun)
        for part in _parts(found):
            if "functionCall" in part:
                yield _event(id, [_candidate(i, [part])], begun)
        for token in found.text.tokens:
            yield _event(id, [_candidate(i, [{"text": token}])], begun)
        signed = {"thoughtSignature": SIGNATURE} if found.thought and not found.calls else {}
        yield _event(id, [_candidate(i, [{"text": "", **signed}], _finish(found))], usage)


def _event(id: str, candidates: list[Json], usage: Json) -> Json:
    return {
        "candidates": candidates,
        "usageMetadata": usage,
        "modelVersion": MODEL,
        "responseId": id,
    }


def _candidate(index: int, parts: list[Json], finish: str | None = None) -> Json:
    ended = {"finishReason": finish} if finish else {}
    return {"content": {"parts": parts, "role": "model"}, **ended, "index": index}


def _finish(found: Answer) -> str:
    return "MAX_TOKENS" if found.text.cut else "STOP"


def _usage(asked: Json, found: Answer, count: int) -> Json:
    prompt = said.count(asked["contents"])
    thought = {"thoughtsTokenCount": found.thought_tokens} if found.thought else {}
    said_tokens = found.tokens * count
    return {
        "promptTokenCount": prompt,
        "candidatesTokenCount": said_tokens,
        "totalTokenCount": prompt + said_tokens + found.thought_tokens,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}],
        **thought,
    }


def _grant(words: str, request: Request) -> None:
    """Fail as the last message wishes."""
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "20s"}
    exhausted = "You exceeded your current quota, please check your plan and billing details."
    if said.is_busy(words, request.app.state.heard):
        raise Refused(429, "RESOURCE_EXHAUSTED", exhausted, {**retry, "retryDelay": "1s"})
    match words:
        case Wish.OVERLOADED:
            raise Refused(503, "UNAVAILABLE", "The model is overloaded. Please try again later.")
        case Wish.RATE_LIMITED:
            raise Refused(429, "RESOURCE_EXHAUSTED", exhausted, retry)
        case Wish.BROKEN:
            raise Refused(500, "INTERNAL", "An internal error has occurred.")
        case Wish.TOO_LONG:
            raise _invalid(
                "The input token count (1500000) exceeds the maximum number of tokens allowed (1048576)."
            )


def _known(value: Json, names: frozenset[str], where: str) -> None:
    for name in value:
        if name not in names:
            raise _invalid(
                f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field."
            )


def _invalid(message: str) -> Refused:
    return Refused(400, "INVALID_ARGUMENT", message)


def _check_key(request: Request) -> None:
    if request.headers.get("x-goog-api-key") != KEY:
        reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
        raise Refused(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", reason)


def _json(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


if __name__ == "__main__":
    uvicorn.run(app(), port=int(sys.argv[1]), log_level="warning")
