"""Bedrock's errors as the gateway's: by HTTP status and ``x-amzn-errortype``, or by the name of a stream's exception
(https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html#API_runtime_Converse_Errors)."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from gateway.backends import openai_errors
from gateway.backends.openai_errors import Outage
from gateway.errors import GatewayError

_STATUS = {
    "AccessDeniedException": 403,
    "ExpiredTokenException": 403,
    "InvalidSignatureException": 403,
    "UnrecognizedClientException": 403,
    "InternalServerException": 500,
    "ModelErrorException": 500,
    "ModelNotReadyException": 503,
    "ModelStreamErrorException": 500,
    "ModelTimeoutException": 408,
    "ResourceNotFoundException": 404,
    "ServiceQuotaExceededException": 429,
    "ServiceUnavailableException": 503,
    "ThrottlingException": 429,
    "ValidationException": 400,
}
"""As the gateway means them. Amazon says 424 of a model that failed, and 429 of one that is not ready."""


def from_response(
    backend: str, status: int, headers: Mapping[str, str], body: bytes, outage: Outage
) -> GatewayError:
    """The error for an answer other than 200."""
    kind = headers.get("x-amzn-errortype", "").partition(":")[0]
    return from_exception(backend, kind, body, outage, status=status, headers=headers)


def from_exception(
    backend: str,
    kind: str,
    payload: bytes,
    outage: Outage,
    *,
    status: int = 500,
    headers: Mapping[str, str] | None = None,
) -> GatewayError:
    """The error for an exception, in a stream or with a ``status``. Streams write names small."""
    name = kind[:1].upper() + kind[1:]
    try:
        raw = orjson.loads(payload)
    except orjson.JSONDecodeError:
        raw = None
    message = None
    if isinstance(raw, dict):
        message = raw.get("message") or raw.get("Message") or raw.get("originalMessage")
    told = {"error": {"message": message, "code": name or None}}
    return openai_errors.from_response(
        backend, _STATUS.get(name, status), headers or {}, orjson.dumps(told), outage
    )
