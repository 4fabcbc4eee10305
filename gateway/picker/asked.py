"""What is asked, as headers and body say it, as a call that the router can place."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gateway.backends.openai import FAIRNESS, OBJECTIVE
from gateway.errors import BadRequest, UnknownModel
from gateway.metering.estimate import Estimator
from gateway.policy.schema import DEFAULT_TIER, Policy
from gateway.policy.schema.limits import RequestLimits
from gateway.types import Call, ChatRequest, Principal, Receipt
from gateway.wire import json_body
from gateway.wire.anthropic.dialect import AnthropicDialect
from gateway.wire.openai.dialect import CHAT, COMPLETIONS, EMBEDDINGS

EVERYBODY = "default"
LARGE = 256 * 2**10
"""Bytes of a body from which on it is read beside the event loop."""

Read = Callable[[bytes, RequestLimits], ChatRequest]

_READERS: Mapping[str, Read] = MappingProxyType(
    {
        "/v1/chat/completions": CHAT.read_request,
        "/v1/completions": COMPLETIONS.read_request,
        "/v1/embeddings": EMBEDDINGS.read_request,
        "/v1/messages": AnthropicDialect.read_request,
    }
)


async def read_call(
    headers: Mapping[str, str], body: bytes | None, policy: Policy, usual: str, estimator: Estimator
) -> Call:
    """The header ``OBJECTIVE`` names a tier, ``FAIRNESS`` a tenant.

    ``body`` is None where there is none, or it is not known yet: then the request is one for the model ``usual``, and
    so is one whose body is no JSON, such as a form. Raises ``BadRequest`` and ``UnknownModel``.
    """
    if body is None or "json" not in headers.get("content-type", "json"):
        request = ChatRequest(model=usual, prompt="", embeds=True)
    else:
        # A path may have a prefix that the gateway takes off, or be a whole URL.
        path = headers.get(":path", "").partition("?")[0]
        read = next((read for known, read in _READERS.items() if path.endswith(known)), _any)
        limits = policy.limits
        request = await asyncio.to_thread(read, body, limits) if len(body) >= LARGE else read(body, limits)
    model = policy.resolve(request.model)
    if model is None:
        raise UnknownModel.named(request.model)
    now = time.perf_counter()
    request_id = headers.get("x-request-id") or f"req_{uuid.uuid4().hex}"
    return Call(
        request_id=request_id,
        principal=Principal(
            key_id="",
            tenant=headers.get(FAIRNESS) or EVERYBODY,
            tier=headers.get(OBJECTIVE) or DEFAULT_TIER,
        ),
        request=request,
        policy=policy,
        receipt=Receipt(request_id, time.time()),
        started=now,
        model=model,
        route=headers.get(":path", ""),
        estimator=estimator,
    )


def _any(body: bytes, limits: RequestLimits) -> ChatRequest:
    """Of an API that is not known here: its model is, and what it has of a prompt. It takes one place."""
    raw: dict[str, Any] = json_body.read_json(body, limits)
    model = raw.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest(
            "Missing required parameter: 'model'.", param="model", code="missing_required_parameter"
        )
    messages = raw.get("messages")
    if isinstance(messages, list) and all(isinstance(one, dict) for one in messages) and messages:
        return ChatRequest(model=model, messages=tuple(messages), embeds=True)
    return ChatRequest(model=model, prompt=raw.get("input", raw.get("prompt", "")), embeds=True)


def header_map(headers: Any) -> dict[str, str]:
    """Of a ``HeaderMap``: the first value of each name. Envoy has them in ``raw_value``, others in ``value``."""
    found: dict[str, str] = {}
    for one in headers.headers:
        found.setdefault(one.key.lower(), one.raw_value.decode("utf-8", "replace") or one.value)
    return found
