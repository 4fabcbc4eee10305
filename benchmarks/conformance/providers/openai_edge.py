"""What all of the scripted OpenAI's endpoints have in common: keys, bodies, errors, answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from benchmarks.conformance.providers import said
from benchmarks.conformance.providers.said import Wish

KEY = "sk-conformance"
MODEL = "gpt-4o-mini"
EMBEDDER = "text-embedding-3-small"
FINGERPRINT = "fp_44709d6fcb"
CREATED = 1_741_569_952

Json = dict[str, Any]

_RANGES: Mapping[str, tuple[float, float]] = {
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "temperature": (0, 2),
    "top_p": (0, 1),
}


class Refused(Exception):
    """An error as this API tells it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        self.body = {"error": {"message": message, "type": type, "param": param, "code": code}}


def refusing(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """What a script stumbles over is the request's fault."""

    async def told(request: Request) -> Response:
        try:
            return await answer(request)
        except Refused as error:
            return json(error.body, error.status, error.headers)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
            refused = Refused(400, f"Invalid type ({type(error).__name__}: {error}).", code="invalid_type")
            return json(refused.body, refused.status)

    return told


async def read(request: Request, fields: Any) -> Json:
    """The body, checked as the API checks it first of all; ``fields`` is the SDK's type of its fields."""
    check_key(request)
    try:
        asked = orjson.loads(await request.body())
    except orjson.JSONDecodeError:
        asked = None
    if not isinstance(asked, dict):
        raise Refused(
            400,
            "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP "
            "library correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON.)",
        )
    names = {*fields.__annotations__, "stream", "stream_options"}
    for name in asked:
        if name not in names:
            raise Refused(400, f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    if not isinstance(asked.get("model"), str):
        raise Refused(400, "you must provide a model parameter")
    known(asked["model"])
    for name, (least, most) in _RANGES.items():
        value = asked.get(name)
        if value is not None and type(value) not in (int, float):
            message = (
                f"Invalid type for '{name}': expected a decimal, but got {type(value).__name__} instead."
            )
            raise Refused(400, message, param=name, code="invalid_type")
        if value is not None and not least <= value <= most:
            message = f"Invalid '{name}': decimal out of range. Expected a value between {least} and {most}."
            raise Refused(400, message, param=name, code="decimal_out_of_range")
    if asked.get("stream_options") and not asked.get("stream"):
        raise Refused(
            400,
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    return asked


def check_key(request: Request) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if given != KEY:
        raise Refused(
            401,
            f"Incorrect API key provided: {given[:4]}****. You can find your API key at "
            "https://platform.openai.com/account/api-keys.",
            code="invalid_api_key",
        )


def known(model: str) -> str:
    if model not in (MODEL, EMBEDDER):
        raise Refused(
            404,
            f"The model `{model}` does not exist or you do not have access to it.",
            code="model_not_found",
        )
    return model


def grant(words: str, request: Request) -> None:
    """Fail as the last message wishes."""
    if said.is_busy(words, request.app.state.heard):
        raise Refused(
            429,
            f"Rate limit reached for {MODEL} in organization org-x on requests per min (RPM): Limit 3, Used 3, "
            "Requested 1. Please try again in 1s.",
            type="requests",
            code="rate_limit_exceeded",
            headers={"retry-after": "1"},
        )
    match words:
        case Wish.OVERLOADED:
            raise Refused(
                503,
                "The engine is currently overloaded, please try again later",
                type="service_unavailable_error",
            )
        case Wish.RATE_LIMITED:
            raise Refused(
                429,
                f"Rate limit reached for {MODEL} in organization org-x on requests per min (RPM): Limit 3, Used 3, "
                "Requested 1. Please try again in 20s.",
                type="requests",
                code="rate_limit_exceeded",
                headers={"retry-after": "20"},
            )
        case Wish.BROKEN:
            raise Refused(500, "The server had an error while processing your request.", type="server_error")
        case Wish.TOO_LONG:
            raise Refused(
                400,
                "This model's maximum context length is 128000 tokens. However, your messages resulted in 128001 "
                "tokens. Please reduce the length of the messages.",
                param="messages",
                code="context_length_exceeded",
            )


def json(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    told = {"x-request-id": "req_4f3a", "openai-version": "2020-10-01", **(headers or {})}
    return Response(orjson.dumps(body), status, told, "application/json")


def stream(events: Iterator[Json], words: str = "") -> Response:
    """``words`` are the last message's."""

    def lines() -> Iterator[bytes]:
        for event in events:
            yield b"data: " + orjson.dumps(event) + b"\n\n"
        yield b"data: [DONE]\n\n"

    return StreamingResponse(said.paced(lines(), words), media_type="text/event-stream")
