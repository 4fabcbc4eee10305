"""What a server says of what fails outside its endpoints: OpenAI's body, on every path and status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from engine.errors import EngineError, InternalError, InvalidRequest, MethodNotAllowed, PathNotFound


def json_response(data: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(data), status, headers, media_type="application/json")


async def _on_engine_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, EngineError)
    return json_response(error.body(), error.status, error.headers())


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    found: EngineError
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        found = MethodNotAllowed(f"{path} takes {allow}, not {request.method}.", allow=allow)
    elif error.status_code == 404:
        found = PathNotFound(f"There is nothing at {path}.")
    else:
        found = InvalidRequest(error.detail)
    return json_response(found.body(), found.status, found.headers())


async def _on_bug(request: Request, error: Exception) -> Response:
    found = InternalError("The engine made a mistake; its log has the details.")
    return json_response(found.body(), found.status)


HANDLERS: Mapping[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    EngineError: _on_engine_error,
    HTTPException: _on_http_error,
    Exception: _on_bug,
}
