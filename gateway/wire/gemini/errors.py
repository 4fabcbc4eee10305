"""Errors of ours in Google's shape (https://cloud.google.com/apis/design/errors); the HTTP status stays ours."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from gateway.errors import ContextTooLong, GatewayError
from gateway.types import Json

_STATUSES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    412: "FAILED_PRECONDITION",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
    529: "UNAVAILABLE",
}
_TYPE = "type.googleapis.com/google.rpc."


def error_value(error: GatewayError, request_id: str) -> dict[str, Json]:
    status = _STATUSES.get(error.status) or ("INVALID_ARGUMENT" if error.status < 500 else "INTERNAL")
    metadata = {"request_id": request_id}
    if error.param:
        metadata["param"] = error.param
    details: list[dict[str, Json]] = [
        {
            "@type": f"{_TYPE}ErrorInfo",
            "reason": (error.code or error.type or status).upper(),
            "domain": "tollgate",
            "metadata": metadata,
        }
    ]
    if error.param and error.status == 400:
        violation = {"field": error.param, "description": error.message}
        details.append({"@type": f"{_TYPE}BadRequest", "fieldViolations": [violation]})
    if error.retry_after is not None:
        details.append({"@type": f"{_TYPE}RetryInfo", "retryDelay": f"{max(error.retry_after, 1):.1f}s"})
    fields = {"code": error.status, "message": _message(error), "status": status, "details": details}
    return {"error": fields}


def error_body(error: GatewayError, request_id: str) -> bytes:
    return orjson.dumps(error_value(error, request_id))


def _message(error: GatewayError) -> str:
    if isinstance(error, ContextTooLong) and "input token count" not in error.message:
        # Google's words, by which clients recognise it.
        return f"The input token count exceeds the maximum number of tokens allowed: {error.message}"
    return error.message
