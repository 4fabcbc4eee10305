"""Google's errors as the gateway's (https://ai.google.dev/gemini-api/docs/troubleshooting,
https://cloud.google.com/apis/design/errors)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from gateway.backends import openai_errors
from gateway.backends.openai_errors import Outage
from gateway.errors import GatewayError
from gateway.types import Json

_KEY = frozenset({"API_KEY_INVALID", "API_KEY_SERVICE_BLOCKED", "ACCESS_TOKEN_EXPIRED"})
"""Reasons with status 400 that are about the gateway's credentials, and not about the request."""


def from_response(
    backend: str, status: int, headers: Mapping[str, str], body: bytes, outage: Outage
) -> GatewayError:
    """The error for an answer other than 200."""
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError:
        raw = None
    return from_value(backend, status, raw, outage)


def from_value(backend: str, status: int | None, raw: Json, outage: Outage) -> GatewayError:
    """The error in a body or an event, ``{"error": …}``; older streams wrap it in a list. ``status`` is HTTP's."""
    if isinstance(raw, list) and raw:
        raw = raw[0]
    error = raw.get("error") if isinstance(raw, dict) else None
    error = error if isinstance(error, dict) else {}
    code = error.get("code")
    known = status or (code if type(code) is int else 500)
    if not _KEY.isdisjoint(_details(error, "reason")):
        known = 401
    told = {"message": error.get("message"), "code": error.get("status")}
    wait = next(_details(error, "retryDelay"), "").removesuffix("s")
    headers = {"retry-after": wait} if wait else {}
    return openai_errors.from_response(backend, known, headers, orjson.dumps({"error": told}), outage)


def _details(error: Mapping[str, Json], name: str) -> Iterator[str]:
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(detail.get(name), str):
            yield detail[name]
